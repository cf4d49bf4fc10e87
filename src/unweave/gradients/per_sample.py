"""Gradients of single samples, many samples at once, by ``torch.func.vmap``.

For logits f(x; w) [C] of one sample, weights w and a cotangent v [C], the row is

    r(x, v) = ∇_w Σ_c v_c f_c(x; w)

With v a unit vector that is one row of the Jacobian; with v = p − onehot(y) it is the gradient of −log p_y.
A model must treat the samples of a batch independently, as every model in eval mode does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from unweave.errors import ModelError
from unweave.gradients.conv_products import convolutions_as_products
from unweave.memory import is_gpu_full
from unweave.reading.batches import Inputs, Loader, checked, logits_in, map_tensors
from unweave.reading.samples import Samples


def logits_with(net: nn.Module, weights: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
    """The logits [N, C] of the model with some of its parameters replaced by these."""
    replaced = dict(weights)
    if isinstance(inputs, Mapping):
        output: Any = functional_call(net, replaced, (), dict(inputs))
    else:
        output = functional_call(net, replaced, inputs if isinstance(inputs, (tuple, list)) else (inputs,))
    logits: Tensor = logits_in(output)
    return logits


def sample_gradients(
    net: nn.Module, weights: Mapping[str, Tensor], inputs: Inputs, cotangents: Tensor, batched: bool = True
) -> dict[str, Tensor]:
    """Per parameter the rows r(x_i, v_i), [m, *shape], for m samples and cotangents [m, C].

    Call it inside :func:`unweave.reading.rest.at_rest`. Only the parameters in ``weights`` are differentiated. With
    ``batched=False`` the samples go one by one, for models that ``torch.func.vmap`` does not allow.

    Raises:
        ModelError: the model cannot be run under ``torch.func.vmap``.
    """

    def pulled(own: dict[str, Tensor], sample: Inputs, v: Tensor) -> Tensor:
        alone = map_tensors(sample, lambda t: t.unsqueeze(0))
        return (logits_with(net, own, alone).squeeze(0) * v).sum()

    fixed = {name: value.detach() for name, value in weights.items()}
    if not batched:
        return _one_at_a_time(pulled, fixed, inputs, cotangents)
    try:
        # The fused kernels of attention have no rule for vmap, the plain one has.
        with sdpa_kernel(SDPBackend.MATH), _fit_for_vmap(net, cotangents.device):
            rows: dict[str, Tensor] = vmap(grad(pulled), in_dims=(None, 0, 0))(fixed, inputs, cotangents)
    except (RuntimeError, ValueError) as error:
        if is_gpu_full(error):
            raise
        raise ModelError(
            f"Gradients of many samples at once need torch.func.vmap, which {type(net).__name__} does not allow "
            f"({str(error)[:150]} …). Set batched=False in the settings: one sample at a time, slower."
        ) from error
    return rows


def _one_at_a_time(
    pulled: Callable[[dict[str, Tensor], Inputs, Tensor], Tensor],
    fixed: Mapping[str, Tensor],
    inputs: Inputs,
    cotangents: Tensor,
) -> dict[str, Tensor]:
    """By autograd as it is: ``torch.func`` does not take every function that somebody may have written."""
    rows: dict[str, list[Tensor]] = {name: [] for name in fixed}
    for i, v in enumerate(cotangents):
        own = {name: value.clone().requires_grad_() for name, value in fixed.items()}
        with torch.enable_grad():
            value = pulled(own, map_tensors(inputs, lambda t, i=i: t[i]), v)  # type: ignore[misc]
        found = torch.autograd.grad(value, list(own.values()), allow_unused=True) if value.requires_grad else ()
        for name, part in zip(own, found or [None] * len(own), strict=True):
            rows[name].append(torch.zeros_like(fixed[name]) if part is None else part)
    return {name: torch.stack(own) for name, own in rows.items()}


def _fit_for_vmap(net: nn.Module, device: torch.device) -> AbstractContextManager[None]:
    """On a GPU convolutions with a group for every sample are slow; on a CPU patches are, which are long to write."""
    return convolutions_as_products(net) if device.type == "cuda" else nullcontext()


def at_most(samples: Samples, size: int) -> Iterator[tuple[Inputs, Tensor, Tensor]]:
    """(inputs, labels, positions) of at most ``size`` samples, also where batches of varying width stay whole."""
    for inputs, labels, positions in samples.batches(size):
        for start in range(0, len(labels), size):
            part = slice(start, start + size)
            yield map_tensors(inputs, lambda t, part=part: t[part]), labels[part], positions[part]  # type: ignore[misc]


def drawn(loader: Loader, what: str, count: int, seed: int, device: torch.device) -> Samples:
    """At most ``count`` samples of a loader, each equally likely, in the loader's order; one pass, ``count`` kept.

    Each sample gets a random number, and those with the lowest ones stay. That the loader is sorted, by class say,
    makes no difference.
    """
    generator = torch.Generator().manual_seed(seed)
    kept: list[tuple[float, int, tuple[Inputs, Tensor]]] = []
    seen = 0
    for inputs, labels in checked(loader, what):
        for i, key in enumerate(torch.rand(len(labels), generator=generator, dtype=torch.float64).tolist()):
            # A heap of negated numbers has the largest one on top: the first to go.
            if len(kept) < count or -key > kept[0][0]:
                row = map_tensors(inputs, lambda t, i=i: t[i : i + 1].clone())  # type: ignore[misc]
                entry = (-key, seen + i, (row, labels[i : i + 1]))
                heapq.heappush(kept, entry) if len(kept) < count else heapq.heapreplace(kept, entry)
        seen += len(labels)
    rows = [row for _, _, row in sorted(kept, key=lambda entry: entry[1])]
    return Samples([(map_tensors(inputs, lambda t: t.to(device)), labels.to(device)) for inputs, labels in rows])
