"""What a convolution's weight sees, as a map and a geometry: its patches can be had from it, and so can their Gram.

On each axis tap a of output o sees the pixel ``stride · o + dilation · a − before`` of the map, zero outside of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

PATCH_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 25}
"""How many numbers one chunk of patches may hold, by device."""


def patch_elements(device: str) -> int:
    """How many numbers one chunk of patches may hold on a kind of device."""
    return PATCH_ELEMENTS.get(device, PATCH_ELEMENTS["cpu"])


@dataclass(frozen=True)
class Axis:
    """One axis of a convolution: how taps and outputs meet pixels."""

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    def outputs(self, size: int) -> int:
        """How many outputs a map of this size has."""
        return (size + self.before + self.after - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    def pixel(self, tap: int, output: int) -> int:
        """Which pixel a tap of an output sees; it may lie beyond the border."""
        return self.stride * output + self.dilation * tap - self.before


class Patches:
    """The patches of a batch, [groups, n, C · kernel]: iterate over it for chunks of them.

    ``maps`` are [N, groups, C, *sizes]. Padding other than with zeros is already part of them.
    """

    def __init__(self, maps: Tensor, axes: tuple[Axis, ...]) -> None:
        self.maps = maps
        self.axes = axes

    @staticmethod
    def of(module: Any, x: Tensor, strided: bool = True) -> Patches:
        """What an ``nn.Conv`` module sees in an input, batched or not; every pixel if its stride is to be ignored."""
        x = x if x.dim() == len(module.kernel_size) + 2 else x.unsqueeze(0)
        sides = _padding(module)
        if module.padding_mode != "zeros":
            x = F.pad(x, [side for pair in reversed(sides) for side in pair], mode=module.padding_mode)
            sides = [(0, 0)] * len(sides)
        stride = module.stride if strided else (1,) * len(sides)
        geometry = zip(module.kernel_size, stride, module.dilation, sides, strict=True)
        axes = tuple(Axis(k, step, dilation, *side) for k, step, dilation, side in geometry)
        return Patches(x.unflatten(1, (module.groups, -1)), axes)

    @property
    def groups(self) -> int:
        return self.maps.shape[1]

    @property
    def d(self) -> int:
        return self.maps.shape[2] * math.prod(axis.kernel for axis in self.axes)

    @property
    def count(self) -> int:
        """How many patches there are in each group."""
        return len(self.maps) * math.prod(self.outputs)

    @property
    def outputs(self) -> list[int]:
        return [axis.outputs(size) for axis, size in zip(self.axes, self.maps.shape[3:], strict=True)]

    def __iter__(self) -> Iterator[Tensor]:
        """Chunks [groups, n, d]: the patches are a strided *view* of the padded maps, copied out a chunk at a time."""
        sides = [side for axis in reversed(self.axes) for side in (axis.before, axis.after)]
        x = F.pad(self.maps.flatten(1, 2), sides).unflatten(1, self.maps.shape[1:3]) if any(sides) else self.maps
        sample, group, channel, *steps = x.stride()
        view = x.as_strided(
            (self.groups, len(x), *self.outputs, x.shape[2], *(axis.kernel for axis in self.axes)),
            (
                group,
                sample,
                *(step * axis.stride for step, axis in zip(steps, self.axes, strict=True)),
                channel,
                *(step * axis.dilation for step, axis in zip(steps, self.axes, strict=True)),
            ),
            x.storage_offset(),
        )
        yield from _chunks(view, len(self.axes))


def _chunks(view: Tensor, axes: int) -> Iterator[Tensor]:
    """Split a patch view [groups, N, *out, channels, *kernel] along N, and along the first out axis if need be."""
    groups, samples, lines = view.shape[:3]
    d = view.shape[2 + axes :].numel()
    per_line = groups * view.shape[3 : 2 + axes].numel() * d
    most = patch_elements(view.device.type)
    line_step = max(1, min(lines, most // max(per_line, 1)))
    sample_step = max(1, most // max(per_line * lines, 1)) if line_step == lines else 1
    for i in range(0, samples, sample_step):
        for j in range(0, lines, line_step):
            yield view[:, i : i + sample_step, j : j + line_step].reshape(groups, -1, d)


def _padding(module: Any) -> list[tuple[int, int]]:
    """(before, after) for each axis."""
    if module.padding == "valid":
        return [(0, 0)] * len(module.kernel_size)
    if module.padding == "same":
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(side, side) for side in module.padding]
