"""What is trained on what, what is forgotten, and how large everything is: in one place for all experiments.

A :class:`Setting` is a network with its data and recipe, a :class:`Case` is what that network is to forget, a
:class:`Scale` is the size of all of it: ``PAPER`` for a GPU, ``QUICK`` for minutes on two cores, ``SMOKE`` for tests.
Networks belong to a setting and a training set, not to an experiment, so experiments share them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from experiments.data import first_of_class
from experiments.training.models import ResNet18, allcnn, smallvgg
from experiments.training.quick_models import QuickResNet, quick_allcnn, quick_smallvgg
from experiments.training.recipes import RECIPES

Chosen = Callable[[Tensor], Tensor]
"""From the training labels [N] to the indices that are forgotten."""


@dataclass(frozen=True)
class Setting:
    """A network, what it is trained on, and how."""

    name: str
    """Also the folder its networks and outcomes are kept in."""
    data: str
    """"cifar10", "tinyimagenet" or "embedded"."""
    classes: int
    build: Callable[[int], nn.Module]
    """From the number of classes to a fresh network."""
    recipe: str
    """In ``recipes.RECIPES``: mostly a faster schedule than the paper's."""
    preset: str
    """The authors' settings for it, see ``unweave.presets``."""
    poison_preset: str = "smallvgg-cifar10-poison"
    strided: bool = True
    """Whether it has strided convolutions, which the authors' code reads at every pixel."""
    epochs: int | None = None
    """In place of the recipe's, for ``--quick``."""
    limit: int | None = None
    """Training images a class, and a third as many held-out ones, for a quick look; None: all."""


PUBLISHED = {"-paper": "code", "-text": "text"}
"""What ends the names of settings and recipes with the paper's own schedule, and which of the two has it so. The text's
is there where it takes longer than the code's."""


def published(setting: Setting) -> list[Setting]:
    """The same network trained by the paper's own schedule, the code's first; none where that has no recipe."""
    found = [end for end in PUBLISHED if setting.recipe + end in RECIPES]
    return [replace(setting, name=setting.name + end, recipe=setting.recipe + end) for end in found]


def told_in(setting: str) -> str:
    """Whether the paper's code or its text has the schedule of a setting that :func:`published` named."""
    return next(where for end, where in PUBLISHED.items() if setting.endswith(end))


@dataclass(frozen=True)
class Case:
    """What a network is to forget."""

    name: str
    setting: Setting
    task: str
    """"samples" or "classes"; poisoned labels have their own description, see ``poisoning``."""
    chosen: Chosen
    classes: tuple[int, ...] = ()
    """Those that are forgotten as a whole."""


@dataclass(frozen=True)
class Scale:
    """How large the experiments are."""

    name: str
    allcnn: Setting
    smallvgg: Setting
    resnet18: Setting
    seeds: int = 5
    models: int = 50
    """Full and retrained networks each, for the attacks on table 1's request."""
    fewer_models: int = 12
    """The same for SmallVGG and ResNet-18; of full ones a few more (``ways.requests.attack_networks``)."""
    samples: int = 500
    """Of class 0, in table 1."""
    per_class: int = 100
    """In a step of table 3."""
    steps: int = 4
    removed: tuple[int, ...] = (5, 10)
    """How many classes ResNet-18 forgets."""
    budgets: tuple[int, ...] = (5_000, 10_000, 15_000, 20_000, 25_000)
    budgets_tiny: tuple[int, ...] = (10_000, 20_000, 30_000, 40_000, 50_000)
    gammas: tuple[float, ...] = (0.995, 0.99, 0.98, 0.96, 0.9, 0.85, 0.8, 0.75)
    long_runs: dict[str, tuple[tuple[int, int], ...]] = field(
        default_factory=lambda: {"allcnn": ((100, 20), (50, 40), (25, 80)), "smallvgg": ((100, 30),)}
    )
    """Samples a class and steps at most, until accuracy drops."""
    draws: int = 1000
    """Of the bootstraps behind the attacks' intervals."""
    trials: int = 6
    """Of every baseline's tuning, at most."""
    epochs_watched: tuple[int, ...] = (0, 2, 4, 8, 12, 16, 20, 30, 40, 60, 80, 100)
    """Of the authors' schedule, whose first epoch takes no step."""
    epochs_watched_classes: tuple[int, ...] = (0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 99)
    baseline_epochs: int | None = None
    """At most so many for every baseline; None: its own."""
    baseline_samples: int | None = None
    """Of those methods that look at some samples only, and their iterations; None: their own numbers."""
    pgu_epochs: int | None = None
    """At most so many for every PGU request; None: the configuration's own."""


PAPER = Scale(
    "paper",
    Setting("allcnn-cifar10", "cifar10", 10, allcnn, "allcnn-cifar10", "allcnn-cifar10"),
    Setting("smallvgg-cifar10", "cifar10", 10, smallvgg, "smallvgg-cifar10", "smallvgg-cifar10", strided=False),
    Setting("resnet18-tinyimagenet", "tinyimagenet", 200, ResNet18, "resnet18-tiny", "resnet18-tinyimagenet"),
)

QUICK = Scale(
    "quick",
    Setting("quick-allcnn", "embedded", 10, quick_allcnn, "quick", "allcnn-cifar10", epochs=4, limit=150),
    Setting("quick-smallvgg", "embedded", 10, quick_smallvgg, "quick", "smallvgg-cifar10", epochs=4, limit=150),
    Setting("quick-resnet", "embedded", 10, QuickResNet, "quick", "resnet18-tinyimagenet", epochs=3, limit=150),
    seeds=2,
    models=6,
    fewer_models=4,
    samples=60,
    per_class=10,
    steps=2,
    removed=(2,),
    budgets=(300,),
    budgets_tiny=(300,),
    gammas=(0.99, 0.8),
    long_runs={"allcnn": ((10, 2),), "smallvgg": ((10, 2),)},
    trials=2,
    epochs_watched=(0, 2, 4),
    epochs_watched_classes=(0, 2, 4),
    pgu_epochs=12,
    baseline_epochs=2,
    baseline_samples=40,
)

SMOKE = replace(
    QUICK,
    name="smoke",
    allcnn=replace(QUICK.allcnn, epochs=1, limit=60),
    smallvgg=replace(QUICK.smallvgg, epochs=1, limit=60),
    resnet18=replace(QUICK.resnet18, epochs=1, limit=60),
    seeds=1,
    models=4,
    samples=20,
    per_class=3,
    budgets=(60,),
    budgets_tiny=(60,),
    gammas=(0.9,),
    trials=1,
    draws=50,
    epochs_watched=(0, 2),
    epochs_watched_classes=(0, 2),
    pgu_epochs=3,
    baseline_epochs=1,
    baseline_samples=10,
)


def samples_of_class_0(scale: Scale) -> Case:
    """Table 1: the first samples of class 0, in the order of the data set."""
    count = scale.samples
    return Case(f"{count}-of-class-0", scale.allcnn, "samples", lambda labels: first_of_class(labels, 0, 0, count))


def steps_of(setting: Setting, per_class: int, steps: int) -> list[Case]:
    """Table 3: everything forgotten after each step, as many of every class as before it."""
    return [
        Case(f"first-{per_class * step}-a-class", setting, "samples", _first_of_each(0, per_class * step))
        for step in range(1, steps + 1)
    ]


def step_alone(setting: Setting, per_class: int, step: int) -> Case:
    """What the step-th request (from 1) itself asks to forget."""
    name = f"step-{step}-of-{per_class}-a-class"
    return Case(name, setting, "samples", _first_of_each(per_class * (step - 1), per_class * step))


def first_classes(setting: Setting, count: int) -> Case:
    """Table 2 and the figure of airplanes: every sample of the first classes."""
    gone = tuple(range(count))
    name = f"first-{count}-classes" if count > 1 else "class-0"
    chosen: Chosen = lambda labels: (labels < count).nonzero().squeeze(1)  # noqa: E731
    return Case(name, setting, "classes", chosen, gone)


def _first_of_each(start: int, stop: int) -> Chosen:
    def chosen(labels: Tensor) -> Tensor:
        classes = range(int(labels.max()) + 1)
        return torch.cat([first_of_class(labels, c, start, stop) for c in classes])

    return chosen
