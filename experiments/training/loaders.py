"""A loader whose images stay on the device: shuffled and augmented anew each time it is iterated."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from experiments.data import Labelled
from experiments.training.augmentation import augment


class Shuffled:
    """Batches of a labelled set in random order.

    Args:
        data: on its device.
        batch_size: of every batch but the last, which takes what is left.
        seed: of order and augmentation; the n-th iteration of two loaders with one seed is the same.
        padding: of the random crop, with a random mirror; None: images as they are.
    """

    def __init__(self, data: Labelled, batch_size: int, *, seed: int, padding: int | None = None) -> None:
        self.data, self.batch_size, self.padding = data, batch_size, padding
        self.generator = torch.Generator(data.x.device).manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.data) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.data), generator=self.generator, device=self.data.x.device)
        for chosen in order.split(self.batch_size):
            x = self.data.x[chosen]
            yield x if self.padding is None else augment(x, self.padding, self.generator), self.data.y[chosen]
