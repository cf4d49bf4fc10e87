"""Small models and slow oracles for the baselines that compute a change of the weights in closed form."""

from __future__ import annotations

from typing import Any

import torch
from helpers import in_batches
from torch import Tensor, nn
from torch.nn import functional as F


def linear(width: int = 4, classes: int = 3, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(width, classes).double()


def data(count: int, width: int = 4, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, dtype=torch.float64, generator=generator), torch.arange(count) % classes


def loader(x: Any, y: Tensor, size: int = 4) -> list[tuple[Any, Tensor]]:
    return in_batches(x, y, size)


def flat(parts: Any) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def jacobian(net: nn.Module, x: Tensor) -> Tensor:
    """One row a sample and class, by a loop over single backward passes: [n C, P]."""
    rows = []
    for sample in x:
        logits = net(sample[None])[0]
        rows += [flat(torch.autograd.grad(value, list(net.parameters()), retain_graph=True)) for value in logits]
    return torch.stack(rows)


def loss_sum(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y, reduction="sum")


def gradient_sum(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return flat(torch.autograd.grad(loss_sum(net, x, y), list(net.parameters())))
