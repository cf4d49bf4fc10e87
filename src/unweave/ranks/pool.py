"""What the ranks have found, put together: sums, counts and outcomes. On one process, what it has found itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from unweave.behaviour.outcomes import Outcomes, observe
from unweave.behaviour.spread import MarginCounts
from unweave.distributed import add_up, exchange, rank, ranks, together
from unweave.errors import DataError, ModelError
from unweave.grams import LayerGrams, Origin
from unweave.ranks.fsdp import in_step, is_spread
from unweave.ranks.shard import Opened, check_share, require_shares
from unweave.reading.batches import Doubts, Inputs, Loader, checked, map_tensors, run
from unweave.reading.samples import Samples


def pooled(grams: LayerGrams) -> LayerGrams:
    """The Grams of all ranks' samples together, on every rank; these ones are used up.

    Raises:
        RankError: another rank failed.
    """
    if ranks() == 1:
        return grams
    counts = exchange("the sums", (grams.origin, [info.rows for info in grams.layers.values()], grams.margins))
    add_up([grams.grouped(name) for name in grams])
    rows = [sum(each) for each in zip(*(own for _, own, _ in counts), strict=True)]
    layers = {n: replace(info, rows=k) for (n, info), k in zip(grams.layers.items(), rows, strict=True)}
    theirs = [origin for origin, _, _ in counts if origin.samples]
    origin = replace(grams.origin, samples=sum(o.samples for o in theirs), labels=_labels_of_all(theirs))
    margins = _margins_of_all([own for origin, _, own in counts if origin.samples])
    return LayerGrams({name: grams.grouped(name) for name in grams}, layers, origin, grams.held_out, margins)


def _margins_of_all(counts: Sequence[MarginCounts | None]) -> MarginCounts | None:
    """How the margins of all ranks' samples are spread; unknown if it is on one of them."""
    known = [one.counts for one in counts if one is not None]
    if not known or len(known) < len(counts) or len({one.shape for one in known}) > 1:
        return None
    return MarginCounts(torch.stack(known).sum(0))


def _labels_of_all(origins: Sequence[Origin]) -> tuple[int, ...]:
    """How many samples of all ranks have each label; unknown if it is on one of them."""
    if len({len(origin.labels) for origin in origins}) != 1:
        return ()
    return tuple(sum(each) for each in zip(*(origin.labels for origin in origins), strict=True))


def facts_about(grams: LayerGrams) -> dict[str, str]:
    """What ranks must have in common before they work with Grams."""
    return {
        "set of Grams": f"{grams.origin.model[:12]} {grams.samples} samples",
        "knowledge of margins": str(grams.margins is not None),
        "held-out profile": "none" if grams.held_out is None else grams.held_out.digest(),
        "choice of layers": " ".join(f"{name}:{info.weight_shape}" for name, info in grams.layers.items()),
    }


def observe_shares(
    net: nn.Module,
    loader: Loader,
    what: str,
    device: torch.device,
    show: Callable[[Inputs], None] | None = None,
    tempered: bool = False,
) -> Outcomes:
    """The outcomes of a model (already at rest) on the shares of all ranks, rank by rank; ``show`` sees each input too.

    ``tempered``: with their losses at other temperatures.

    Raises:
        DataError: a batch that cannot be used, or no sample on any rank.
    """
    doubts = Doubts(later=device.type != "cpu")
    share = opened(loader, what)
    with apart(net, f"the {what} data"):
        batches = checked(share, what, device, doubts, may_be_empty=ranks() > 1)
        batches = batches if show is None else _shown(batches, show)
        if is_spread(net):
            batches = in_step(batches, what, lambda inputs: run(net, inputs))
        own = observe(net, batches, doubts, tempered)
    return _joined(exchange(f"the outcomes of the {what} data", own), what)


def _shown(batches: Iterable[tuple[Inputs, Tensor]], show: Callable[[Inputs], None]) -> Iterator[tuple[Inputs, Tensor]]:
    for inputs, labels in batches:
        show(inputs)
        yield inputs, labels


def opened(loader: Loader, what: str) -> Loader:
    """A rank's share, seen to be one; on one process the loader itself.

    Raises:
        DataError: it is padded, or another rank's as well.
    """
    if ranks() == 1:
        return loader
    with together(f"the {what} loader"):
        check_share(loader, what)
        share = Opened(loader, what)
    require_shares(share, what)
    return share


def apart(net: nn.Module, stage: str) -> AbstractContextManager[None]:
    """:func:`together`, where the ranks do run the model by themselves; a spread one they run in step anyway."""
    return nullcontext() if is_spread(net) else together(stage)


def observe_together(net: nn.Module, samples: Samples, size: int) -> Outcomes:
    """The outcomes of a model (already at rest) on samples that every rank has, each rank running some batches of them.

    Raises:
        ModelError: on every rank, where outputs are not finite on one.
    """
    if ranks() == 1:
        return observe(net, samples.pairs(size))
    batches = list(samples.batches(size))
    failure, own = None, Outcomes.none()
    with together("a look at the forget set"):
        try:
            own = observe(net, [(inputs, labels) for inputs, labels, _ in batches[rank() :: ranks()]])
        except ModelError as error:  # the request decides what to make of it, and all ranks must decide the same
            failure = str(error)
    heard = exchange("the outcomes of the forget set", (own, failure))
    failures = [words for _, words in heard if words is not None]
    if failures:
        raise ModelError(failures[0])
    return in_order(_joined([theirs for theirs, _ in heard], "forget"), [positions for _, _, positions in batches])


def in_order(outcomes: Outcomes, positions: Sequence[Tensor]) -> Outcomes:
    """Outcomes that came rank by rank, each with every n-th batch, as the samples stand; positions are by batch."""
    if ranks() == 1:
        return outcomes
    came = torch.cat([positions[i] for r in range(ranks()) for i in range(r, len(positions), ranks())])
    return outcomes.where(came.cpu().argsort())


def _joined(parts: Sequence[Outcomes], what: str) -> Outcomes:
    found = [part for part in parts if len(part)]
    if not found:
        raise DataError(f"The {what} loader is empty on every rank. Pass loaders with at least one sample.")
    return found[0] if len(parts) == 1 else Outcomes.concat(found)


def gathered_samples(loader: Loader, what: str, device: torch.device) -> Samples:
    """The samples of all ranks' shares, on every rank, in the order that :func:`unweave.shard` took them from.

    Raises:
        DataError: a batch that cannot be used, or no sample on any rank.
    """
    if ranks() == 1:
        return Samples.load(loader, what, device)
    share = opened(loader, what)
    with together(f"the {what} data"):
        own = list(checked(share, what, may_be_empty=True))
    shares = exchange(f"the samples of the {what} data", [(_moved(x, "cpu"), y.cpu()) for x, y in own])
    longest = max(len(share) for share in shares)
    batches = [share[i] for i in range(longest) for share in shares if i < len(share)]
    if not batches:
        raise DataError(f"The {what} loader is empty on every rank. Pass loaders with at least one sample.")
    return Samples([(_moved(inputs, device), labels.to(device)) for inputs, labels in batches])


def _moved(inputs: Inputs, device: torch.device | str) -> Inputs:
    return map_tensors(inputs, lambda t: t.to(device))
