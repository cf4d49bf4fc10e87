"""Correlations of two maps at a box of small offsets, by the fewest products: Toom and Cook's short correlations.

For maps A [N, groups, C, *sizes] and B, zero outside their own sizes, and offsets e = low … low + r − 1 on each axis::

    F(e) = Σ over samples and pixels u of  A(u) B(u + e)ᵀ        [*r, groups, C, C]

One axis, a tile of T pixels: Σ over t < T of a(t) b(t + e) for r offsets takes P = T + r − 1 products, not T · r. With
V(m) [P, m] the powers 0 … m − 1 of P points (the last one at infinity)::

    F = V(r)ᵀ [ (V(T) a) ⊙ (V(P)⁻ᵀ b) ]        a: the tile, b: the window of P pixels it is compared with

More axes are Kronecker products of these. The products are sums over tiles and samples, so each point is one matrix
product [C, K] × [K, C], and V(r)ᵀ can wait until everything is added up. All of it in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from unweave.arithmetic.fused import fits, padded, points_of

POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
"""Small points with exact powers; with infinity, enough for P = 8. More of them would lose digits."""

TILE = 4
"""The longest tile: with 5 offsets (a 3-wide kernel) it takes 8 products in place of 20."""

CHUNK_ELEMENTS = {"cpu": 5 << 16, "cuda": 1 << 25}
"""How many float64 numbers the transform of one chunk of tiles may hold, by device: 2.5 MiB and 256 MiB."""


def tile_for(r: int) -> int:
    """How many pixels a tile has with r offsets: one where nothing is gained, or the points would not suffice."""
    return 1 if r == 1 else max(1, min(TILE, len(POINTS) + 2 - r))


@functools.cache
def scheme(r: int) -> tuple[Tensor, Tensor, Tensor]:
    """V(T), V(P)⁻ᵀ and V(r) for r offsets; the identity scheme where a tile is one pixel."""
    tile = tile_for(r)
    if tile == 1:
        one = torch.eye(r, dtype=torch.float64)
        return one.sum(1, keepdim=True), one, one
    count = tile + r - 1
    return _powers(count, tile), torch.linalg.inv(_powers(count, count)).T.contiguous(), _powers(count, r)


def _powers(count: int, m: int) -> Tensor:
    finite = [[point**j for j in range(m)] for point in POINTS[: count - 1]]
    return torch.tensor([*finite, [0.0] * (m - 1) + [1.0]], dtype=torch.float64)


class Correlation:
    """Adds up F(e) over batches for a box of r offsets on each axis; what is held does not depend on the maps' sizes.

    ``sums`` is [P · groups, C, C] with P the product of the axes' numbers of points.
    """

    def __init__(self, counts: Sequence[int], groups: int, channels: int, device: torch.device) -> None:
        self.counts = tuple(counts)
        self.groups = groups
        self.tiles = [tile_for(r) for r in counts]
        schemes = [scheme(r) for r in counts]
        # On the device once and for all: the host must not wait for a copy in every batch.
        self.of_tile, self.of_window, self.of_offset = (
            _kronecker(parts).to(device) for parts in zip(*schemes, strict=True)
        )
        self.sums = torch.zeros(len(self.of_tile) * groups, channels, channels, dtype=torch.float64, device=device)
        self._fused = [padded(self.of_tile), padded(self.of_window)] if device.type == "cuda" else []

    def add(self, a: Sequence[Tensor], b: Sequence[Tensor], low: Sequence[int], times: int = 1) -> None:
        """Add the correlations of pairs of maps at offsets from ``low`` on, each counted ``times`` times.

        Maps are [N, groups of one pair, C, *sizes], of one shape; the pairs follow each other as groups.
        """
        if not a[0].numel() or not b[0].numel():  # a phase that a small map does not have
            return
        budget = CHUNK_ELEMENTS.get(a[0].device.type, CHUNK_ELEMENTS["cpu"])
        for samples, start, tiles in self._chunks(a[0].shape, budget):
            left = [x[samples] for x in a]
            right = left if b is a else [x[samples] for x in b]
            self._add_chunk(
                left, right, low, [t * tile for t, tile in zip(start, self.tiles, strict=True)], tiles, times
            )

    def _add_chunk(
        self, a: list[Tensor], b: list[Tensor], low: Sequence[int], first: list[int], tiles: list[int], times: int
    ) -> None:
        """Add the products of a box of tiles that begins at pixel ``first`` of the left maps."""
        width, whole = [t + r - 1 for t, r in zip(self.tiles, self.counts, strict=True)], [0] * len(low)
        start = [f + e for f, e in zip(first, low, strict=True)]
        if fits(len(self.of_window), len(low), a[0].device.type):
            left = points_of(self._fused[0], len(self.of_tile), a, first, tiles, self.tiles, self.tiles)
            right = points_of(self._fused[1], len(self.of_tile), b, start, tiles, self.tiles, width)
            self.sums.baddbmm_(left.mT, right, alpha=times)
            return
        box = start, self._spans(tiles, width)
        if b is a and all(e <= 0 < e + r for e, r in zip(low, self.counts, strict=True)):
            seen = cut_out(b, *box)  # a map with itself: the windows hold the tiles
            left = self._points(self.of_tile, seen, [-e for e in low], tiles, self.tiles)
        else:
            own = self._spans(tiles, self.tiles)
            left = self._points(self.of_tile, cut_out(a, first, own), whole, tiles, self.tiles)
            seen = cut_out(b, *box)
        right = self._points(self.of_window, seen, whole, tiles, width)
        self.sums.baddbmm_(left.mT, right, alpha=times)

    def _spans(self, tiles: list[int], width: list[int]) -> list[int]:
        """How many pixels ``tiles`` tiles take, if each is ``width`` wide."""
        return [(count - 1) * tile + w for count, tile, w in zip(tiles, self.tiles, width, strict=True)]

    def _chunks(self, shape: torch.Size, budget: int) -> Iterator[tuple[slice, list[int], list[int]]]:
        """Samples, the first tile on each axis, and how many tiles there are; bounded by the samples, then by lines."""
        tiles = [-(-size // tile) for size, tile in zip(shape[3:], self.tiles, strict=True)]
        per_line = self.groups * shape[2] * len(self.of_tile) * math.prod(tiles[1:])
        lines = max(1, min(tiles[0], budget // per_line))
        step = max(1, budget // (per_line * lines))
        for i in range(0, shape[0], step):
            for j in range(0, tiles[0], lines):
                yield slice(i, i + step), [j, *[0] * len(tiles[1:])], [min(lines, tiles[0] - j), *tiles[1:]]

    def _points(
        self, transform: Tensor, region: Tensor, inset: list[int], tiles: list[int], width: list[int]
    ) -> Tensor:
        """The pixels of every tile of a region [groups, *spans, n, C] at the points, [P · groups, K, C]."""
        group, *axes, sample, channel = region.stride()
        view = region.as_strided(
            (*width, len(region), *tiles, *region.shape[-2:]),
            (*axes, group, *(tile * s for tile, s in zip(self.tiles, axes, strict=True)), sample, channel),
            sum(skip * s for skip, s in zip(inset, axes, strict=True)),
        )
        pixels = view.reshape(math.prod(width), -1)
        pixels = pixels if len(transform) == 1 else transform @ pixels
        return pixels.view(len(transform) * self.groups, -1, region.shape[-1])

    def result(self) -> Tensor:
        """F, [*r, groups, C, C]."""
        sums = self.sums.view(len(self.of_tile), -1)
        return (self.of_offset.T @ sums).view(*self.counts, self.groups, *self.sums.shape[1:])


def cut_out(maps: Sequence[Tensor], first: Sequence[int], spans: Sequence[int]) -> Tensor:
    """A box of maps [N, groups, C, *sizes] as float64 [all groups, *spans, N, C], zero where it reaches beyond them."""
    samples, groups, channels, *sizes = maps[0].shape
    inside = [(max(0, f), min(size, f + span)) for f, span, size in zip(first, spans, sizes, strict=True)]
    region = torch.zeros(groups * len(maps), *spans, samples, channels, dtype=torch.float64, device=maps[0].device)
    if all(low < high for low, high in inside):
        source = (slice(None),) * 3 + tuple(slice(low, high) for low, high in inside)
        target = [slice(low - f, high - f) for (low, high), f in zip(inside, first, strict=True)]
        for part, x in zip(region.split(groups), maps, strict=True):
            part[(slice(None), *target)] = x[source].permute(1, *range(3, x.dim()), 0, 2)
    return region


def _kronecker(parts: Sequence[Tensor]) -> Tensor:
    return functools.reduce(torch.kron, parts)
