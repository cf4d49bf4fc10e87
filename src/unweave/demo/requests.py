"""The three requests of the demonstration: which samples, and what a network without them would have seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unweave.demo.data import CLASSES, Images

PER_CLASS = 20
"""Samples of each class in the first request: 200 in all."""
CLASS = CLASSES.index("airplane")
"""The class of the second."""
POISONED = 30
"""Samples of each class whose label is swapped before the second network is trained: 300 in all."""
PAIRS = {7: 8, 8: 7, 1: 5, 5: 1, 3: 4, 4: 3, 2: 0, 0: 2, 9: 6, 6: 9}
"""Which label they get: horse–ship, automobile–dog, cat–deer, bird–airplane, truck–frog, as in the paper."""


@dataclass(frozen=True)
class Split:
    """A training set in two parts."""

    forget: Images
    retain: Images


def samples(train: Images) -> Split:
    """The first images of every class."""
    return _split(train, torch.cat([(train.y == c).nonzero().squeeze(1)[:PER_CLASS] for c in range(len(CLASSES))]))


def one_class(train: Images) -> Split:
    """All images of one class."""
    return _split(train, (train.y == CLASS).nonzero().squeeze(1))


def poison(train: Images) -> tuple[Images, Split, Images]:
    """The last images of every class get a wrong label.

    Returns the poisoned training set, its split into poisoned and clean samples, and the poisoned samples with their
    true labels (to judge by; no request ever sees those).
    """
    chosen = torch.cat([(train.y == c).nonzero().squeeze(1)[-POISONED:] for c in range(len(CLASSES))])
    labels = train.y.clone()
    labels[chosen] = torch.tensor([PAIRS[int(c)] for c in train.y[chosen]])
    poisoned = Images(train.x, labels)
    return poisoned, _split(poisoned, chosen), train.where(chosen)


def _split(train: Images, chosen: Tensor) -> Split:
    rest = torch.ones(len(train), dtype=torch.bool)
    rest[chosen] = False
    return Split(train.where(chosen), train.where(rest.nonzero().squeeze(1)))
