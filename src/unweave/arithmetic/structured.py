"""The Gram of a convolution's patches without the patches.

Block (a, b) of the Gram, for taps a and b, is Σ over outputs o of x(o + a) x(o + b)ᵀ. If there were outputs beyond the
border too, it would depend on b − a alone: 13 correlations of a map with itself, up to symmetry, in place of the 81
blocks of a 3×3 kernel. So take those, less what the outputs that do not exist would have seen. On one axis::

    Σ over outputs  =  Σ over all positions  −  Σ over the positions o beyond the border        (each a single line)

and on several axes the product of these: the map, less the lines at the border, less its columns, plus the corners.
A line o is seen by few taps (one, for a 3-wide kernel with padding 1), whose pixels it holds side by side.

A stride of s makes o + a the pixel s·o + a: the map falls into s phases on each axis, taps of the same phase keep the
structure, and pairs of phases are correlated with each other. A dilation δ splits outputs into phases as well. Both are
phases modulo L = lcm(s, δ).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unweave.arithmetic.correlate import Correlation
from unweave.arithmetic.patches import Axis, Patches

Part = tuple[str, tuple[int, ...]]
"""What is summed on one axis: ("all", (phase of a, phase of b)), or ("line", the taps that see a line)."""

Key = tuple[Part, ...]
"""One part for each axis."""


@dataclass(frozen=True)
class Piece:
    """One part on one axis of a map of known size, as pixels of the map.

    ``left`` and ``right`` are the pixels for taps a and b, ``low`` the first offset between them, in their own steps.
    """

    part: Part
    left: slice | tuple[int, ...]
    right: slice | tuple[int, ...]
    low: int


class PatchSums:
    """Adds up the structured Gram of one geometry over batches of maps, whatever their sizes."""

    def __init__(self, axes: tuple[Axis, ...], groups: int, channels: int, device: torch.device) -> None:
        self.axes = axes
        self.groups = groups
        self.channels = channels
        self.device = device
        self.sums: dict[tuple[Key, ...], Correlation] = {}

    def add(self, patches: Patches, times: int = 1) -> None:
        for bundle in bundles_of(patches.axes, tuple(patches.maps.shape[3:])):
            keys = tuple(_key(pieces) for pieces in bundle)
            if keys not in self.sums:
                channels = self.channels * _lines_in(keys[0])
                groups = self.groups * len(keys)
                self.sums[keys] = Correlation(offsets(self.axes, keys[0]), groups, channels, self.device)
            left = [_select(patches.maps, [piece.left for piece in pieces]) for pieces in bundle]
            alike = all(piece.left == piece.right for pieces in bundle for piece in pieces)
            right = left if alike else [_select(patches.maps, [p.right for p in pieces]) for pieces in bundle]
            self.sums[keys].add(left, right, _lows(self.axes, bundle[0]), times)

    def gram(self) -> Tensor:
        """The Gram [groups, d, d], with rows and columns in the order of the weight: channel, then tap."""
        c, k = self.channels, math.prod(axis.kernel for axis in self.axes)
        blocks = torch.zeros(k, k, self.groups, c, c, dtype=torch.float64, device=self.device)
        for key, found in self._found():
            sign = (-1) ** sum(kind == "line" for kind, _ in key)
            cells = self._cells(key, found)
            # A row of blocks at a time: all of them at once would be the whole Gram again.
            for i, (own, transposed) in enumerate(places_of(self.axes, key)):
                add_cells(blocks[i], cells, own, sign)
                add_cells(blocks[:, i], cells.mT, transposed, sign)
        return blocks.permute(2, 3, 0, 4, 1).reshape(self.groups, c * k, c * k)

    def _found(self) -> Iterator[tuple[Key, Tensor]]:
        """Every key that was summed, and its correlations [*offsets, groups, S · C, S · C]."""
        for keys, correlation in self.sums.items():
            yield from zip(keys, correlation.result().split(self.groups, dim=-3), strict=True)

    def _cells(self, key: Key, found: Tensor) -> Tensor:
        """A part's correlations as blocks of channels, [offsets · S · S, groups, C, C]."""
        lines, c = _lines_in(key), self.channels
        split = found.reshape(-1, self.groups, lines, c, lines, c)
        return split.permute(0, 2, 4, 1, 3, 5).reshape(-1, self.groups, c, c)


def add_cells(blocks: Tensor, cells: Tensor, places: Sequence[tuple[int, int]], sign: int) -> None:
    """Add cells to some of k blocks [k, groups, C, C]; places are (which block, which cell).

    No block twice: a GPU would add the two in either order, and the sum would not have the same bits every time.
    """
    if places:
        to, of = torch.tensor(places, device=blocks.device).T
        blocks.index_add_(0, to, cells[of], alpha=sign)


def _select(maps: Tensor, pixels: Sequence[slice | tuple[int, ...]]) -> Tensor:
    """Maps [N, groups, S · C, *sizes]: a slice of each axis, or S single lines of it side by side as channels."""
    for axis, chosen in enumerate(pixels, start=3):
        if isinstance(chosen, slice):
            maps = maps[(slice(None),) * axis + (chosen,)]
    stacked = list(itertools.product(*(chosen if isinstance(chosen, tuple) else (None,) for chosen in pixels)))
    if stacked == [(None,) * len(pixels)]:
        return maps
    cells = [maps[(..., *(slice(None) if at is None else slice(at, at + 1) for at in cell))] for cell in stacked]
    return torch.cat(cells, 2) if len(cells) > 1 else cells[0]


# ------------------------------------------------------------------------------------------- one axis: phases and steps


def _modulus(axis: Axis) -> int:
    return math.lcm(axis.stride, axis.dilation)


def _phase(axis: Axis, tap: int) -> int:
    return axis.dilation * tap % _modulus(axis)


def _step(axis: Axis, tap: int) -> int:
    return axis.dilation * tap // _modulus(axis)


def _taps(axis: Axis, phase: int) -> list[int]:
    return [tap for tap in range(axis.kernel) if _phase(axis, tap) == phase]


def _lowest(axis: Axis, phases: tuple[int, ...]) -> int:
    """The least offset, in steps of L, from a tap of the first phase to one of the second."""
    a, b = (_taps(axis, phase) for phase in phases)
    return _step(axis, b[0]) - _step(axis, a[-1])


def _reach(axis: Axis, phases: tuple[int, ...]) -> int:
    """How many offsets there are between taps of two phases: consecutive ones, for taps of one phase are L apart."""
    return sum(len(_taps(axis, phase)) for phase in phases) - 1


def halved(axes: Sequence[Axis], key: Key) -> int | None:
    """The axis on which offsets below 0 follow from those above by F(−e) = F(e)ᵀ; None if there is none."""
    if any(kind == "all" and of[0] != of[1] for kind, of in key):
        return None
    wide = (i for i, (kind, of) in enumerate(key) if kind == "all" and _reach(axes[i], of) > 1)
    return next(wide, None)


def offsets(axes: Sequence[Axis], key: Key) -> list[int]:
    """How many offsets are taken on each axis."""
    counts = [1 if kind == "line" else _reach(axis, of) for axis, (kind, of) in zip(axes, key, strict=True)]
    half = halved(axes, key)
    return [(count + 1) // 2 if i == half else count for i, count in enumerate(counts)]


Places = list[tuple[int, int]]
"""Which block of a row, or column, of a Gram is which cell of a part's correlations."""


@functools.lru_cache(maxsize=256)
def places_of(axes: tuple[Axis, ...], key: Key) -> list[tuple[Places, Places]]:
    """Where a part's cells [*offsets, S, S] go: for each tap a, (b, cell of block (a, b)) and, where (b, a) has no cell
    of its own, (b, cell to be transposed there)."""
    half, counts, lines = halved(axes, key), offsets(axes, key), _lines_in(key)
    found: dict[tuple[int, int], int] = {}
    for pairs in itertools.product(*(_pairs(axis, key[i], i == half) for i, axis in enumerate(axes))):
        i = j = where = left = right = 0
        for axis, count, pair in zip(axes, counts, pairs, strict=True):
            i, j, where = i * axis.kernel + pair.a, j * axis.kernel + pair.b, where * count + pair.at
            left, right = left * pair.lines + pair.line_a, right * pair.lines + pair.line_b
        found[i, j] = (where * lines + left) * lines + right
    places: list[tuple[Places, Places]] = [([], []) for _ in range(math.prod(axis.kernel for axis in axes))]
    for (i, j), cell in found.items():
        places[i][0].append((j, cell))
        if (j, i) not in found:
            places[i][1].append((j, cell))
    return places


class _Pair(NamedTuple):
    """Two taps of an axis whose block a part holds: at which of its offsets, or which of its lines they see."""

    a: int
    b: int
    at: int = 0
    lines: int = 1
    line_a: int = 0
    line_b: int = 0


def _pairs(axis: Axis, part: Part, half: bool) -> list[_Pair]:
    """The pairs of taps that a part has a cell for, on one axis."""
    kind, of = part
    if kind == "line":
        return [_Pair(a, b, 0, len(of), of.index(a), of.index(b)) for a in of for b in of]
    low = 0 if half else _lowest(axis, of)
    pairs = [_Pair(a, b, _step(axis, b) - _step(axis, a) - low) for a in _taps(axis, of[0]) for b in _taps(axis, of[1])]
    return [pair for pair in pairs if pair.at >= 0]


@functools.lru_cache(maxsize=256)
def pieces_of(axes: tuple[Axis, ...], sizes: tuple[int, ...]) -> list[tuple[Piece, ...]]:
    """Every product of parts that has to be summed for maps of these sizes; of two that are transposes, the first."""
    splits = [_splits(axis, size) for axis, size in zip(axes, sizes, strict=True)]
    products = [pieces for split in itertools.product(*splits) for pieces in itertools.product(*split)]
    return [pieces for pieces in products if _key(pieces) <= _transposed(_key(pieces))]


@functools.lru_cache(maxsize=256)
def bundles_of(axes: tuple[Axis, ...], sizes: tuple[int, ...]) -> list[list[tuple[Piece, ...]]]:
    """The pieces, those at the border in bundles of one shape: they are small, and each product started costs time."""
    bundles: dict[Any, list[tuple[Piece, ...]]] = {}
    for pieces in pieces_of(axes, sizes):
        key = _key(pieces)
        border = any(kind == "line" for kind, _ in key)
        shape = [(_length(p.left, size), _length(p.right, size)) for p, size in zip(pieces, sizes, strict=True)]
        like = tuple(offsets(axes, key)), tuple(_lows(axes, pieces)), tuple(shape), _lines_in(key)
        bundles.setdefault(like if border else id(pieces), []).append(pieces)
    return list(bundles.values())


def _length(pixels: slice | tuple[int, ...], size: int) -> int:
    return len(range(size)[pixels]) if isinstance(pixels, slice) else 1


def _lines_in(key: Key) -> int:
    """How many lines, or corners, a part holds side by side."""
    return math.prod(len(taps) for kind, taps in key if kind == "line")


def _lows(axes: Sequence[Axis], pieces: Sequence[Piece]) -> list[int]:
    half = halved(axes, _key(pieces))
    return [0 if i == half else piece.low for i, piece in enumerate(pieces)]


def _key(pieces: Sequence[Piece]) -> Key:
    return tuple(piece.part for piece in pieces)


def _transposed(key: Key) -> Key:
    return tuple((kind, of[::-1] if kind == "all" else of) for kind, of in key)


def _splits(axis: Axis, size: int) -> Iterator[list[Piece]]:
    """The pieces of one axis by phase of its outputs: output L/s · o + t sees pixel L · o + δ · a + s · t − before."""
    modulus = _modulus(axis)
    for t in range(modulus // axis.stride):
        outputs = -(-(axis.outputs(size) - t) // (modulus // axis.stride))
        if outputs > 0:
            start = axis.stride * t - axis.before
            yield [*_whole(axis, size, start), *_lines(axis, size, start, outputs)]


def _whole(axis: Axis, size: int, start: int) -> Iterator[Piece]:
    """All positions, by pairs of phases; a tap sees pixel L · o + δ · a + start, so its phase in the map is shifted."""
    modulus = _modulus(axis)
    phases = sorted({_phase(axis, tap) for tap in range(axis.kernel)})
    for a, b in itertools.product(phases, repeat=2):
        left, right = (a + start) % modulus, (b + start) % modulus
        low = _lowest(axis, (a, b)) + (b + start) // modulus - (a + start) // modulus
        yield Piece(("all", (a, b)), slice(left, None, modulus), slice(right, None, modulus), low)


def _lines(axis: Axis, size: int, start: int, outputs: int) -> Iterator[Piece]:
    """The positions o beyond the border that some tap would see."""
    modulus, last = _modulus(axis), axis.dilation * (axis.kernel - 1) + start
    for o in range(-(last // modulus) - 1, (size - 1 - start) // modulus + 1):
        pixels = {tap: modulus * o + axis.dilation * tap + start for tap in range(axis.kernel)}
        seen = {tap: pixel for tap, pixel in pixels.items() if 0 <= pixel < size}
        if seen and not 0 <= o < outputs:
            yield Piece(("line", tuple(seen)), tuple(seen.values()), tuple(seen.values()), 0)
