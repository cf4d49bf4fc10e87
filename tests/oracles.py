"""Slow answers that share no code with the package: explicit loops over positions, in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn


def conv_rows(conv: nn.Module, x: Tensor) -> Tensor:
    """The patches a convolution multiplies, [groups, n, d]: samples in order, positions in order."""
    axes = len(conv.kernel_size)
    padded = x.double() if x.dim() == axes + 2 else x.double()[None]
    for axis in range(axes):
        padded = _pad(padded, axis + 2, *_sides(conv, axis), conv.padding_mode)
    patches = [list(_patches(conv, sample)) for sample in padded]
    flat = torch.stack([patch for sample in patches for patch in sample])  # [n, channels, *kernel]
    per_group = flat.shape[1] // conv.groups
    return torch.stack([flat[:, g * per_group : (g + 1) * per_group].flatten(1) for g in range(conv.groups)])


def _sides(conv: nn.Module, axis: int) -> tuple[int, int]:
    if conv.padding == "valid":
        return 0, 0
    if conv.padding == "same":
        total = conv.dilation[axis] * (conv.kernel_size[axis] - 1)
        return total // 2, total - total // 2
    return conv.padding[axis], conv.padding[axis]


def _pad(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """Build the padded axis one slice at a time from the definition of each mode."""
    size = x.shape[axis]
    slices = []
    for position in range(-before, size + after):
        source = _source(position, size, mode)
        chosen = x.select(axis, source if source is not None else 0)
        slices.append(chosen if source is not None else torch.zeros_like(chosen))
    return torch.stack(slices, axis)


def _source(position: int, size: int, mode: str) -> int | None:
    if 0 <= position < size:
        return position
    if mode == "zeros":
        return None
    if mode == "circular":
        return position % size
    if mode == "replicate":
        return min(max(position, 0), size - 1)
    return -position if position < 0 else 2 * (size - 1) - position


def _patches(conv: nn.Module, sample: Tensor) -> Iterator[Tensor]:
    spans = [d * (k - 1) + 1 for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    starts = [
        range(0, size - span + 1, step) for size, span, step in zip(sample.shape[1:], spans, conv.stride, strict=True)
    ]
    for corner in itertools.product(*starts):
        window = [slice(c, c + span, d) for c, span, d in zip(corner, spans, conv.dilation, strict=True)]
        yield sample[(slice(None), *window)]


def pixel_rows(transpose: nn.Module, x: Tensor) -> Tensor:
    """The channel vectors of all input pixels, [groups, n, in / groups]."""
    x = x.double() if x.dim() == len(transpose.kernel_size) + 2 else x.double()[None]
    per_group = x.shape[1] // transpose.groups
    rows = [
        [
            sample[(slice(g * per_group, (g + 1) * per_group), *pixel)]
            for sample in x
            for pixel in itertools.product(*map(range, x.shape[2:]))
        ]
        for g in range(transpose.groups)
    ]
    return torch.stack([torch.stack(group) for group in rows])


def attended(
    attention: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masked: Tensor | None = None,
) -> Tensor:
    """What multi-head attention hands to its output projection, [N, L, E], head by head and query by query.

    Inputs are [N, length, E]; ``masked`` [N, L, S] is True where a query must not look.
    """
    embed, heads = attention.embed_dim, attention.num_heads
    bias = attention.in_proj_bias if attention.in_proj_bias is not None else torch.zeros(3 * embed).double()
    q, k, v = (
        x @ attention.in_proj_weight[i * embed : (i + 1) * embed].T + bias[i * embed : (i + 1) * embed]
        for i, x in enumerate((query, key, value))
    )
    result = torch.zeros_like(q)
    width = embed // heads
    for n, head, i in itertools.product(range(q.shape[0]), range(heads), range(q.shape[1])):
        part = slice(head * width, (head + 1) * width)
        scores = k[n, :, part] @ q[n, i, part] / math.sqrt(width)
        if masked is not None:
            scores = scores.masked_fill(masked[n, i], -math.inf)
        result[n, i, part] = scores.softmax(0) @ v[n, :, part]
    return result
