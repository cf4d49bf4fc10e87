"""The paper's splits: which images are held out, forgotten or poisoned, as index tensors [K] into labels [N].

Where the paper draws, Python's generator with seed 0 draws, so that the choice depends on nothing but the labels.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.datasets.images import Labelled
from unweave.errors import ConfigError

POISON_BUDGETS = (500, 1000, 1500, 2000, 2500)
"""Images a class that the paper gives a wrong label: 5,000 to 25,000 of CIFAR-10 in all."""


def halves(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The paper's split of the test set: each class shuffled by Python's generator with seed 0; (test, val) indices."""
    generator = random.Random(0)
    first, second = list[int](), list[int]()
    for own in _by_class(labels, int(labels.max()) + 1):
        generator.shuffle(own)
        first += own[: len(own) // 2]
        second += own[len(own) // 2 :]
    return torch.tensor(first, device=labels.device), torch.tensor(second, device=labels.device)


def first_of_class(labels: Tensor, c: int, start: int, stop: int) -> Tensor:
    """The start-th to (stop−1)-th training images of a class, in the order of the data set."""
    return (labels == c).nonzero().squeeze(1)[start:stop]


def incremental_step(labels: Tensor, step: int, per_class: int = 100) -> Tensor:
    """Step t = 1, 2, … of incremental forgetting: images [per_class·(t−1), per_class·t) of every class, class by class.

    Raises:
        ConfigError: there is no such step, or a class has too few images for it.
    """
    counts = labels.bincount().tolist()
    last = min(counts) // per_class
    if not 1 <= step <= last:
        raise ConfigError(f"Invalid step: {step}. Supported: 1 to {last}, with {per_class} images a class and step.")
    parts = [first_of_class(labels, c, per_class * (step - 1), per_class * step) for c in range(len(counts))]
    return torch.cat(parts)


def without(n: int, chosen: Tensor) -> Tensor:
    """The indices 0 … n−1 that are not chosen, ascending: what is retained."""
    kept = torch.ones(n, dtype=torch.bool, device=chosen.device)
    kept[chosen] = False
    return kept.nonzero().squeeze(1)


def poison_pairs(classes: int, seed: int = 0) -> dict[int, int]:
    """Each class's partner: the class list is shuffled by Python's generator and consecutive entries are paired.

    Raises:
        ConfigError: an odd number of classes leaves one without a partner.
    """
    return _pairs(classes, random.Random(seed))


def _pairs(classes: int, generator: random.Random) -> dict[int, int]:
    if classes < 2 or classes % 2:
        raise ConfigError(
            f"Invalid classes: {classes}. Supported: an even number, since classes are poisoned in pairs."
        )
    shuffled = list(range(classes))
    generator.shuffle(shuffled)
    return dict(zip(shuffled, [shuffled[i ^ 1] for i in range(classes)], strict=True))


@dataclass(frozen=True)
class Poisoned:
    """The paper's four sections of a poisoned training set, and which images were poisoned."""

    full: Labelled
    """All images, the poisoned ones with wrong labels: what the network was trained on."""
    clean: Labelled
    """The images with true labels."""
    poison: Labelled
    """The poisoned images with the wrong labels: what is to be forgotten."""
    poison_clean: Labelled
    """The same images with their true labels, to judge by."""
    chosen: Tensor


def poisoned(train: Labelled, per_class: int, *, classes: int, seed: int = 0) -> Poisoned:
    """Give ``per_class`` images of each class the label of its partner.

    The generator that made the pairs shuffles each class and the first ones are taken, so that a larger budget poisons
    the same images and more.

    Raises:
        ConfigError: a class has fewer images, or the classes cannot be paired.
    """
    smallest = int(train.y.bincount(minlength=classes).min())
    if not 1 <= per_class <= smallest:
        raise ConfigError(
            f"Invalid per_class: {per_class}. Supported: 1 to {smallest}, the images of the smallest class."
        )
    generator = random.Random(seed)
    pairs = _pairs(classes, generator)
    picked = list[int]()
    for own in _by_class(train.y, classes):
        generator.shuffle(own)
        picked += sorted(own[:per_class])
    chosen = torch.tensor(picked, device=train.y.device)
    partner = torch.tensor([pairs[c] for c in range(classes)], device=train.y.device)
    labels = train.y.clone()
    labels[chosen] = partner[train.y[chosen]]
    full = Labelled(train.x, labels)
    clean = train.where(without(len(train), chosen))
    return Poisoned(full, clean, full.where(chosen), train.where(chosen), chosen)


def _by_class(labels: Tensor, classes: int) -> list[list[int]]:
    """The indices of every class, in the order of the data set."""
    every: list[list[int]] = [[] for _ in range(classes)]
    for i, c in enumerate(labels.tolist()):
        every[c].append(i)
    return every
