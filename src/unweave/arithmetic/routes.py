"""Which way to a convolution's Gram is the quickest: its patches, correlations of its maps, or all pixels of a map.

A rule and not a stopwatch, so that the same data gives the same bits on every run: the ways are priced by what they
do, at prices that ``benchmarks/gram_kernels.py`` measured (``results/bench-gram-*.json``).

On a GPU whose float64 is slow the patches are multiplied in digits (:mod:`unweave.arithmetic.split`), the correlations
in float64 still. By count the two are close: a 3×3 convolution of C channels on P pixels, in picoseconds on an RTX
4090::

    patches        2 · 19 · 81 P C² / 660 + 9 P C · 120          =  4.7 P C² + 1,080 P C
    correlations   (2 · 3 P C² + 2 · 192 P C) / 1.3 + 48 P C     =  4.6 P C² +   340 P C

The one saves operations by making them cheap, the other by making fewer; what is left is the cost of getting ready, and
that speaks for correlations of narrow maps. They also hold no patches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from unweave.arithmetic.correlate import CHUNK_ELEMENTS, tile_for
from unweave.arithmetic.fused import fits
from unweave.arithmetic.patches import Axis, Patches, patch_elements
from unweave.arithmetic.products import SPLIT_WIDE, arithmetic_for, block_of
from unweave.arithmetic.split import CHUNK, PRODUCTS
from unweave.arithmetic.structured import bundles_of, offsets


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
    small: float = 0.0
    """Multiplications of 8-bit whole numbers."""

    def __add__(self, other: Work) -> Work:
        return Work(
            self.products + other.products,
            self.transforms + other.transforms,
            self.moved + other.moved,
            self.calls + other.calls,
            self.small + other.small,
        )


@dataclass(frozen=True)
class Prices:
    """Nanoseconds for one of each kind of work on one kind of device; only their ratios matter."""

    products: float
    transforms: float
    moved: float
    calls: float
    small: float = 0.0

    def of(self, work: Work) -> float:
        return (
            self.products * work.products
            + self.transforms * work.transforms
            + self.moved * work.moved
            + self.calls * work.calls
            + self.small * work.small
        )


PRICES = {
    "cpu": Prices(products=0.0438, transforms=0.0921, moved=0.922, calls=178_000.0),
    # An H200. Fitted, but for the transforms, which are left to few cases where Triton is: raised by a fifth.
    "cuda": Prices(products=3.18e-5, transforms=4e-4, moved=1.38e-3, calls=330_000.0),
    # A GPU with slow float64. Not measured: the data sheet of an RTX 4090, but for the calls, which are the H200's.
    # Others of the kind have other speeds and nearly the same ratios.
    "split": Prices(products=1.55e-3, transforms=1.55e-3, moved=8e-3, calls=330_000.0, small=3.03e-6),
}

DIGITS_MOVED = 120 / 8
"""What is moved to cut a number of a row into digits, in numbers of float64."""

CLASSES_MOVED = 310 / 8
"""What is moved to add up an entry of a Gram, for each chunk of rows."""

NARROW = 32
"""A product of matrices narrower than this takes as long as one of this width."""

MARGIN = 0.6
"""The correlations are taken where they should take no more than this share of the time: on the measured geometries the
prices flatter them by a factor of 1.6 at most."""

PIXELS_WIDE = 2
"""All pixels of a map may be so many times as wide as a patch: their Gram is held until the patches' is made of it."""

PIXELS_SEEN = 256
"""Taps of outputs, at most, for whom pixels are looked up at the end: each is a call."""


def quickest(patches: Patches, device: str = "") -> str:
    """How the Gram of these patches is to be made on a kind of device (by default, their own).

    "patches", "correlations" (:mod:`unweave.arithmetic.structured`) or "pixels" (:mod:`unweave.arithmetic.pixels`).
    Kinds of device are "cpu", "cuda", and "split" for a GPU that splits products, see
    :func:`unweave.arithmetic.products.arithmetic_for`.
    """
    device = device or kind_of(patches.maps.device)
    device = device if device in PRICES else "cpu"
    prices = PRICES[device]
    rows = prices.of(work_of_patches(patches, device))
    # Correlations save what overlapping patches have in common; without any, there is a great number of them to price.
    common = any(overlap(axis) for axis in patches.axes)
    correlations = prices.of(work_of_correlations(patches, device)) if common else math.inf
    if has_few_pixels(patches):
        # Taken apart once, however many batches there are; but this may be the only one.
        pixels = prices.of(work_of_pixels(patches, device) + work_of_taking_apart(patches))
        if pixels < min(rows, correlations / MARGIN):
            return "pixels"
    return "correlations" if correlations < MARGIN * rows else "patches"


def overlap(axis: Axis) -> bool:
    """Whether there are pixels that two outputs see, on this axis."""
    return any(axis.dilation * taps % axis.stride == 0 for taps in range(1, axis.kernel))


def has_few_pixels(patches: Patches) -> bool:
    """Whether the Gram of all pixels may be held, and is taken apart in no time."""
    seen = math.prod(patches.outputs) * math.prod(axis.kernel for axis in patches.axes)
    return _pixels(patches) <= PIXELS_WIDE * patches.d and seen <= PIXELS_SEEN


def work_of(way: str, patches: Patches, device: str) -> Work:
    """What one of the ways does for a batch."""
    ways = {"patches": work_of_patches, "correlations": work_of_correlations, "pixels": work_of_pixels}
    return ways[way](patches, device)


def kind_of(device: torch.device) -> str:
    """Which prices are a device's."""
    return "split" if arithmetic_for(device) == "split" else device.type


def work_of_patches(patches: Patches, device: str) -> Work:
    """Copy the patches out and multiply them with themselves.

    Copied again as float64, and multiplied on and above the diagonal; or split, and multiplied digit by digit.
    """
    return _work_of_rows(patches.groups, patches.count, patches.d, device)


def work_of_pixels(patches: Patches, device: str) -> Work:
    """Multiply whole maps with themselves."""
    return _work_of_rows(patches.groups, len(patches.maps), _pixels(patches), device)


def work_of_taking_apart(patches: Patches) -> Work:
    """Make the patches' Gram of the pixels'."""
    return Work(moved=2.0 * patches.groups * (_pixels(patches) ** 2 + patches.d**2))


def _pixels(patches: Patches) -> int:
    """How many numbers all pixels of a map have, in each group."""
    return math.prod(patches.maps.shape[2:])


def _work_of_rows(groups: int, n: int, d: int, device: str) -> Work:
    """Copy n rows of each group out and multiply them with themselves."""
    rows = groups * n
    if device == "split" and d >= SPLIT_WIDE:
        chunks = groups * math.ceil(n / min(CHUNK, max(1, patch_elements("cuda") // (groups * d))))
        return Work(
            moved=rows * d * (1 + DIGITS_MOVED) + chunks * d**2 * CLASSES_MOVED,
            calls=chunks,
            small=float(PRODUCTS) * rows * d**2,
        )
    chunks = math.ceil(rows * d / patch_elements(_hardware(device)))
    half = (d + block_of(d)) / 2
    return Work(rows * d * max(half, NARROW), 0.0, 2.0 * rows * d + chunks * groups * d**2, chunks)


def _hardware(device: str) -> str:
    return "cuda" if device == "split" else device


def work_of_correlations(patches: Patches, device: str) -> Work:
    """For every piece: cut tiles and windows out, transform both, and multiply them point by point."""
    samples, groups, channels, *sizes = patches.maps.shape
    budget = CHUNK_ELEMENTS[_hardware(device)]
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
        fused = fits(points, len(tile), _hardware(device))
        # In the kernel they are hidden behind what is moved, unless float64 is slow.
        hidden = fused and device != "split"
        transforms = 0 if hidden or points == 1 else numbers * points * held
        moved = numbers * (2 * points + (0 if fused else held)) + chunks * points * parts * wide**2
        total += Work(numbers * points * max(wide, NARROW), transforms, moved, chunks)
    return total
