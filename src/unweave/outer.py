"""Linear layers that meet each sample once: products of single samples' gradients without the gradients.

Such a layer sees one row x_i [d] of sample i. With b_i [m], the slopes of Σ_c v_c f_c(x_i) by the layer's outputs, the
gradient of its weight is an outer product, and what a projection P leaves of it is one as well:

    g_i = b_i x_iᵀ        g_i P = b_i (P x_i)ᵀ        ⟨g_i P, g_j P⟩ = (b_i · b_j) (P x_i · P x_j)

All rows and slopes come of one pass back and forth over whole batches. For n samples that is n d² multiply-adds for
what is left of the rows and n² (m + d) for the products, in place of n m d² and n² m d.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from unweave.batches import run
from unweave.layers import readable_kind
from unweave.per_sample import at_most
from unweave.samples import Samples


@dataclass(frozen=True)
class Met:
    """What a linear layer met: rows x [n, d] and slopes b [n, m], in the order of the samples' positions."""

    rows: Tensor
    slopes: Tensor

    def products(self, left: Tensor) -> Tensor:
        """⟨g_i P, g_j P⟩, float64 [n, n], for what is left of the rows, P x [n, d]."""
        left, slopes = left.double(), self.slopes.double()
        return (slopes @ slopes.mT).mul_(left @ left.mT)


@dataclass
class _Calls:
    """What one layer was called with in the present batch, and where its outputs stand in the graph."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[GradientEdge] = field(default_factory=list)

    def once(self, samples: int) -> bool:
        """Whether there was one row for each sample, and a way back from the logits."""
        called = len(self.inputs) == len(self.outputs) == 1
        return called and self.inputs[0].dim() == 2 and len(self.inputs[0]) == samples


def met_once(
    net: nn.Module, weights: Mapping[str, nn.Parameter], samples: Samples, v: Tensor, size: int
) -> dict[str, Met]:
    """Of these weights those that belong to one linear layer each, which meets every sample once.

    Args:
        net: at rest (:func:`unweave.rest.at_rest`); its samples do not know of each other.
        weights: by name; they require gradients.
        samples: n of them.
        v: cotangents [n, C].
        size: samples that are run together.
    """
    layers = {name: layer for name, weight in weights.items() if (layer := _only_linear(net, weight)) is not None}
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    order = []
    for inputs, labels, positions in at_most(samples, size) if layers else ():
        order.append(positions)
        with torch.enable_grad(), _listening({name: layers[name] for name in parts}) as calls:
            logits = run(net, inputs)
            pulled = (logits * v[positions].to(logits.dtype)).sum()
        for name in [name for name in parts if not calls[name].once(len(labels))]:
            del parts[name]
        edges = [calls[name].outputs[0] for name in parts]
        slopes = torch.autograd.grad(pulled, edges, allow_unused=True) if edges else ()
        for name, b in zip(parts, slopes, strict=True):
            x = calls[name].inputs[0]
            parts[name].append((x, x.new_zeros(len(x), len(weights[name])) if b is None else b))
    return {name: _in_order(own, torch.cat(order)) for name, own in parts.items()}


def _only_linear(net: nn.Module, weight: nn.Parameter) -> nn.Linear | None:
    """The linear layer that a weight belongs to and is nothing else than; None where there is no such layer."""
    owners = [module for module in net.modules() if any(own is weight for own in module._parameters.values())]
    layer = owners[0]
    return layer if len(owners) == 1 and isinstance(layer, nn.Linear) and readable_kind(layer) is not None else None


@contextmanager
def _listening(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, _Calls]]:
    """Note what layers are called with; a place in the graph, unlike an output, is not changed by what comes after."""
    calls = {name: _Calls() for name in layers}

    def hook_for(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            calls[name].inputs.append((args[0] if args else kwargs["input"]).detach())
            if output.requires_grad:
                calls[name].outputs.append(get_gradient_edge(output))

        return hook

    handles = [layer.register_forward_hook(hook_for(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _in_order(parts: list[tuple[Tensor, Tensor]], positions: Tensor) -> Met:
    """Parts of batches as one, each sample at its position."""
    back = positions.argsort()
    return Met(torch.cat([x for x, _ in parts])[back], torch.cat([b for _, b in parts])[back])
