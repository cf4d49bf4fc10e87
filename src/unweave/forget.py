"""forget(): take samples out of a trained model, with its Grams in place of its training set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unweave.behaviour.outcomes import ClassProfile, Outcomes
from unweave.behaviour.strangers import Strangers, strangers
from unweave.config import ForgetConfig
from unweave.distributed import agree, exchange, rank, ranks, together
from unweave.fit import Progress, observe_val, stream
from unweave.fitting.twins import Twins, marks
from unweave.grams import LayerGrams
from unweave.layers import find_layers
from unweave.ranks.pool import in_order, observe_together, pooled
from unweave.reading.batches import Loader, device_of
from unweave.reading.rest import at_rest, by_itself, duplicate, fingerprint, only_moving
from unweave.reading.samples import Samples
from unweave.request import remarks
from unweave.request.asked import Asked, ask, check_kinds
from unweave.request.gone import (
    check_forget_classes,
    classes_gone,
    classes_left,
    classes_that_stay,
    classes_to_choose_from,
    left_of_classes,
    said_again,
)
from unweave.result import ForgetResult, Look
from unweave.space import CoreSpace
from unweave.stopping import Goal, choose_goal
from unweave.trust import TrustRegion, last_linear
from unweave.walking.descent import Descent
from unweave.walking.landing import Ending
from unweave.walking.loop import Request

MARKED_TOGETHER = 1024
"""How many samples to forget are compared with the validation samples at a time."""


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
            sums or the counts of margins can tell: many samples, or samples unlike the others; of margins
            ``strangers="tell"`` only warns).
        DataError, ModelError, LayerError, ConfigError: see :mod:`unweave.errors`. Model and Grams are unchanged.
        RankError: another rank failed or is gone.
    """
    began = time.perf_counter()
    config = check_kinds(grams, config).resolved()
    asked = ask(model, forget_loader, grams, val, config, first)
    if progress is not None:  # to decompose wide layers may take longer than all epochs
        progress("forget", 0, config.epochs)
    aim = _aimed(asked, grams, config)

    net = duplicate(asked.original)
    descent = _descent(net, aim.space, config, grams.names)
    choices = _choices(config.task, grams, aim.retained, aim.before)
    request = Request(descent, asked.samples, aim.goal, config, asked.val, choices, progress, aim.seen, began)
    ending, final = _carried_out(request)
    changed = fingerprint(net)
    agree("the end", {"model at the end": changed[:12]})
    kept = grams  # a request that failed and changed nothing took nothing out either: it may be tried again
    if ending.ok or changed != grams.origin.model:
        home = aim.retained.to(grams.device)
        kept = home.belonging_to(changed, forgotten=asked.digests, held_out=aim.held_out)
    shift = _shift(asked.original, net, aim.retained.restricted(asked.names))
    return ForgetResult(
        model=net,
        grams=kept,
        history=request.history,
        stopped=ending.words,
        ok=ending.ok,
        goal=aim.goal,
        config=config,
        ranks=aim.space.ranks,
        shift=shift,
        seconds=time.perf_counter() - began,
        samples=len(asked.samples),
        final=final,
        left=_left(grams.origin.labels, kept, config),
        left_of_all=_left([] if kept.held_out is None else kept.held_out.trained.tolist(), kept, config),
        warnings=_warnings(asked, aim, grams, request, final, shift),
    )


@dataclass(frozen=True)
class _Aim:
    """What is known before the first step: what is taken out, what is protected, and where to go."""

    given: LayerGrams
    before: Outcomes
    strangers: Strangers | None
    retained: LayerGrams
    space: CoreSpace
    seen: Outcomes | None
    met: int
    held_out: ClassProfile | None
    goal: Goal


def _aimed(asked: Asked, grams: LayerGrams, config: ForgetConfig) -> _Aim:
    """Take the samples out of the sums, decompose what is left, and see what to aim at."""
    original, samples = asked.original, asked.samples
    here = grams.to(device_of(original))
    given, before, learnt = _given(original, asked.first, samples, grams, samples.look_size(config.batch_size))
    if config.task == "classes":
        check_forget_classes(before.labels, before.classes)
    found = _strangers(grams, given, learnt)
    if found is not None and config.strangers == "refuse":
        found.require_few(remarks.copies(asked.digests), asked.unsteady)
    retained = here - given
    space = _space(retained.restricted(asked.names), config, grams.names)
    seen, met = _watched(original, asked.val, samples, tempered=not _aims_at_kept(grams, before))
    held_out = _held_out(grams, seen, before)
    counts = grams.origin.labels, retained.origin.labels
    same = given.origin.first == grams.origin.first and not grams.origin.drifted
    goal = choose_goal(config, before, held_out, grams.margins, learnt, *counts, same_model=same)
    return _Aim(given, before, found, retained, space, seen, met, held_out, goal)


def _warnings(
    asked: Asked, aim: _Aim, grams: LayerGrams, request: Request, final: Look, shift: dict[str, float]
) -> list[str]:
    """What a person should look at, done or not."""
    config, first_look, net = request.config, request.history[0], request.descent.net
    moved, watched = aim.retained.restricted(asked.names), 0 if aim.seen is None else len(aim.seen)
    soft = {name for name, layer in aim.space.layers.items() if not layer.hard or config.protect == "soft"}
    return [
        *(remarks.whole_classes(aim.retained, aim.before) if config.task == "samples" else []),
        *(remarks.nearly_whole_classes(grams, aim.retained, aim.before) if config.task == "samples" else []),
        *remarks.elsewhere(grams, asked.original),
        *remarks.read_otherwise(grams, aim.given, asked.unsteady),
        *remarks.repeated(asked.digests),
        *remarks.some_strangers(aim.strangers),
        *remarks.ranked_by_chance(grams, aim.before, config),
        *remarks.not_held_out(aim.met, len(asked.samples)),
        *remarks.aimed_at_trained(grams.held_out, None if grams.origin.forgotten else aim.seen, config),
        *remarks.aimed_at_few(aim.goal, aim.held_out, aim.before, config),
        *(left_of_classes(aim.retained, aim.before) if config.task == "classes" else []),
        *said_again(net, grams, asked.val),
        *remarks.drifted(aim.space, grams, aim.given),
        *remarks.about_the_labels(first_look, aim.goal, config),
        *remarks.another_val(grams, aim.seen),
        *remarks.nothing_recovered(first_look, final, final.epoch > 0, aim.goal, config),
        *(remarks.risen(first_look, final, request.due(first_look, final), watched) if config.task != "poison" else []),
        *remarks.about_the_end(shift, first_look, final, aim.goal, config, classes_gone(grams), soft),
        *remarks.felt_since(_since(asked.first, net, moved), shift),
        *remarks.risen_since(grams, aim.retained, final, watched, _same_val(grams, aim.seen)),
        *(remarks.what_can_move(net, asked.names) if config.layers is None else []),
    ]


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


def _strangers(grams: LayerGrams, given: LayerGrams, learnt: Outcomes) -> Strangers | None:
    """Samples that were never fitted; None where nobody can tell: margins are not those that were counted."""
    origin = grams.origin
    same = given.origin.first == origin.first and not origin.drifted and origin.convolutions == "float32"
    return strangers(grams.margins, learnt, origin.dtype) if same and grams.margins is not None else None


def _gamma_for(config: ForgetConfig, all_names: list[str], names: list[str]) -> float | dict[str, float]:
    """γ for the layers that move; naming a layer that is frozen by layers= is no mistake."""
    if isinstance(config.gamma, (int, float)):
        return config.gamma
    return {name: value for name, value in config.gamma.items() if name in names or name not in all_names}


def _space(retained: LayerGrams, config: ForgetConfig, all_names: list[str]) -> CoreSpace:
    return CoreSpace.from_grams(
        retained,
        _gamma_for(config, all_names, retained.names),
        protect=config.protect or "auto",  # it is there: the settings are resolved
        energy=config.energy,
        rank_rule=config.rank_rule,
        negative=config.negative,
        freeze_at_one=config.freeze_at_one,
    )


def _watched(original: nn.Module, val: Loader | None, samples: Samples, tempered: bool) -> tuple[Outcomes | None, int]:
    """What the original makes of the validation samples, and how many of the samples to forget are among them."""
    if val is None:
        return None, 0
    twins = Twins(torch.cat([marks(inputs) for inputs, _ in samples.pairs(MARKED_TOGETHER)]))
    seen = observe_val(original, val, twins.show, tempered)
    return seen, twins.met_once()


def _held_out(grams: LayerGrams, seen: Outcomes | None, before: Outcomes) -> ClassProfile | None:
    """What to aim at: ``val`` on the original model, or what the Grams kept of it once requests have changed it."""
    kept = grams.held_out
    if seen is None or _aims_at_kept(grams, before):
        return kept
    found = ClassProfile.of(seen, grams.origin.labels)
    if kept is None or grams.origin.forgotten:
        return found
    return found.trained_on(kept.trained.tolist())  # by hand samples may have been subtracted that it was trained on


def _aims_at_kept(grams: LayerGrams, before: Outcomes) -> bool:
    """Whether requests have changed the model, and the Grams know how the first one stood."""
    return grams.held_out is not None and bool(grams.origin.forgotten) and grams.held_out.has(before.labels)


def _same_val(grams: LayerGrams, seen: Outcomes | None) -> bool:
    """Whether the validation samples are those of fit, as far as their numbers tell."""
    return seen is not None and grams.held_out is not None and grams.held_out.counts_as(seen)


def _left(before: Sequence[float], kept: LayerGrams, config: ForgetConfig) -> dict[int, float]:
    """The share that is left of each class that has fewer samples than before; nothing where nobody knows, or asks."""
    after = kept.origin.labels
    if not config.label_shift or len(before) != len(after):
        return {}
    return {c: r / n for c, (n, r) in enumerate(zip(before, after, strict=True)) if r < n}  # none is less than NaN


def _choices(task: str, grams: LayerGrams, retained: LayerGrams, before: Outcomes) -> set[int] | None:
    """The classes that samples may be taken for afterwards, and by which damage is told; None: all of them."""
    if task == "classes":
        return classes_that_stay(retained, before)
    if task == "poison":
        return classes_to_choose_from(grams, before)
    return classes_left(grams, before) if classes_gone(grams) else None


def _descent(net: nn.Module, space: CoreSpace, config: ForgetConfig, all_names: list[str]) -> Descent:
    layers = find_layers(net, all_names)
    weights = {name: layers[name].parameter for name in space.layers if name not in space.frozen}
    rule = "adam" if config.objective == "match" and config.task == "samples" else "sgd"  # neither where way="solve"
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
        descent.require_gradients(request.samples, request.config.batch_size)
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
