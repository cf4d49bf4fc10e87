"""Samples that are in two sets: those to be forgotten must not be among those that are held out.

A sample's mark is a sum of its bits, as integers b of the width of its numbers, with weights w that depend on nothing
but the place: Σ b w modulo 2⁶⁴. Integers add up the same in any order, on any device and in any batch, so the same
sample has the same mark wherever it stands, and whatever its label; two others share one about once in 2⁶⁴.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unweave.batches import Inputs, tensors_of
from unweave.samples import Samples

ELEMENTS = 1 << 22
"""How many numbers are turned into integers at a time."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of a number → the integers that its bits are read as."""
GOLDEN, MIX = -7046029254386353131, -4658895280553007687
"""Odd numbers of 64 bits, as signed ones, whose multiples look random."""


class Twins:
    """Which samples of a set come by again: show it batches of another one. Nothing waits for a GPU until asked."""

    def __init__(self, samples: Samples, size: int = 1024) -> None:
        self._own = torch.cat([marks(inputs) for inputs, _ in samples.pairs(size)])
        self._met = torch.zeros_like(self._own, dtype=torch.bool)

    def show(self, inputs: Inputs) -> None:
        """Note which samples are in this batch."""
        self._met |= torch.isin(self._own, marks(inputs))

    def met(self) -> list[bool]:
        """For each sample of the set, whether it came by."""
        found: list[bool] = self._met.tolist()
        return found


def marks(inputs: Inputs) -> Tensor:
    """A mark for each sample of a batch, int64 [N], on its device."""
    return torch.stack([_marks(tensor, number) for number, tensor in enumerate(tensors_of(inputs), start=1)]).sum(0)


def _marks(tensor: Tensor, number: int) -> Tensor:
    """The part of one of the input's tensors [N, …], by its place among them."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = plain.detach().contiguous().view(INTEGERS[plain.element_size()]).reshape(len(tensor), -1)
    weights = _mixed(torch.arange(bits.shape[1], device=bits.device) + (number << 40)) | 1
    rows = max(1, ELEMENTS // max(1, bits.shape[1]))
    return torch.cat([(some.long() * weights).sum(1) for some in bits.split(rows)])


def _mixed(numbers: Tensor) -> Tensor:
    """Integers that look random, one for each."""
    mixed = numbers * GOLDEN
    mixed = (mixed ^ (mixed >> 29)) * MIX
    return mixed ^ (mixed >> 32)
