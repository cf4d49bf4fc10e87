"""forget(): take samples out of a trained model, with its Grams in place of its training set."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unweave import remarks
from unweave.batches import Loader, device_of, reusable
from unweave.config import ForgetConfig
from unweave.descent import Descent, only_moving
from unweave.distributed import agree, exchange, rank, ranks, together
from unweave.errors import ConfigError, DataError, MismatchError
from unweave.fit import Progress, observe_val, stream
from unweave.fsdp import require_whole
from unweave.gone import (
    check_forget_classes,
    classes_gone,
    classes_that_stay,
    classes_to_choose_from,
    left_of_classes,
    said_again,
)
from unweave.grams import LayerGrams
from unweave.layers import find_layers, moving, select
from unweave.loop import Ending, Request
from unweave.outcomes import ClassProfile, Outcomes
from unweave.pool import facts_about, gathered_samples, in_order, observe_together, pooled
from unweave.rest import at_rest, by_itself, check_model, duplicate, fingerprint, unwrap
from unweave.result import ForgetResult, Look
from unweave.samples import Samples
from unweave.shard import require_each_once
from unweave.space import CoreSpace
from unweave.stopping import choose_goal
from unweave.trust import TrustRegion, last_linear
from unweave.twins import Twins


@by_itself()
def forget(
    model: nn.Module,
    forget_loader: Loader,
    grams: LayerGrams,
    val: Loader | None = None,
    config: ForgetConfig | None = None,
    *,
    first: nn.Module | None = None,
    progress: Progress | None = None,
) -> ForgetResult:
    """Make a model that behaves as if it had never seen some of its training samples.

    Autocast and inference mode make no difference: they are off inside.

    Inside an initialised process group every rank calls this with the same model and Grams and its own shares of the
    two loaders, as :func:`unweave.shard` cuts them. The work is divided, and every rank gets the same result.

    Args:
        model: the trained model the Grams belong to. It is left untouched. Weights that do not require a gradient stay
            as they are, unless ``layers=`` names them, or no parameter does: then it was loaded to be used.
        forget_loader: the samples to forget, as ``(inputs, labels)``, under the transform the Grams were fitted with.
            For ``task="poison"`` the labels are the wrong ones the model was trained on.
        grams: from :func:`unweave.fit`, or ``result.grams`` of the request before.
        val: held-out samples, to watch for damage and, in the first request, to aim at (later ones aim at what the
            Grams keep of the original model). Needed for ``task="samples"`` unless the Grams were fitted with ``val=``;
            recommended always.
        config: see :class:`ForgetConfig`.
        first: the model that the Grams were fitted with, if it is still there and ``model`` came out of a request: then
            what is taken out is, but for rounding, what was added, however many requests there were. Without it, it is
            what ``model`` makes of the samples by now, which is a little else after each request. (Not for samples that
            were added to the Grams later, with a changed model.)
        progress: called as ``progress("forget", epochs_done, epochs_at_most)``, first with 0 before the layers' Grams
            are decomposed, which takes a while where they are wide.

    Raises:
        MismatchError: Grams of another model, samples that were forgotten before, or that were never fitted (where the
            sums can tell: many samples, or samples unlike the others).
        DataError, ModelError, LayerError, ConfigError: see :mod:`unweave.errors`. Model and Grams are unchanged.
        RankError: another rank failed or is gone.
    """
    began = time.perf_counter()
    config = _check_kinds(grams, config).resolved()
    original = unwrap(model)
    require_whole(original)
    check_model(original)
    select(config.layers, grams.names)  # a name that is not there is refused before anything is read
    with together("the forget loader"):
        require_each_once(forget_loader, "forget")
    samples = gathered_samples(forget_loader, "forget", device_of(original))
    val = None if val is None else reusable(val)
    with together("the first model"):
        first = None if first is None else _checked_first(first, grams, device_of(original))
    digests = _check_request(original, samples, grams, config, val, first is not None)
    with together("the choice of layers"):
        names = moving(original, config.layers, grams.names)
    agree("the choice of layers", {"layers that may move": " ".join(names)})

    if progress is not None:  # to decompose wide layers may take longer than all epochs
        progress("forget", 0, config.epochs)
    home, grams_here = grams.device, grams.to(device_of(original))
    given, before, learnt = _given(original, first, samples, grams, samples.look_size(config.batch_size))
    if config.task == "classes":
        check_forget_classes(before.labels, before.classes)
    retained = grams_here - given
    space = _space(retained.restricted(names), config, grams.names)
    seen, met = _watched(original, val, samples, tempered=not _aims_at_kept(grams, before))
    held_out = _held_out(grams, seen, before)
    counts = grams.origin.labels, retained.origin.labels
    goal = choose_goal(config, before, held_out, grams.margins, learnt, *counts)

    net = duplicate(original)
    descent = _descent(net, space, config, grams.names)
    choices = _choices(config.task, grams, retained, before)
    loop = Request(descent, samples, goal, config, val, choices, progress, seen, began)
    ending, final = _carried_out(loop)
    changed = fingerprint(net)
    agree("the end", {"model at the end": changed[:12]})
    shift = _shift(original, net, retained.restricted(names))
    taken_out = ending.ok or changed != grams.origin.model
    return ForgetResult(
        model=net,
        # A request that failed and changed nothing took nothing out either: it may be tried again.
        grams=retained.to(home).belonging_to(changed, forgotten=digests, held_out=held_out) if taken_out else grams,
        history=loop.history,
        stopped=ending.words,
        ok=ending.ok,
        goal=goal,
        config=config,
        ranks=space.ranks,
        shift=shift,
        seconds=time.perf_counter() - began,
        samples=len(samples),
        final=final,
        left=_left(*counts),
        warnings=[
            *remarks.elsewhere(grams, original),
            *remarks.repeated(digests),
            *remarks.ranked_by_chance(grams, before, config),
            *remarks.not_held_out(met),
            *(left_of_classes(retained, before) if config.task == "classes" else []),
            *(remarks.whole_classes(retained, before) if config.task == "samples" else []),
            *said_again(net, grams, val),
            *remarks.drifted(space, grams, given),
            *remarks.about_the_labels(loop.history[0], goal, config),
            *remarks.about_the_end(shift, loop.history[0], final, goal, config, gone=classes_gone(grams)),
            *remarks.felt_since(_since(first, net, retained.restricted(names)), shift),
            *remarks.risen_since(grams, retained, final, 0 if seen is None else len(seen)),
            *(remarks.what_can_move(net, names) if config.layers is None else []),
        ],
    )


def _check_kinds(grams: LayerGrams, config: ForgetConfig | None) -> ForgetConfig:
    """Refuse what is something else altogether, such as a path in place of Grams."""
    if not isinstance(grams, LayerGrams):
        raise MismatchError(
            f"grams is a {type(grams).__name__}. Pass what unweave.fit() returned, or unweave.LayerGrams.load(path)."
        )
    if config is not None and not isinstance(config, ForgetConfig):
        raise ConfigError(f"config is a {type(config).__name__}. Pass unweave.ForgetConfig(...).")
    return config or ForgetConfig()


def _check_request(
    original: nn.Module, samples: Samples, grams: LayerGrams, config: ForgetConfig, val: Loader | None, first: bool
) -> tuple[str, ...]:
    """Refuse what cannot be right before anything is computed; returns the samples' digests."""
    found = fingerprint(original)
    if found != grams.origin.model:
        raise MismatchError(
            f"These Grams belong to model {grams.origin.model[:12]}, the model passed is {found[:12]}.",
            remedy="Load the weights they were fitted with, use result.model with result.grams, or fit again.",
        )
    if len(samples) >= grams.samples:
        raise MismatchError(
            f"Asked to forget {len(samples)} samples with Grams of {grams.samples}. "
            "Nothing would be retained: the forget set must be a smaller part of what was fitted."
        )
    facts = {"configuration": repr(config), "model": found[:12], "first= given": str(first)}
    agree("the request", facts_about(grams) | facts)
    digests = samples.digests(grams.origin.key)
    gone = set(grams.origin.forgotten)
    again = [position for position, digest in enumerate(digests) if digest in gone]
    if again:
        which = ", ".join(map(str, again[:10])) + (", …" if len(again) > 10 else "")
        raise MismatchError(
            f"{len(again)} of these {len(samples)} samples were forgotten before (in the order of the loader, from 0: "
            f"{which}): they are already out of the Grams. Leave them out; to try again with other settings, start "
            "from the model and Grams of before that request."
        )
    if config.stop == "paper" and val is None:
        raise DataError("stop='paper' compares with the validation error after every epoch. Pass val= (--val).")
    return digests


def _given(
    original: nn.Module, first: nn.Module | None, samples: Samples, grams: LayerGrams, size: int
) -> tuple[LayerGrams, Outcomes, Outcomes]:
    """The Grams of the samples to forget, by the first model if it is there, and what original and first make of them.

    Each rank streams some of the batches.
    """
    batches = list(samples.batches(size))
    made_from = grams.origin.model if first is None else grams.origin.first  # checked before: it is these
    with together("the pass over the forget set"):
        own = [(inputs, labels) for inputs, labels, _ in batches[rank() :: ranks()]]
        part, seen = stream(first or original, own, "forget", grams.names, grams.origin.manner, made_from=made_from)
    everybodys = Outcomes.concat(theirs for theirs in exchange("the outcomes of the forget set", seen) if len(theirs))
    learnt = in_order(everybodys, [positions for _, _, positions in batches])
    if first is None:
        return pooled(part), learnt, learnt
    with at_rest(original):
        before = observe_together(original, samples, size)
    return pooled(part).belonging_to(grams.origin.model, held_out=None), before, learnt


def _checked_first(first: nn.Module, grams: LayerGrams, device: torch.device) -> nn.Module | None:
    """The model that the Grams were fitted with, on the device of the request; None while nothing has changed it.

    Raises:
        MismatchError: it is another one, or nobody knows which it was.
    """
    first = unwrap(first)
    require_whole(first)
    found, known = fingerprint(first), grams.origin
    if known.forgotten and not known.key:
        raise MismatchError("These Grams do not say which model they were fitted with. Leave first= (--first) out.")
    if found != known.first:
        raise MismatchError(
            f"These Grams were fitted with model {known.first[:12]}, first= (--first) is {found[:12]}. Pass the model "
            "of before all requests, or leave it out."
        )
    if known.model == known.first:
        return None  # one pass serves for both
    return first if device_of(first) == device else duplicate(first).to(device)


def _gamma_for(config: ForgetConfig, all_names: list[str], names: list[str]) -> float | dict[str, float]:
    """γ for the layers that move; naming a layer that is frozen by layers= is no mistake."""
    if isinstance(config.gamma, (int, float)):
        return config.gamma
    return {name: value for name, value in config.gamma.items() if name in names or name not in all_names}


def _space(retained: LayerGrams, config: ForgetConfig, all_names: list[str]) -> CoreSpace:
    return CoreSpace.from_grams(
        retained,
        _gamma_for(config, all_names, retained.names),
        protect=config.protect,
        energy=config.energy,
        rank_rule=config.rank_rule,
        negative=config.negative,
        freeze_at_one=config.freeze_at_one,
    )


def _watched(
    original: nn.Module, val: Loader | None, samples: Samples, tempered: bool
) -> tuple[Outcomes | None, list[list[int]]]:
    """What the original makes of the validation samples, and how often each rank met samples to forget among them."""
    if val is None:
        return None, []
    twins = Twins(samples)
    seen = observe_val(original, val, twins.show, tempered)
    return seen, exchange("the samples that were met again", twins.met())


def _held_out(grams: LayerGrams, seen: Outcomes | None, before: Outcomes) -> ClassProfile | None:
    """What to aim at: ``val`` on the original model, or what the Grams kept of it once requests have changed it."""
    kept = grams.held_out
    if seen is None or _aims_at_kept(grams, before):
        return kept
    found = ClassProfile.of(seen, grams.origin.labels)
    # Grams that were only subtracted from are of fewer samples than the model was trained on.
    whole = kept is not None and not grams.origin.forgotten and kept.classes == found.classes
    return found.trained_on(kept.trained.tolist()) if kept is not None and whole else found


def _aims_at_kept(grams: LayerGrams, before: Outcomes) -> bool:
    """Whether requests have changed the model, and the Grams know how the first one stood."""
    return grams.held_out is not None and bool(grams.origin.forgotten) and grams.held_out.has(before.labels)


def _left(present: Sequence[int], retained: Sequence[int]) -> dict[int, float]:
    """The share of its samples that is left of each class that lost some."""
    pairs = enumerate(zip(present, retained, strict=True)) if len(present) == len(retained) else ()
    return {c: after / before for c, (before, after) in pairs if after < before}


def _choices(task: str, grams: LayerGrams, retained: LayerGrams, before: Outcomes) -> set[int] | None:
    """The classes that samples may be taken for afterwards, where that is told beforehand."""
    if task == "classes":
        return classes_that_stay(retained, before)
    return classes_to_choose_from(grams, before) if task == "poison" else None


def _descent(net: nn.Module, space: CoreSpace, config: ForgetConfig, all_names: list[str]) -> Descent:
    layers = find_layers(net, all_names)
    weights = {name: layers[name].parameter for name in space.layers if name not in space.frozen}
    rule = "adam" if config.objective == "match" and config.task == "samples" else "sgd"
    name = last_linear(net, layers) if config.task == "poison" and config.trust else None
    if name not in weights:
        return Descent(net, weights, space, rule)
    core = space.layers[name]
    region = TrustRegion(name, weights[name], core, config.trust)
    path = f"{layers[name].owners[0]}.{layers[name].kind.weight}".lstrip(".")
    return Descent(net, weights, space, rule, region, path)


def _carried_out(request: Request) -> tuple[Ending, Look]:
    """Walk to the end; the descent's network, an ordinary one again, holds the weights to hand back afterwards."""
    descent = request.descent
    net, moving = descent.net, only_moving(descent.net, descent.weights.values())
    with torch.random.fork_rng(), at_rest(net, gradients=True, convolutions=None), moving:
        torch.manual_seed(request.config.seed)
        ending, final = request.run()
        descent.fold()
        descent.align()
    descent.let_go()
    return ending, final


def _shift(original: nn.Module, net: nn.Module, retained: LayerGrams) -> dict[str, float]:
    """How far the retained rows feel each layer's change: ‖R ΔWᵀ‖ / ‖R Wᵀ‖, from G = RᵀR alone."""
    old, new = find_layers(original, retained.names), find_layers(net, retained.names)
    return {
        name: _felt(retained, name, new[name].parameter - old[name].parameter)
        / max(_felt(retained, name, old[name].parameter), 1e-300)
        for name in retained
    }


def _since(first: nn.Module | None, net: nn.Module, retained: LayerGrams) -> dict[str, float]:
    """The same since the first model; nothing where it is not there."""
    return {} if first is None else _shift(first, net, retained)


def _felt(retained: LayerGrams, name: str, weight: Tensor) -> float:
    matrix = retained.layers[name].as_matrix(weight.detach().double())
    return float(((matrix @ retained.grouped(name)) * matrix).sum().clamp_min(0).sqrt())
