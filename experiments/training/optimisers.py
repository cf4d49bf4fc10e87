"""The optimisers of the recipes, as a captured step needs them, and what they remember from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from experiments.training.recipes import Recipe

PREFIX = "optimiser"


def optimiser_of(recipe: Recipe, weights: Sequence[nn.Parameter], device: torch.device) -> Optimizer:
    """At the recipe's first rate: on a GPU a tensor, so that a captured step can change it."""
    captured, decay = device.type == "cuda", recipe.weight_decay
    rate: float | Tensor = torch.tensor(recipe.lr, device=device) if captured else recipe.lr
    if recipe.optimiser == "adam":
        return torch.optim.Adam(weights, rate, weight_decay=decay, fused=captured, capturable=captured)
    return torch.optim.SGD(weights, rate, 0.9, nesterov=recipe.is_nesterov, weight_decay=decay, fused=captured)


def buffers_of(optimiser: Optimizer, weights: Sequence[nn.Parameter]) -> dict[str, Tensor]:
    """All that it remembers, weight by weight: momenta, and with Adam squares and the number of steps."""
    return {
        f"{PREFIX}.{i}.{kind}": value
        for i, weight in enumerate(weights)
        for kind, value in optimiser.state.get(weight, {}).items()
        if value is not None
    }


def put_back(optimiser: Optimizer, weights: Sequence[nn.Parameter], buffers: Mapping[str, Tensor]) -> None:
    """Remember what :func:`buffers_of` told. What is there stays where it is: a captured step knows it by address."""
    for i, kind, value in _named(buffers):
        weight = weights[i]
        like = weight if value.shape == weight.shape else value
        optimiser.state[weight].setdefault(kind, torch.empty_like(like)).copy_(value)


def forget_steps(optimiser: Optimizer) -> None:
    """Be as before the first step, in place."""
    for buffers in optimiser.state.values():
        for value in buffers.values():
            value.zero_()


def _named(buffers: Mapping[str, Tensor]) -> Iterator[tuple[int, str, Tensor]]:
    for name, value in buffers.items():
        if name.startswith(f"{PREFIX}."):
            _, i, kind = name.split(".")
            yield int(i), kind, value
