"""What the tests of the baselines share: a small network in float64, data for it, and single steps by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from helpers import Batches
from torch import Tensor, nn


def linear_net(width: int = 4, classes: int = 3, seed: int = 0) -> nn.Module:
    """Two linear layers in float64; nothing random, nothing gathered."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, classes)).double().eval()


def normed_net(seed: int = 0) -> nn.Sequential:
    """Three weight layers with a batch norm after each of the first two, float64, with statistics of their own."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)
    ).double()
    with torch.no_grad():
        for norm in (net[1], net[4]):
            norm.weight.uniform_(0.5, 2)
            norm.bias.uniform_(-1, 1)
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)
    return net.eval()


def batch(count: int, seed: int, width: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, dtype=torch.float64, generator=generator), torch.arange(count) % classes


def forget_set(batches: int = 2, size: int = 6) -> Batches:
    return [batch(size, 100 + i) for i in range(batches)]


def retain_set(batches: int = 3, size: int = 9) -> Batches:
    return [batch(size, 200 + i) for i in range(batches)]


def held_out(size: int = 30) -> Batches:
    return [batch(size, 300)]


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def tensors(net: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers."""
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def stepped(net: nn.Module, loss: Callable[[nn.Module], Tensor], lr: float) -> dict[str, Tensor]:
    """The weights after one step of plain gradient descent, by hand."""
    gradients = torch.autograd.grad(loss(net), list(net.parameters()))
    return {name: p.detach() - lr * g for (name, p), g in zip(net.named_parameters(), gradients, strict=True)}


def equal(here: dict[str, Tensor], there: dict[str, Tensor]) -> bool:
    return here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in here)


def close(here: dict[str, Tensor], there: dict[str, Tensor], tolerance: float = 1e-12) -> bool:
    return here.keys() == there.keys() and all(
        torch.allclose(here[name], there[name], rtol=tolerance, atol=tolerance) for name in here
    )


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of −log p_y, by a loop."""
    total = torch.zeros((), dtype=logits.dtype)
    for z, y in zip(logits, labels.tolist(), strict=True):
        total = total - (z[y] - torch.log(torch.exp(z).sum()))
    return total / len(labels)
