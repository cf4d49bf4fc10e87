"""How each known layer type reads its input: as rows [n, d] or [groups, n, d] that its weight multiplies.

Some types also say how the gradient of their output is read: as slopes [groups, n, m], one for each row, so that the
gradient of the weight is Σ slope rowᵀ.

Pure functions of a module and what it is called with; :mod:`unweave.layers` says which type uses which.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unweave.arithmetic.patches import Patches

Rows = Tensor | Iterable[Tensor]
"""Rows [n, d] or [groups, n, d], whole or in chunks; :class:`Patches` are chunks whose Gram can be had without them."""

Tap = tuple[str, Callable[[], Rows]]
"""The path of a weight's owner below the hooked module ("" for the module itself), and how to get its rows."""


def linear_rows(module: nn.Module, x: Tensor) -> Tensor:
    """The vectors along the last axis, [n, in]."""
    return x.reshape(-1, x.shape[-1])


def conv_rows(module: Any, x: Tensor, strided: bool = True) -> Patches:
    """Patches of the padded input, [groups, n, in/groups · kernel], a bounded chunk at a time."""
    return Patches.of(module, x, strided)


def linear_slopes(module: nn.Module, gradient: Tensor) -> Tensor:
    """Along the last axis of the output, [1, n, out]: one for each of :func:`linear_rows`."""
    return gradient.reshape(1, -1, gradient.shape[-1])


def conv_slopes(module: Any, gradient: Tensor) -> Tensor:
    """The channels of each output pixel, [groups, n, out/groups]: one for each of :func:`conv_rows`."""
    pixels = gradient.unflatten(1, (module.groups, -1)).flatten(3)  # [N, groups, out/groups, pixels]
    slopes: Tensor = pixels.permute(1, 0, 3, 2).reshape(module.groups, -1, pixels.shape[2])
    return slopes


def conv_transpose_rows(module: Any, x: Tensor) -> Tensor:
    """Input pixels: y = Σ over taps k of W[:, :, k]ᵀ x(pixel), so each tap sees the channels of each pixel."""
    axes = len(module.kernel_size)
    x = x if x.dim() == axes + 2 else x.unsqueeze(0)
    pixels = x.unflatten(1, (module.groups, -1)).flatten(3)  # [N, groups, in/groups, pixels]
    rows: Tensor = pixels.permute(1, 0, 3, 2).reshape(module.groups, -1, pixels.shape[2])
    return rows


def embedding_rows(module: Any, ids: Tensor) -> Iterator[Tensor]:
    """Each id is a group of its own with d = 1, and its Gram is how often it occurs.

    A row of value 2^k stands for 4^k ones: a count is written in base 4, so that its Gram is a whole number without
    rounding, and an id that only forgotten samples had is left with exactly 0.
    """
    counts = torch.bincount(ids.reshape(-1), minlength=module.num_embeddings)
    rows = torch.arange(3, device=ids.device)
    power = 1.0
    while bool(counts.any()):
        yield power * (rows < counts[:, None] % 4).float().unsqueeze(2)
        counts, power = counts // 4, 2 * power


def attention_taps(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Tap]:
    """Queries, keys and values for the input projection, [3, n, embed], and what the output projection is given."""
    call = inspect.signature(nn.MultiheadAttention.forward).bind(module, *args, **kwargs)

    def in_proj() -> Tensor:
        inputs = [linear_rows(module, call.arguments[key]) for key in ("query", "key", "value")]
        # Cross-attention has fewer queries than keys: zero rows add nothing to a Gram.
        longest = max(len(x) for x in inputs)
        return torch.stack([F.pad(x, (0, 0, 0, longest - len(x))) for x in inputs])

    def out_proj() -> Tensor:
        # With the identity as output projection, attention returns what the real one is given.
        twin = copy.copy(module)
        embed = module.embed_dim
        identity = nn.Linear(embed, embed, bias=False, device="meta")
        identity.weight = nn.Parameter(
            torch.eye(embed, dtype=module.out_proj.weight.dtype, device=module.out_proj.weight.device)
        )
        twin._modules = {"out_proj": identity}
        attended: Tensor = nn.MultiheadAttention.forward(twin, *args, **kwargs)[0]
        return linear_rows(module, attended)

    return [("", in_proj), ("out_proj", out_proj)]
