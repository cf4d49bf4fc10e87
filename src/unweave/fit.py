"""fit(): stream a data set through a model once and add up what each weight sees.

Most weights see rows of each sample. Some see the same rows whatever the samples are, once a batch: the embedding of
positions 0, 1, 2 … is the classic. Such rows are added once for every sample of the batch, as if each had brought them
along; else the sums would depend on the batching, and subtracting a few batches would leave nothing of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Sized
from contextlib import ExitStack
from dataclasses import asdict, replace
from os import PathLike

import torch
from torch import nn

from unweave.behaviour.outcomes import ClassProfile, Outcomes, read_batch
from unweave.behaviour.spread import MarginCounts
from unweave.distributed import agree, exchange, rank, ranks, together
from unweave.errors import ConfigError, DataError, LayerError
from unweave.fitting.borrowed import owners_only
from unweave.fitting.known import warn_of_unknown
from unweave.fitting.resume import Kept
from unweave.fitting.steady import Shapes, require_steady, warn_of_augmentation
from unweave.fitting.sums import GramSum
from unweave.fitting.taps import Sink, constant_owners, tapped
from unweave.fitting.twins import Marked, Twins, warn_of_trained_on
from unweave.grams import CONVOLUTIONS, LayerGrams, Manner, Origin
from unweave.layers import Layer, find_layers
from unweave.ranks.fsdp import in_step, is_spread, reshard
from unweave.ranks.pool import apart, facts_about, observe_shares, opened, pooled
from unweave.ranks.shard import Opened, require_each_once, require_order
from unweave.reading.batches import Doubts, Inputs, Loader, checked, device_of, run
from unweave.reading.rest import at_rest, by_itself, check_model, fingerprint, unwrap

Progress = Callable[[str, int, int | None], None]
"""Called with (stage, done, total or None if unknown) as work goes on."""

DOUBTFUL_BATCHES = 64
"""How many batches on a GPU may pass before their values are known to be sound."""


@by_itself()
def fit(
    model: nn.Module,
    loader: Loader,
    val: Loader | None = None,
    layers: Sequence[str] | int | None = None,
    *,
    transform: str = "",
    stride: str = "layer",
    tf32: bool = False,
    resume: str | PathLike[str] | None = None,
    save_every: int = 200,
    progress: Progress | None = None,
) -> LayerGrams:
    """Add up G = Σ r rᵀ per layer over a data set, in one pass, and leave the model as it was.

    Do this once, after training, while the training set is still there. Feed the samples *without random
    augmentation*: a later request subtracts the very same rows, so both must see the same inputs. The first samples of
    a DataLoader are read twice to see whether they are (an ``UnweaveWarning`` says so where they are not).

    Autocast and inference mode make no difference: they are off inside.

    Inside an initialised process group every rank calls this with its own share of the samples, as
    :func:`unweave.shard` cuts it, and every rank gets the sums over all of them.

    Args:
        model: maps a batch to logits [N, C].
        loader: yields ``(inputs, labels)``.
        val: held-out samples. Their error, loss and quantiles of margin and entropy are kept per class, and how sure
            the model is of itself on them (aggregates only), so that a later request needs no validation set. An
            ``UnweaveWarning`` tells where more of the training samples than of them are wrong.
        layers: names to restrict to, or an int for the last k; None for every layer of a known type.
        transform: a label for the preprocessing; Grams with different labels refuse to mix.
        stride: "one" reads strided convolutions at every pixel, as the paper's code does; "layer" is right.
        tf32: run float32 convolutions as TF32, several times as fast on a GPU that has it. A request reads its samples
            in the same way, and what it subtracts is what was added as long as it runs on the same kind of GPU; that
            the batch makes no difference is checked on the first one. Elsewhere rows agree to about 1e-3 only.
        resume: a folder to keep the sums in as they grow, so that after a crash the same call goes on from there. The
            loader must yield the same batches again. The files are removed at the end. Validation samples are looked
            for only among the training samples that were read since the crash.
        save_every: how many batches may pass until the sums are written there.
        progress: called as ``progress("fit", batches_done, batches_or_None)``.

    Raises:
        DataError: a loader or batch that cannot be used, or fewer than two samples.
        ModelError: outputs that are not logits, or weights that are not finite.
        LayerError: a layer that cannot be handled, or that did not run on the first batch.
        ConfigError: ``tf32`` where there is no GPU, or where it makes a sample's rows depend on its batch.
        MismatchError: ranks with different models, or a folder with sums of something else.
        StoreError: the folder cannot be written, or a file in it is damaged.
        RankError: another rank failed or is gone.
    """
    net = unwrap(model)
    manner = Manner(transform, stride, "tf32" if tf32 else "float32")
    share, kept = _begin(net, loader, layers, manner, resume, save_every)
    marked = Marked()
    with apart(net, "the pass over the training data"):
        changes = rank() == 0 and warn_of_augmentation(loader)  # once, not once for every rank
        show = None if val is None else marked.show
        own, trained = stream(net, share, "training", layers, manner, progress, kept, show=show)
    grams, unsteady = pooled(own), any(exchange("whether samples change", changes))
    if grams.samples < 2:
        held = "is empty" if grams.samples == 0 else "holds one sample"
        raise DataError(f"The training loader {held}. A training set has at least two samples.")
    held_out = None
    if val is not None:
        seen, met = _held_out(net, val, marked)
        if rank() == 0:
            warn_of_trained_on(met, len(seen))
            warn_of_unknown(trained, seen)  # by this rank's share, which is as good as any other
        held_out = ClassProfile.of(seen, grams.origin.labels, met)
    reshard(net)
    if kept is not None:
        kept.remove()
    here = grams.to("cpu")
    origin = replace(here.origin, unsteady=unsteady)
    return LayerGrams({name: here.grouped(name) for name in here}, here.layers, origin, held_out, here.margins)


def observe_val(
    net: nn.Module, val: Loader, show: Callable[[Inputs], None] | None = None, tempered: bool = False
) -> Outcomes:
    """The outcomes of held-out samples; ``show`` sees their inputs too. ``tempered``: see :func:`observe_shares`."""
    with at_rest(net, convolutions=None):
        return observe_shares(net, val, "validation", device_of(net), show, tempered)


def _held_out(net: nn.Module, val: Loader, trained_on: Marked) -> tuple[Outcomes, int]:
    """What the model makes of held-out samples, and how many of them are training samples of any rank."""
    everybodys = torch.cat(exchange("the marks of the training samples", trained_on.marks()))
    twins = Twins(everybodys.to(device_of(net)))
    seen = observe_val(net, val, twins.show, tempered=True)
    return seen, twins.met_once()


def _begin(
    net: nn.Module,
    loader: Loader,
    layers: Sequence[str] | int | None,
    manner: Manner,
    resume: str | PathLike[str] | None,
    save_every: int,
) -> tuple[Loader, Kept | None]:
    """See that the ranks mean the same, and where an earlier pass has left off: what is left to read, and its file."""
    with together("the training loader"):
        require_each_once(loader, "training")
    share = opened(loader, "training")
    if ranks() > 1:
        with together("the model"):
            empty = _nothing_of(net, find_layers(net, layers), manner)
        agree("the model", facts_about(empty) | asdict(manner))
    if resume is None:
        return share, None
    with together("the sums to resume from"):
        require_order(loader, "After a crash nobody could tell which batches are summed already")
        share = share if isinstance(share, Opened) else Opened(share, "training")
        kept = Kept(resume, save_every, share.digest or "")
        share.skip(kept.batches)
    return share, kept


def stream(
    net: nn.Module,
    loader: Loader,
    what: str,
    layers: Sequence[str] | int | None,
    manner: Manner,
    progress: Progress | None = None,
    kept: Kept | None = None,
    made_from: str | None = None,
    show: Callable[[Inputs], None] | None = None,
) -> tuple[LayerGrams, Outcomes]:
    """One pass over a loader, by this rank alone: the Grams without profiles, on the model's device, and the outcomes.

    ``show`` sees the inputs too. With ``kept``, the Grams are its total, on the CPU, and the outcomes those since it
    was resumed. ``made_from`` is the model's fingerprint where it is known already: to fetch and hash all weights takes
    a while.
    """
    if manner.stride not in ("layer", "one"):
        raise ConfigError(f"Invalid stride: {manner.stride!r}. Supported: 'layer', 'one'.")
    found = find_layers(net, layers)
    check_model(net)
    _check_memory(found)
    empty = _nothing_of(net, found, manner, made_from)
    if kept is not None:
        kept.require_same_origin(empty)
    sums = {name: GramSum(layer) for name, layer in found.items()}
    sinks = {owner: Sink(sums[layer.name]) for layer in found.values() for owner in layer.owners}
    outcomes: list[Outcomes] = []
    total, saved, shapes = _length(loader), 0, Shapes()
    device = device_of(net)
    doubts = Doubts(later=device.type != "cpu")
    batches = checked(loader, what, device, doubts, may_be_empty=ranks() > 1 or kept is not None)
    if is_spread(net):
        batches = in_step(batches, what, lambda inputs: _idle(net, sinks, inputs))
    with at_rest(net, convolutions=CONVOLUTIONS[manner.convolutions]), ExitStack() as hooks:
        for done, (inputs, labels) in enumerate(batches, start=1):
            if done == 1:
                with owners_only(net, found):
                    constant = constant_owners(net, found, inputs)
                if manner.convolutions == "tf32" and what == "training":
                    require_steady(net, inputs)
                hooks.enter_context(tapped(net, sinks, unstrided=manner.stride == "one"))
            shapes.note(inputs)
            if show is not None:
                show(inputs)
            for owner in constant:
                sinks[owner].times = len(labels)
            outcomes.append(read_batch(net, inputs, labels, doubts))
            if done == 1:
                _check_fired(sums, found)
            if done % DOUBTFUL_BATCHES == 0:
                doubts.settle()
            at = loader.taken if isinstance(loader, Opened) else done
            if kept is not None and at % kept.every == 0:
                doubts.settle()
                kept.add(_closed(sums, empty.origin, Outcomes.concat(outcomes[saved:])), at)
                saved = len(outcomes)
            if progress is not None:
                progress("fit", at, total)
        doubts.settle()
    if what == "training" and rank() == 0:
        shapes.warn()
    last = Outcomes.concat(outcomes[saved:])
    grams, joined = _closed(sums, empty.origin, last), last if saved == 0 else Outcomes.concat(outcomes)
    return (grams if kept is None else kept.finished(grams)), joined


def _nothing_of(net: nn.Module, found: dict[str, Layer], manner: Manner, made_from: str | None = None) -> LayerGrams:
    """The record of what Grams of a model would be made from, without sums."""
    made_from = made_from or fingerprint(net)
    infos = {name: GramSum(layer).info() for name, layer in found.items()}
    origin = Origin(made_from, _dtype_of(net), 0, **asdict(manner), key=made_from)
    return LayerGrams(dict.fromkeys(infos, torch.empty(0, 0, 0)), infos, origin)


def _closed(sums: dict[str, GramSum], origin: Origin, seen: Outcomes) -> LayerGrams:
    """The Grams of what has been summed since the last time; each sum is freed as soon as its Gram is made of it."""
    infos = {name: total.info() for name, total in sums.items()}
    grams = {name: total.close() for name, total in sums.items()}
    if not len(seen):
        return LayerGrams(grams, infos, origin)
    counts = tuple(seen.labels.bincount(minlength=seen.classes).tolist())
    made_from = replace(origin, samples=len(seen), labels=counts)
    return LayerGrams(grams, infos, made_from, margins=MarginCounts.of(seen))


def _idle(net: nn.Module, sinks: dict[str, Sink], inputs: Inputs) -> None:
    """Run the model for the sake of the other ranks, without counting anything."""
    for sink in sinks.values():
        sink.times = 0
    run(net, inputs)


def _length(loader: Loader) -> int | None:
    """How many batches there are; None where nobody knows (a DataLoader over a stream has a len that raises)."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:
        return None


def _check_fired(sums: dict[str, GramSum], layers: dict[str, Layer]) -> None:
    silent = [name for name, total in sums.items() if total.rows == 0]
    if silent:
        kinds = ", ".join(f"{name!r} ({layers[name].kind.name})" for name in silent)
        raise LayerError(
            f"Not run in the first batch: {kinds}. Either the layer is unused, or its forward is bypassed; what it "
            "sees is unknown, so it must not move. Leave it out: pass layers= with the other names."
        )


def _check_memory(layers: dict[str, Layer]) -> None:
    """Refuse before the pass what could not be held; the Grams end up in the machine's memory, wherever they grow."""
    sizes = {name: 8 * layer.groups * layer.d**2 for name, layer in layers.items()}
    if not hasattr(os, "sysconf"):  # not a POSIX system: nobody to ask
        return
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if ranks() > 1 else 1  # every rank holds all of them
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sharing * sum(sizes.values()) > memory:
        widest = max(sizes, key=lambda name: sizes[name])
        times = f"{sharing} times " if sharing > 1 else ""
        raise LayerError(
            f"The Grams would take {times}{sum(sizes.values()) / 2**30:.1f} GiB of the machine's {memory / 2**30:.1f} "
            f"GiB; the largest is {widest!r} with d = {layers[widest].d}. Leave wide layers out with layers=."
        )


def _dtype_of(net: nn.Module) -> str:
    """The least precise floating-point type among the parameters: it sets how exactly two passes agree."""
    dtypes = {p.dtype for p in net.parameters() if p.is_floating_point()}
    return str(max(dtypes, key=lambda t: torch.finfo(t).eps)).removeprefix("torch.")
