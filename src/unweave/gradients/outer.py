"""Linear layers that meet each sample once: products of single samples' gradients without the gradients.

Such a layer sees one row x_i [d] of sample i. With b_i [m], the slopes of Σ_c v_c f_c(x_i) by the layer's outputs, the
gradient of its weight is an outer product, and what a projection P leaves of it is one as well:

    g_i = b_i x_iᵀ        g_i P = b_i (P x_i)ᵀ        ⟨g_i P, g_j P⟩ = (b_i · b_j) (P x_i · P x_j)

All rows and slopes come of one pass back and forth over whole batches. For n samples that is n d² multiply-adds for
what is left of the rows and n² (m + d) for the products, in place of n m d² and n² m d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unweave.gradients.meetings import Call, Users, listening
from unweave.gradients.per_sample import at_most
from unweave.reading.batches import run
from unweave.reading.samples import Samples


@dataclass(frozen=True)
class Met:
    """What a linear layer met: rows x [n, d] and slopes b [n, m], in the order of the samples' positions."""

    rows: Tensor
    slopes: Tensor

    def squares(self) -> Tensor:
        """‖g_i‖² = ‖b_i‖² ‖x_i‖², float64 [n]."""
        return self.slopes.double().square().sum(1) * self.rows.double().square().sum(1)

    def products(self, left: Tensor) -> Tensor:
        """⟨g_i P, g_j P⟩, float64 [n, n], for what is left of the rows, P x [n, d]."""
        left, slopes = left.double(), self.slopes.double()
        return (slopes @ slopes.mT).mul_(left @ left.mT)


def met_once(net: nn.Module, users: Users, samples: Samples, v: Tensor, size: int) -> dict[str, Met]:
    """Of these weights those of one linear layer each, which meets every sample once.

    Args:
        net: at rest (:func:`unweave.reading.rest.at_rest`).
        users: by name the layers of weights that require gradients; as :func:`unweave.gradients.meetings.told_apart`
            finds them.
        samples: n of them.
        v: cotangents [n, C].
        size: samples that are run together.
    """
    layers = {name: own[0] for name, own in users.items() if len(own) == 1 and isinstance(own[0], nn.Linear)}
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    order = []
    for inputs, labels, positions in at_most(samples, size):
        if not parts:
            return {}
        order.append(positions)
        with torch.enable_grad(), listening([layers[name] for name in parts]) as calls:
            logits = run(net, inputs)
            pulled = (logits * v[positions].to(logits.dtype)).sum()
        own = {name: call for name in parts if (call := _once(calls[layers[name]], len(labels))) is not None}
        parts = {name: parts[name] for name in own}
        edges = [call.edge for call in own.values() if call.edge is not None]
        slopes = torch.autograd.grad(pulled, edges, allow_unused=True) if edges else ()
        for (name, call), b in zip(own.items(), slopes, strict=True):
            x = _alone(call.input.detach())
            parts[name].append((x, x.new_zeros(len(x), layers[name].out_features) if b is None else _alone(b)))
    return {name: _in_order(own, torch.cat(order)) for name, own in parts.items()}


def _once(calls: Sequence[Call], samples: int) -> Call | None:
    """A layer's only call, if it had one row for each sample, and there is a way back from the logits."""
    if len(calls) != 1 or calls[0].edge is None or not calls[0].still():
        return None
    return calls[0] if calls[0].input.dim() == 2 and len(calls[0].input) == samples else None


def _alone(rows: Tensor) -> Tensor:
    """These rows without what they are a part of, such as the whole of a map that is kept by any view of it."""
    return rows.clone() if rows.untyped_storage().nbytes() > rows.numel() * rows.element_size() else rows


def _in_order(parts: list[tuple[Tensor, Tensor]], positions: Tensor) -> Met:
    """Parts of batches as one, each sample at its position."""
    back = positions.argsort()
    return Met(torch.cat([x for x, _ in parts])[back], torch.cat([b for _, b in parts])[back])
