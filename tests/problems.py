"""Small problems that a network learns by heart in a moment: something to forget, and somewhere to land."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from helpers import Batches, in_batches
from torch import Tensor, nn
from torch.nn import functional as F

import unweave


@dataclass(frozen=True)
class Problem:
    """A trained model with its data; ``forget`` are positions in the training set."""

    model: nn.Module
    x: Tensor
    y: Tensor
    val: Batches
    grams: unweave.LayerGrams
    forget: Tensor

    @property
    def forgotten(self) -> Batches:
        return self.samples(self.forget)

    def samples(self, positions: Tensor, size: int = 64) -> Batches:
        return in_batches(self.x[positions], self.y[positions], size)

    def fitted(self, **settings: Any) -> unweave.LayerGrams:
        return unweave.fit(self.model, in_batches(self.x, self.y, 128), **settings)

    def run(self, **settings: Any) -> unweave.ForgetResult:
        """Forget with these settings; ``val`` is passed on as ``val=``."""
        val = settings.pop("val", self.val)
        return unweave.forget(self.model, self.forgotten, self.grams, val=val, config=unweave.ForgetConfig(**settings))


def clusters(count: int, classes: int, width: int, spread: float, seed: int) -> tuple[Tensor, Tensor]:
    """Points around one centre a class, [count, width]; the centres are the same for every seed."""
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(count) % classes
    noise = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    return centres[labels] + spread * noise, labels


def mlp(width: int = 20, hidden: int = 64, classes: int = 5, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )


def cnn(classes: int = 4, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 24, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(96, classes),
        )


def train(net: nn.Module, x: Tensor, y: Tensor, steps: int, lr: float = 3e-3, batch: int = 100) -> nn.Module:
    """Adam for so many steps."""
    order = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(net.parameters(), lr=lr)
    net.train()
    for _ in range(steps):
        chosen = torch.randint(len(y), (batch,), generator=order)
        optimiser.zero_grad()
        F.cross_entropy(net(x[chosen]), y[chosen]).backward()
        optimiser.step()
    for p in net.parameters():
        p.grad = None
    return net.eval()


def points(steps: int = 250, train_size: int = 300, forget: int = 40, spread: float = 1.7) -> Problem:
    """Overlapping clusters of five classes, and an MLP."""
    x, y = clusters(train_size, 5, 20, spread, seed=1)
    net = train(mlp(), x, y, steps)
    val = in_batches(*clusters(500, 5, 20, spread, seed=2), 250)
    grams = unweave.fit(net, in_batches(x, y, 128), val=val)
    return Problem(net, x, y, val, grams, torch.arange(forget))


def pictures() -> Problem:
    """Overlapping clusters as images, and a CNN with batch norm and dropout."""
    x, y = clusters(240, 4, 32, 2.5, seed=1)
    held_x, held_y = clusters(400, 4, 32, 2.5, seed=2)
    net = train(cnn(), x.reshape(-1, 2, 4, 4), y, 150)
    val = in_batches(held_x.reshape(-1, 2, 4, 4), held_y, 200)
    grams = unweave.fit(net, in_batches(x.reshape(-1, 2, 4, 4), y, 128), val=val)
    return Problem(net, x.reshape(-1, 2, 4, 4), y, val, grams, torch.arange(40))


def poisoned() -> tuple[Problem, Tensor]:
    """The points with 40 labels moved on by one class; and the true labels."""
    x, y = clusters(300, 5, 20, 1.0, seed=1)
    wrong = y.clone()
    wrong[:40] = (y[:40] + 1) % 5
    net = train(mlp(), x, wrong, 400)
    val = in_batches(*clusters(500, 5, 20, 1.0, seed=2), 250)
    grams = unweave.fit(net, in_batches(x, wrong, 128))
    return Problem(net, x, wrong, val, grams, torch.arange(40)), y


def without_counts(grams: unweave.LayerGrams) -> unweave.LayerGrams:
    """Grams that do not say how the margins of the training samples are spread, as a file of an earlier release."""
    sums = {name: grams.grouped(name) for name in grams}
    return unweave.LayerGrams(sums, grams.layers, grams.origin, grams.held_out)


def without_profile(problem: Problem) -> Problem:
    """The same problem with Grams that were fitted without ``val=``."""
    return replace(problem, grams=problem.fitted())


class Jittered(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples that are a little different each time."""

    def __init__(self, x: Tensor, y: Tensor, noise: float) -> None:
        self.x, self.y, self.noise = x, y, noise

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i] + self.noise * torch.randn(self.x.shape[1:]), int(self.y[i])
