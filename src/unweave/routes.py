"""Which way to a convolution's Gram is the quicker: through its patches, or through correlations of its maps.

A rule and not a stopwatch, so that the same data gives the same bits on every run: both ways are priced by what they
do, at prices that ``benchmarks/gram_kernels.py`` measured (``results/bench-gram-*.json``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from unweave.correlate import CHUNK_ELEMENTS, tile_for
from unweave.fused import fits
from unweave.patches import Patches, patch_elements
from unweave.products import block_of
from unweave.structured import bundles_of, offsets


@dataclass(frozen=True)
class Work:
    """What one way does for a batch."""

    products: float = 0.0
    """Multiplications in the products that make the Gram."""
    transforms: float = 0.0
    """Multiplications in the transforms of tiles."""
    moved: float = 0.0
    """Numbers written on the way, and every time a product is added to the sums."""
    calls: float = 0.0
    """Products started."""

    def __add__(self, other: Work) -> Work:
        return Work(
            self.products + other.products,
            self.transforms + other.transforms,
            self.moved + other.moved,
            self.calls + other.calls,
        )


@dataclass(frozen=True)
class Prices:
    """Nanoseconds for one of each kind of work on one kind of device; only their ratios matter."""

    products: float
    transforms: float
    moved: float
    calls: float

    def of(self, work: Work) -> float:
        return (
            self.products * work.products
            + self.transforms * work.transforms
            + self.moved * work.moved
            + self.calls * work.calls
        )


PRICES = {
    "cpu": Prices(products=0.0438, transforms=0.0921, moved=0.922, calls=178_000.0),
    # An H200. Fitted, but for the transforms, which are left to few cases where Triton is: raised by a fifth.
    "cuda": Prices(products=3.18e-5, transforms=4e-4, moved=1.38e-3, calls=330_000.0),
}

NARROW = 32
"""A product of matrices narrower than this takes as long as one of this width."""

MARGIN = 0.6
"""The correlations are taken where they should take no more than this share of the time: on the measured geometries the
prices flatter them by a factor of 1.6 at most."""


def is_structured(patches: Patches, device: str = "") -> bool:
    """Whether the Gram of these patches is to be made of correlations, on a kind of device (by default, their own)."""
    device = device or patches.maps.device.type
    device = device if device in PRICES else "cpu"
    prices = PRICES[device]
    return prices.of(work_of_correlations(patches, device)) < MARGIN * prices.of(work_of_patches(patches, device))


def work_of_patches(patches: Patches, device: str) -> Work:
    """Copy the patches out, again as float64, and multiply them with themselves, on and above the diagonal."""
    rows, d = patches.groups * patches.count, patches.d
    chunks = math.ceil(rows * d / patch_elements(device))
    half = (d + block_of(d)) / 2
    return Work(rows * d * max(half, NARROW), 0.0, 2.0 * rows * d + chunks * patches.groups * d**2, chunks)


def work_of_correlations(patches: Patches, device: str) -> Work:
    """For every piece: cut tiles and windows out, transform both, and multiply them point by point."""
    samples, groups, channels, *sizes = patches.maps.shape
    budget = CHUNK_ELEMENTS[device]
    total = Work()
    for pieces, *more in bundles_of(patches.axes, tuple(sizes)):
        counts = offsets(patches.axes, tuple(piece.part for piece in pieces))
        tile = [tile_for(r) for r in counts]
        window = [t + r - 1 for t, r in zip(tile, counts, strict=True)]
        lines = [
            len(range(size)[p.left]) if isinstance(p.left, slice) else 1 for p, size in zip(pieces, sizes, strict=True)
        ]
        wide = channels * math.prod(len(p.left) for p in pieces if isinstance(p.left, tuple))
        points, held = math.prod(window), math.prod(tile) + math.prod(window)
        tiles = samples * math.prod(-(-line // t) for line, t in zip(lines, tile, strict=True))
        parts = groups * (1 + len(more))
        numbers = tiles * parts * wide
        chunks = math.ceil(numbers * points / budget)
        fused = fits(points, len(tile), device)
        transforms = 0 if fused or points == 1 else numbers * points * held
        moved = numbers * (2 * points + (0 if fused else held)) + chunks * points * parts * wide**2
        total += Work(numbers * points * max(wide, NARROW), transforms, moved, chunks)
    return total
