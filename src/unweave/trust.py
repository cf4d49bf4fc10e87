"""Trust-region scaling (TRGP) of one linear layer, for de-poisoning.

Clean and poisoned samples of one class share their directions, so a step that leaves the core space alone cannot
re-classify the poisoned ones. TRGP lets the layer *rescale* core directions, the weakest first: with B [d, b] the last
b columns of the core basis and a learnt S [b, b], which starts as the identity::

    W_eff = W + W B (S − I) Bᵀ

At the end W_eff is written into the layer, which is then an ordinary one again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unweave.layers import Layer
from unweave.space import LayerSpace

RESCALING = 0.1
"""S moves at this share of the learning rate, as in the authors' code."""


class TrustRegion:
    """The scaling of one layer's weight [out, d] along the ``width`` weakest directions of its core, at most all."""

    def __init__(self, name: str, weight: nn.Parameter, space: LayerSpace, width: int) -> None:
        self.name = name
        self.weight = weight
        self.layout = space.info
        core = space.core[0]
        rank = core.shape[1]
        # Half precision would round the small steps of S away.
        dtype = torch.float32 if weight.dtype in (torch.bfloat16, torch.half) else weight.dtype
        self.basis = core[:, rank - min(width, rank) :].to(weight.device, dtype)
        self.scale = torch.eye(self.basis.shape[1], dtype=dtype, device=weight.device).requires_grad_()

    def effective(self) -> Tensor:
        """W_eff in the weight's own shape; differentiable in both W and S."""
        matrix = self.layout.as_matrix(self.weight.to(self.scale.dtype))
        inside = matrix @ self.basis
        scaled = matrix + (inside @ self.scale - inside) @ self.basis.mT
        return self.layout.from_matrix(scaled).to(self.weight.dtype)

    @torch.no_grad()
    def fold(self) -> None:
        """Write W_eff into the weight and start again from S = I."""
        self.weight.copy_(self.effective())
        self.scale.copy_(torch.eye(len(self.scale), dtype=self.scale.dtype, device=self.scale.device))


def last_linear(net: nn.Module, layers: Mapping[str, Layer]) -> str | None:
    """The last of a network's layers that is an ``nn.Linear``, if there is any."""
    names = [name for name, layer in layers.items() if isinstance(net.get_submodule(layer.owners[0]), nn.Linear)]
    return names[-1] if names else None
