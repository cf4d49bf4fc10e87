"""What the processes of one job (its ranks) do together; on one process, nothing.

Grams add up, so ranks need not talk while they stream. They talk before, to see that they mean the same model, and
after, to put together what they have found. Whoever fails in between says so in place of that, and the others leave
with the same words instead of waiting: see :func:`together`. A rank that is killed says nothing; its closed connections
tell the others (gloo), or the launcher ends them (torchrun).

Inside an initialised process group ``fit``, ``forget`` and ``CoreSpace.from_grams`` are calls that every rank has to
make. :func:`alone` lets one rank make them by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unweave.errors import MismatchError, RankError

BUCKET_ELEMENTS = 1 << 22
"""How many numbers travel at once: 32 MiB of float64, so that neither latency nor the copy counts."""

STRIP = 64
"""A Gram travels as strips of so many rows, each from the diagonal on: the upper triangle and hardly more."""

_TOLD = "_unweave_told"
"""Marks an error that the other ranks have heard of: it is not told twice on its way out."""

_ALONE: ContextVar[bool] = ContextVar("alone", default=False)


def ranks() -> int:
    """How many processes work together; 1 without a process group."""
    there = dist.is_available() and dist.is_initialized() and not _ALONE.get()
    return dist.get_world_size() if there else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return dist.get_rank() if ranks() > 1 else 0


@contextmanager
def alone() -> Iterator[None]:
    """Inside, this process works by itself though there is a process group."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


# ------------------------------------------------------------------------------------------------------------ words


def exchange(stage: str, value: Any = None, error: str | None = None) -> list[Any]:
    """Hand a small value to all ranks; returns those of all, by rank.

    Args:
        stage: where the caller is; ranks in different places do not understand each other.
        value: anything that can be pickled.
        error: what has gone wrong here, in place of a value.

    Raises:
        RankError: another rank failed, is somewhere else, or is gone.
    """
    if ranks() == 1:
        return [value]
    heard: list[Any] = [None] * ranks()
    with _talking():
        dist.all_gather_object(heard, (stage, value, error))
    for other, (theirs, _, words) in enumerate(heard):
        if words is not None:
            raise RankError(f"Rank {other} failed, so rank {rank()} stopped too. Nothing was written. {words}", other)
        if theirs != stage:
            raise RankError(
                f"Rank {other} is at {theirs!r}, rank {rank()} at {stage!r}. Make the same calls, in the same order, "
                "on every rank; what one rank does by itself goes into `with unweave.distributed.alone():`."
            )
    return [value for _, value, _ in heard]


@contextmanager
def together(stage: str) -> Iterator[None]:
    """Work that ranks do by themselves: on the way out they hear whether all have succeeded.

    Raises:
        RankError: another rank failed. A rank that fails itself raises its own error.
    """
    try:
        yield
    except RankError:  # the others know
        raise
    except Exception as error:
        if ranks() > 1 and not getattr(error, _TOLD, False):
            setattr(error, _TOLD, True)
            # Whatever the others answer, and whether or not they still do: here it is the own error that counts.
            with suppress(RankError):
                exchange(stage, error=f"{type(error).__name__}: {error}")
        raise
    exchange(stage)


def agree(stage: str, facts: Mapping[str, str]) -> None:
    """Check that all ranks mean the same.

    Raises:
        MismatchError: on every rank, with the first rank that differs from rank 0.
    """
    first, *others = exchange(stage, dict(facts))
    for other, theirs in enumerate(others, start=1):
        for what, value in first.items():
            if theirs[what] != value:
                raise MismatchError(
                    f"Rank {other} has another {what} than rank 0: {_difference(theirs[what], value)}. Give every rank "
                    "the same."
                )


def _difference(here: str, there: str) -> str:
    """Two texts from the word on in which they differ."""
    pairs = zip(here.split(), there.split(), strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(here.split()), len(there.split())))
    one, other = (" ".join(text.split()[same:][:6]) or "nothing more" for text in (here, there))
    return f"{one!r} against {other!r}"


# ---------------------------------------------------------------------------------------------------------- numbers


def add_up(grams: Sequence[Tensor]) -> None:
    """Sum symmetric tensors [groups, d, d] over the ranks, in place; only upper triangles travel."""
    if ranks() == 1:
        return
    strips = [gram[:, start : start + STRIP, start:] for gram in grams for start in range(0, gram.shape[-1], STRIP)]
    sum_over_ranks(strips)
    for gram in grams:
        upper = gram.triu()
        gram.copy_(upper.add_(gram.triu(1).mT))


def sum_over_ranks(parts: Sequence[Tensor]) -> None:
    """Sum tensors over the ranks, in place, in buckets of one dtype."""
    if ranks() == 1:
        return
    dtypes = list(dict.fromkeys(part.dtype for part in parts))
    for bucket in itertools.chain(*(_buckets(p for p in parts if p.dtype == dtype) for dtype in dtypes)):
        flat = torch.cat([part.reshape(-1) for part in bucket])
        carried = flat.to(_carrier(flat.device))
        with _talking():
            dist.all_reduce(carried)
        for part, summed in zip(bucket, carried.split([part.numel() for part in bucket]), strict=True):
            part.copy_(summed.view(part.shape))


def _buckets(parts: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for part in parts:
        if bucket and sum(p.numel() for p in bucket) + part.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket = []
        bucket.append(part)
    if bucket:
        yield bucket


def broadcast(tensor: Tensor, source: int) -> Tensor:
    """A tensor as the source rank has it; the others pass one of the same shape and dtype, to say where it goes."""
    if ranks() == 1:
        return tensor
    carried = tensor.contiguous().to(_carrier(tensor.device))
    with _talking():
        dist.broadcast(carried, source)
    return carried.to(tensor.device)


def part_of(count: int) -> tuple[slice, float]:
    """This rank's part of so many samples, and its share of them: an even cut, nothing for some where they are few."""
    start, end = (count * r // ranks() for r in (rank(), rank() + 1))
    return slice(start, end), (end - start) / count


def divided(costs: Mapping[str, float]) -> dict[str, int]:
    """Which rank does which work: the dearest first, each to the rank that has least to do so far."""
    load = [0.0] * ranks()
    owner: dict[str, int] = {}
    for name in sorted(costs, key=lambda name: -costs[name]):
        owner[name] = min(range(len(load)), key=lambda r: load[r])
        load[owner[name]] += costs[name]
    return owner


def _carrier(device: torch.device) -> torch.device:
    """Where a tensor must be for the backend to send it: gloo sends from the CPU, NCCL from the rank's own GPU."""
    backend = dist.get_backend()
    if backend == "gloo":
        return torch.device("cpu")
    if backend == "nccl" and device.type == "cpu":
        return torch.device("cuda", torch.cuda.current_device())
    return device


@contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what gloo and NCCL raise when a connection is closed or nobody answers
        reason = str(error).strip().partition("\n")[0]
        raise RankError(
            f"Rank {rank()} lost the others: one of them ended without a word, or does not answer. Nothing was "
            f"written. See what that rank has printed last, and start the job again ({reason})."
        ) from error
