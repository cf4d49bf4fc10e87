"""Teach unweave a layer type of your own: say how its input becomes the rows that its weight multiplies."""

import torch
from torch import Tensor, nn

import unweave


class Halved(nn.Module):
    """y = W (x / 2)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return (x / 2) @ self.weight.T


unweave.layers.register(Halved, rows=lambda module, x: (x / 2).flatten(0, -2))

model = nn.Sequential(Halved(8, 16), nn.ReLU(), nn.Linear(16, 3))
x, y = torch.randn(40, 8), torch.arange(40) % 3
grams = unweave.fit(model, [(x, y)])
assert torch.allclose(grams["0"], (x / 2).double().T @ (x / 2).double())
print(grams.layers["0"])
