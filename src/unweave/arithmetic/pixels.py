"""The Gram of a convolution's patches from the Gram of its pixels, for maps of few pixels.

All pixels of a map side by side are one row of P · C numbers. Their Gram M has a block for each pair of pixels, and a
block of the patches' Gram is a sum of those::

    G[a, b]  =  Σ over outputs o of  M[pixel that tap a of o sees, pixel that tap b of o sees]

where both taps see the map and not its border.

A map of 2×2 pixels is one row of 4 C numbers, where its four patches of a 3×3 kernel are four rows of 9 C, more than
half of them zeros: a twentieth of the products is left. The sums are taken apart into blocks once, at the end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unweave.arithmetic.patches import Axis, Patches
from unweave.arithmetic.products import add_gram, mirror_, row_elements
from unweave.arithmetic.structured import add_cells


class PixelSums:
    """Adds up the Gram of the pixels of maps of one size, [groups, P · C, P · C], for one geometry."""

    def __init__(
        self, axes: tuple[Axis, ...], sizes: tuple[int, ...], groups: int, channels: int, device: torch.device
    ) -> None:
        self.axes = axes
        self.sizes = sizes
        self.groups = groups
        self.channels = channels
        self.wide = channels * math.prod(sizes)
        self.sums = torch.zeros(groups, self.wide, self.wide, dtype=torch.float64, device=device)

    def add(self, patches: Patches, times: int = 1) -> None:
        for part in patches.maps.split(max(1, row_elements(self.sums.device) // (self.groups * self.wide))):
            rows = part.to(self.sums.device).flatten(3).permute(1, 0, 3, 2)  # [groups, n, P, C]
            add_gram(self.sums, rows.flatten(2), times)

    def gram(self) -> Tensor:
        """The patches' Gram [groups, d, d], with rows and columns in the order of the weight: channel, then tap."""
        c, k, pixels = self.channels, math.prod(axis.kernel for axis in self.axes), math.prod(self.sizes)
        blocks = torch.zeros(k, k, self.groups, c, c, dtype=torch.float64, device=self.sums.device)
        mirror_(self.sums)
        cells = self.sums.view(self.groups, pixels, c, pixels, c).permute(1, 3, 0, 2, 4)
        for output in pixels_seen(self.axes, self.sizes):
            places = list(zip(output, output.values(), strict=True))
            for a, pixel in places:
                add_cells(blocks[a], cells[pixel], places, 1)
        return blocks.permute(2, 3, 0, 4, 1).reshape(self.groups, c * k, c * k)


def pixels_seen(axes: Sequence[Axis], sizes: Sequence[int]) -> list[dict[int, int]]:
    """For each output, which pixel of the map each of its taps sees; taps that see the border are left out."""
    lines = [
        [
            {tap: pixel for tap in range(axis.kernel) if 0 <= (pixel := axis.pixel(tap, output)) < size}
            for output in range(axis.outputs(size))
        ]
        for axis, size in zip(axes, sizes, strict=True)
    ]
    found = []
    for parts in itertools.product(*lines):
        output = {0: 0}
        for axis, size, part in zip(axes, sizes, parts, strict=True):
            output = {t * axis.kernel + tap: p * size + pixel for t, p in output.items() for tap, pixel in part.items()}
        found.append(output)
    return found
