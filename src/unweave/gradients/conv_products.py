"""Convolutions as matrix products, for gradients of single samples.

A batch's weight gradient of a convolution is one product. Asked for sample by sample, ``torch.func.vmap`` makes it a
convolution with as many groups as there are samples, for which no library has a fast kernel. Written as patches times
weights,

    y [L, O] = patches [L, C·k] · Wᵀ        L outputs of a sample, k taps, C and O channels

it stays a product for each sample, O × L × C·k, which every device is good at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from unweave.arithmetic.patches import Axis, Patches
from unweave.arithmetic.small_maps import runs_small_maps_as_products

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@contextmanager
def convolutions_as_products(net: nn.Module) -> Iterator[None]:
    """Inside, the plain convolutions of a network compute what they always do, as products.

    Convolutions with groups, subclasses and layers that have a way of their own stay as they are. For a backward pass
    the patches are kept, which are taps / stride² times as large as the map.
    """
    layers = [layer for layer in net.modules() if isinstance(layer, Convolution) and _plain(layer)]
    for layer in layers:
        layer.forward = partial(patches_times_weights, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _plain(layer: Convolution) -> bool:
    """Whether it is PyTorch's own, and nobody has changed what it does but for how it runs small maps."""
    own = type(layer).__module__ != nn.Conv2d.__module__ or "forward" in vars(layer)
    return not own and layer.groups == 1 and ("_conv_forward" not in vars(layer) or runs_small_maps_as_products(layer))


def patches_times_weights(layer: Convolution, input: Tensor) -> Tensor:
    """What the layer makes of an input [N, C, *sizes] or [C, *sizes]."""
    seen = Patches.of(layer, input)
    if min(seen.outputs) < 1:
        refused: Tensor = layer._conv_forward(input, layer.weight, layer.bias)  # which says what is wrong
        return refused
    maps = seen.maps.squeeze(1).movedim(1, -1)
    patches = torch.cat([_tap(maps, seen.axes, taps) for taps in product(*(range(a.kernel) for a in seen.axes))], -1)
    weight = layer.weight.movedim(1, -1).flatten(1)  # taps, then channels: as the patches have them
    out = (patches @ weight.mT).movedim(-1, 1)
    out = out if layer.bias is None else out + layer.bias.view(-1, *(1,) * len(seen.axes))
    return out if input.dim() == len(seen.axes) + 2 else out.squeeze(0)


def _tap(maps: Tensor, axes: tuple[Axis, ...], taps: tuple[int, ...]) -> Tensor:
    """The pixels that one tap sees of maps [N, *sizes, C], for every output; zero beyond the border."""
    for dim, (axis, tap) in enumerate(zip(axes, taps, strict=True), start=1):
        size, count = maps.shape[dim], axis.outputs(maps.shape[dim])
        seen = [i for i in range(count) if 0 <= axis.pixel(tap, i) < size]
        if not seen:
            maps = maps.new_zeros(*maps.shape[:dim], count, *maps.shape[dim + 1 :])
            continue
        first, last = axis.pixel(tap, seen[0]), axis.pixel(tap, seen[-1])
        inner = maps.narrow(dim, first, last - first + 1)
        inner = inner[(slice(None),) * dim + (slice(None, None, axis.stride),)]
        maps = _bordered(inner, dim, seen[0], count - 1 - seen[-1])
    return maps


def _bordered(maps: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Maps with zeros before and after them on one axis."""
    sides = [0, 0] * (maps.dim() - 1 - dim) + [before, after]
    return torch.nn.functional.pad(maps, sides) if before or after else maps
