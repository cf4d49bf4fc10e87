"""What a network is trained on: everything, everything but what is forgotten, or with wrong labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiments.data import Cifar10, Labelled, poisoned, without
from experiments.datasets.splits import Poisoned
from experiments.settings import Case

RETRAINED_SEEDS = 1000
"""Added to the seed of a retrained network: it has other first weights than the original, as a stranger's would."""


@dataclass(frozen=True)
class Training:
    """One training set made of a data set."""

    name: str
    select: Callable[[Cifar10], Labelled]


FULL = Training("full", lambda data: data.train)


def retained(case: Case) -> Training:
    """What is left after a request."""

    def select(data: Cifar10) -> Labelled:
        return data.train.where(without(len(data.train), case.chosen(data.train.y)))

    return Training(f"without-{case.name}", select)


def with_poison(budget: int) -> Training:
    """Everything, ``budget`` samples of it with wrong labels."""
    return Training(f"poisoned-{budget}", lambda data: poisoned_by(data, budget).full)


def clean_part(budget: int) -> Training:
    """The samples whose labels are right when ``budget`` are wrong."""
    return Training(f"clean-{budget}", lambda data: poisoned_by(data, budget).clean)


def poisoned_by(data: Cifar10, budget: int) -> Poisoned:
    """The sections of the data set with ``budget`` wrong labels, equally many of each class."""
    return poisoned(data.train, budget // data.classes, classes=data.classes)
