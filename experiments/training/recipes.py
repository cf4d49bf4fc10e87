"""How each network is trained: a short schedule for the many networks an audit needs, and the paper's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from torch import nn

from experiments.training.models import ResNet18, allcnn, quicknet, smallvgg
from unweave.errors import ConfigError

Schedule = Literal["one cycle", "exponential"]
Optimiser = Literal["sgd", "nesterov", "adam"]


@dataclass(frozen=True)
class Recipe:
    """Everything that makes a network of a training set but the seed; ``dataclasses.replace`` changes it."""

    name: str
    build: Callable[[], nn.Module]
    epochs: int
    lr: float
    batch_size: int
    weight_decay: float
    padding: int
    """Pixels a random crop may be shifted by; every image is also mirrored at random (but see plain_epochs)."""
    schedule: Schedule = "one cycle"
    """One cycle, step by step, or exponential, once an epoch."""
    optimiser: Optimiser = "sgd"
    """SGD has momentum 0.9, and Nesterov's also with one cycle; all add the decay to the gradient."""
    lr_end: float = 0.0
    """Where the exponential schedule ends; one cycle ends at 0."""
    plain_epochs: int = 0
    """So many at the end show every image as it is, neither shifted nor mirrored."""

    def __post_init__(self) -> None:
        for name, value, known in (("schedule", self.schedule, Schedule), ("optimiser", self.optimiser, Optimiser)):
            if value not in get_args(known):
                raise ConfigError(f"Invalid {name}: {value!r}. Supported: {', '.join(map(repr, get_args(known)))}.")
        if self.schedule == "exponential" and not 0 < self.lr_end <= self.lr:
            raise ConfigError(f"Invalid lr_end: {self.lr_end}. Supported: above 0 and at most lr, {self.lr}.")
        if self.epochs < 1 or self.batch_size < 2:
            raise ConfigError(
                f"Invalid epochs or batch_size: {self.epochs}, {self.batch_size}. Supported: 1 and 2 or more."
            )
        if not 0 <= self.plain_epochs <= self.epochs:
            raise ConfigError(f"Invalid plain_epochs: {self.plain_epochs}. Supported: 0 to epochs, {self.epochs}.")

    def lasting(self, epochs: int) -> Recipe:
        """The same for so many epochs, of which as many as there are, at the end, may be plain."""
        return replace(self, epochs=epochs, plain_epochs=min(self.plain_epochs, epochs))

    @property
    def is_nesterov(self) -> bool:
        """Whether the step looks ahead along its momentum."""
        return self.optimiser == "nesterov" or (self.optimiser == "sgd" and self.schedule == "one cycle")

    def settings(self) -> dict[str, str | int | float]:
        """As JSON, for a result or for the settings of a job; the network by its name.

        Plain epochs where there are any: recipes without them were told so before these existed.
        """
        made = {field.name: getattr(self, field.name) for field in fields(self)} | {"build": self.build.__name__}
        return made if self.plain_epochs else {key: value for key, value in made.items() if key != "plain_epochs"}


def _paper(name: str, build: Callable[[], nn.Module], epochs: int) -> Recipe:
    """The authors' recipe for CIFAR-10, as their code has it."""
    return Recipe(name, build, epochs, 0.01, 256, 1e-4, padding=4, schedule="exponential", lr_end=0.0005)


def _text(name: str, build: Callable[[], nn.Module]) -> Recipe:
    """The same as their paper's text has it, which does not tell the weight decay: that is the code's."""
    return replace(_paper(name, build, 200), batch_size=250, optimiser="nesterov")


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("allcnn-cifar10", allcnn, epochs=30, lr=0.1, batch_size=512, weight_decay=5e-4, padding=4),
        # For many networks, in three quarters of the time (docs/reproduction.md); not the tables' own.
        Recipe(
            "allcnn-cifar10-short", allcnn, 22, lr=0.15, batch_size=512, weight_decay=5e-4, padding=4, plain_epochs=3
        ),
        # The paper's, cut short: with one cycle weights grow so long that the authors' settings hardly turn them.
        _paper("smallvgg-cifar10", smallvgg, 80),
        Recipe("resnet18-tiny", ResNet18, epochs=40, lr=0.2, batch_size=512, weight_decay=5e-4, padding=8),
        _paper("allcnn-cifar10-paper", allcnn, 100),
        _text("allcnn-cifar10-text", allcnn),
        _paper("smallvgg-cifar10-paper", smallvgg, 200),
        Recipe(
            "resnet18-tiny-paper",
            ResNet18,
            epochs=200,
            lr=0.001,
            batch_size=256,
            weight_decay=2e-4,
            padding=8,
            schedule="exponential",
            optimiser="adam",
            lr_end=0.0001,
        ),
        # For a look at an experiment on a CPU, with load_embedded(device, per_class=100).
        Recipe("quick", quicknet, epochs=12, lr=0.1, batch_size=50, weight_decay=5e-4, padding=0),
    )
}


def recipe_of(recipe: Recipe | str) -> Recipe:
    """A recipe, or the one of that name.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise ConfigError(f"Invalid recipe: {recipe!r}. Supported: {', '.join(RECIPES)}.")
    return RECIPES[recipe]
