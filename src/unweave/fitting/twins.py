"""Samples that are in two sets: those that were trained on must not be among those that are held out.

A sample's mark is a sum of its bits, as integers b of the width of its numbers, with weights w that depend on nothing
but the place: Σ b w modulo 2⁶⁴. Integers add up the same in any order, on any device and in any batch, so the same
sample has the same mark wherever it stands, and whatever its label. Two others hardly ever share one.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from unweave.distributed import sum_over_ranks
from unweave.errors import UnweaveWarning
from unweave.reading.batches import Inputs, tensors_of

ELEMENTS = {"cpu": 1 << 16, "cuda": 1 << 24}
"""How many numbers are turned into integers at a time: what a cache holds, or enough for a GPU."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""Bytes of a number → the integers that its bits are read as. 64 bits in halves: of round numbers only the highest bits
are not 0, and with a weight most of those would be beyond the 64th."""
SHARED = 0.05
"""A share of a set that may be alike samples of another one by chance."""
GOLDEN, MIX = -7046029254386353131, -4658895280553007687
"""Odd numbers of 64 bits, as signed ones, whose multiples look random."""


MOST_MARKED = 1 << 18
"""Of how many samples a :class:`Marked` set takes the marks, at least; so many tell whether another set is the same."""


class Marked:
    """The marks of a set whose batches come by: of all its samples, or the first of very many."""

    def __init__(self) -> None:
        self._parts, self._count = list[Tensor](), 0

    def show(self, inputs: Inputs) -> None:
        """Take the marks of a batch."""
        if self._count < MOST_MARKED:
            self._parts.append(marks(inputs))
            self._count += len(self._parts[-1])

    def marks(self) -> Tensor:
        """int64 [N], on the CPU."""
        return torch.cat(self._parts).cpu() if self._parts else torch.empty(0, dtype=torch.long)


class Twins:
    """How often samples of a set come by again: show it batches of another one. Nothing waits for a GPU until asked."""

    def __init__(self, own: Tensor) -> None:
        """``own``: the set's marks, int64 [N], on the device that batches will be on."""
        self._own, self._copies = own.unique(return_counts=True)
        self._times = torch.zeros_like(self._own)

    def show(self, inputs: Inputs) -> None:
        """Count the samples that are in this batch."""
        if not len(self._own):
            return
        found = marks(inputs)
        place = torch.searchsorted(self._own, found).clamp_max(len(self._own) - 1)
        self._times.index_add_(0, place, (self._own[place] == found).long())

    def met_once(self) -> int:
        """How many samples of the set came by once, on all ranks together; each of them asks, of the same set.

        Inputs of a few words or numbers may be alike by chance. Then some come more than once, or are in the set more
        than once, and those do not count.
        """
        times = self._times.clone()
        sum_over_ranks([times])
        return int(((times == 1) & (self._copies == 1)).sum())


def warn_of_trained_on(met: int, held_out: int) -> None:
    """Warn where some of the samples that are to be held out were trained on.

    As far as their marks were taken: of the first of very many training samples (MOST_MARKED on each rank), and with
    ``fit(resume=)`` after a crash of those that were read since.
    """
    if met > SHARED * held_out:
        warnings.warn(
            f"{met} of the {held_out} validation samples are among the training samples as well: their error is too "
            "low, and it is what later requests aim at. Unless their inputs are alike by chance, fit with a val= "
            "(--val) that was not trained on.",
            UnweaveWarning,
            stacklevel=4,  # the caller of fit(), and that is by_itself's
        )


def marks(inputs: Inputs) -> Tensor:
    """A mark for each sample of a batch, int64 [N], on its device."""
    return torch.stack([_marks(tensor, number) for number, tensor in enumerate(tensors_of(inputs), start=1)]).sum(0)


def _marks(tensor: Tensor, number: int) -> Tensor:
    """The part of one of the input's tensors [N, …], by its place among them."""
    plain = tensor.int_repr() if tensor.is_quantized else tensor.resolve_conj().resolve_neg()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    bits = plain.detach().contiguous().view(INTEGERS[plain.element_size()]).reshape(len(tensor), -1)
    weights = _mixed(torch.arange(bits.shape[1], device=bits.device) + (number << 40)) | 1
    rows = max(1, ELEMENTS.get(bits.device.type, 1 << 20) // max(1, bits.shape[1]))
    return torch.cat([(some.long() * weights).sum(1) for some in bits.split(rows)])


def _mixed(numbers: Tensor) -> Tensor:
    """Integers that look random, one for each."""
    mixed = numbers * GOLDEN
    mixed = (mixed ^ (mixed >> 29)) * MIX
    return mixed ^ (mixed >> 32)
