"""Tiles cut out of maps and taken to Toom and Cook's points in one kernel, for GPUs where Triton is installed.

Done one operation at a time, every pixel is written as float64, copied once for each window it is in, and read again by
the transform: some 200 bytes a number of the map, which is what takes the time. The kernel reads the map and writes the
points. Where it cannot be used, :mod:`unweave.arithmetic.correlate` does the same with plain operations; where Triton
is installed but cannot build it, a warning says why.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

MOST = 64
"""The most points, and pixels of a window, that the kernel holds at once."""

TILES = 8
"""Tiles a program works through, so that it reads the transform once for all of them."""

CHANNELS = 32
"""Channels a program takes at once."""

WARPS = 4


@functools.cache
def has_triton() -> bool:
    """Whether Triton is there and works; PyTorch's builds for GPUs bring it along, but not the C compiler it needs."""
    if importlib.util.find_spec("triton") is None or not torch.cuda.is_available():
        return False
    try:
        right = _try_out("cuda")
    except Exception as error:  # a compiler, a header, a folder that can be written: there is no end of what may lack
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    else:
        if right:
            return True
        reason = "its result is wrong"
    warnings.warn(
        f"Triton is installed but its kernel for Grams cannot be used here: {reason}. The sums are the same without "
        "it, but take longer. With a C compiler in reach (CC=...) it is usually fine.",
        stacklevel=2,
    )
    return False


def _try_out(device: str) -> bool:
    """Whether the kernel, in the shape that a 3×3 convolution needs, takes the pixels of a window to themselves."""
    pixels = torch.arange(48.0, device=device)
    same = padded(torch.eye(48, dtype=torch.float64, device=device))
    found = points_of(same, 48, [pixels.view(1, 1, 1, 6, 8)], [0, 0], [1, 1], [4, 4], [6, 8])
    return torch.equal(found.flatten(), pixels.double())


def fits(points: int, axes: int, device: str) -> bool:
    """Whether the kernel can take windows with so many pixels, on so many axes, to as many points on a device."""
    return device == "cuda" and 1 < points <= MOST and axes <= 2 and has_triton()


def padded(transform: Tensor) -> Tensor:
    """The transform with rows and columns of zeros up to powers of two, as the kernel multiplies it."""
    rows, columns = (max(16, 1 << (n - 1).bit_length()) for n in transform.shape)
    whole = transform.new_zeros(rows, columns)
    whole[: len(transform), : transform.shape[1]] = transform
    return whole


def points_of(
    transform: Tensor,
    points: int,
    maps: Sequence[Tensor],
    first: Sequence[int],
    tiles: Sequence[int],
    tile: Sequence[int],
    window: Sequence[int],
) -> Tensor:
    """The windows of all tiles at the points, float64 [points · groups of all maps, K, C] with K = N · tiles.

    Args:
        transform: :func:`padded`, from the pixels of a window to points.
        points: how many points there are.
        maps: each [N, groups, C, *sizes], all of one shape; zero outside of their sizes.
        first: the pixel the first window begins at, on each axis.
        tiles: how many tiles there are on each axis.
        tile: from one window to the next, in pixels.
        window: the size of a window in pixels.
    """
    from unweave.arithmetic.fused_kernel import windows_to_points

    samples, groups, channels = maps[0].shape[:3]
    count, total = samples * math.prod(tiles), groups * len(maps)
    out = torch.empty(points * total, count, channels, dtype=torch.float64, device=maps[0].device)
    # A map with one axis is one with two, of a single line.
    missing = 2 - len(tile)
    origin, boxes = [0] * missing + list(first), [1] * missing + list(tiles)
    (step_y, step_x), (window_y, window_x) = [1] * missing + list(tile), [1] * missing + list(window)
    grid = (-(-count // TILES), groups * -(-channels // CHANNELS))
    for i, x in enumerate(maps):
        image = x.unsqueeze(3) if missing else x
        if image.dtype in (torch.bfloat16, torch.half):  # the kernel has no way from these to double
            image = image.float()
        sizes = (*image.shape[3:], *boxes, groups, total, i * groups, count, channels, *image.stride())
        shape = (step_y, step_x, window_y, window_x, points, *transform.shape, CHANNELS, TILES)
        with torch.cuda.device_of(image):  # Triton starts kernels on the current GPU, whichever the tensors are on
            windows_to_points[grid](image, transform, out, *origin, *sizes, *shape, num_warps=WARPS)
    return out
