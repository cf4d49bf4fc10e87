"""Recipe: how a baseline trains, checked once; and the learning rate at any moment of it.

With e whole epochs done out of E and t = e / E:

| schedule    | learning rate                                                                             |
|-------------|-------------------------------------------------------------------------------------------|
| constant    | lr                                                                                        |
| exponential | lr · (lr_end / lr)^t                                                                      |
| cosine      | lr_end + (lr − lr_end) · (1 + cos πt) / 2                                                 |
| restarts    | cosine again and again, over 1, 2, 4, … epochs                                            |
| steps       | lr · 0.1 for each of ``decay_epochs`` that is over                                        |
| one-cycle   | every step anew: from lr / 25 up to lr for the share ``warmup`` of training, down to lr_end |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from unweave.baselines.checks import above_zero, integer, number, one_of
from unweave.errors import ConfigError

OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("constant", "exponential", "cosine", "restarts", "steps", "one-cycle")
NORMS = ("train", "frozen")
ONE_CYCLE_START = 25.0
"""A one-cycle schedule begins at lr divided by this, as PyTorch's does."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What every method that trains can be told. The batch sizes are those of the loaders."""

    epochs: int = 10
    lr: float = 0.01
    lr_end: float | None = None
    """Where the schedule ends; None is 0, and "exponential" needs one. "constant" and "steps" have none."""
    schedule: str = "constant"
    decay_epochs: tuple[int, ...] = ()
    """For "steps": after each of these epochs (the first is 1) the learning rate is a tenth of what it was."""
    warmup: float = 0.3
    """For "one-cycle": the share of training in which the learning rate rises."""
    optimizer: str = "sgd"
    momentum: float = 0.9
    """Of SGD; Adam has (0.9, 0.999)."""
    nesterov: bool = False
    weight_decay: float = 0.0
    """λ of a gradient g + λ w, on all weights, also under Adam."""
    clip: float | None = None
    """The largest norm of the gradient of a step; a longer one is shortened."""
    norm: str = "train"
    """"train": batch norm uses and gathers the statistics of each batch. "frozen": it uses its running statistics, and
    they stay; its weights move either way."""
    bf16: bool = False
    """Run the network under bfloat16 autocast; losses and weights stay as they are."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "norm": NORMS}.items():
            one_of(self, name, known)
        for name in ("epochs", "seed"):
            integer(self, name, 0 if name == "seed" else 1)
        for name in ("nesterov", "bf16"):
            one_of(self, name, (False, True))
        above_zero(self, "lr")
        number(self, "weight_decay", lambda v: v >= 0, "a number from 0")
        number(self, "momentum", lambda v: 0 <= v < 1, "a number in [0, 1)")
        number(self, "warmup", lambda v: 0 < v < 1, "a number between 0 and 1")
        if self.clip is not None:
            number(self, "clip", lambda v: v > 0, "a number above 0, or None")
        if self.lr_end is not None:
            number(self, "lr_end", lambda v: v >= 0, "a number from 0, or None")
        if self.nesterov and not (self.momentum > 0 and self.optimizer == "sgd"):
            raise ConfigError("Invalid nesterov=True: it needs SGD with a momentum above 0.")
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.schedule == "exponential" and not self.lr_end:
            raise ConfigError("Invalid lr_end for schedule='exponential'. Supported: a number above 0.")
        epochs: Any = self.decay_epochs
        if not (isinstance(epochs, (tuple, list)) and all(isinstance(e, int) and e >= 1 for e in epochs)):
            raise ConfigError(f"Invalid decay_epochs: {epochs!r}. Supported: a tuple of integers from 1.")
        if bool(epochs) != (self.schedule == "steps"):
            raise ConfigError("decay_epochs and schedule='steps' belong together: give both or neither.")

    def rate(self, epoch: int, within: float = 0.0) -> float:
        """The learning rate after ``epoch`` whole epochs and a share ``within`` of the next one."""
        end = self.lr_end or 0.0
        if self.schedule == "exponential":
            return self.lr * float((end / self.lr) ** (epoch / self.epochs))
        if self.schedule == "cosine":
            return _cosine(self.lr, end, epoch / self.epochs)
        if self.schedule == "restarts":
            length = 2 ** int(math.log2(epoch + 1))
            return _cosine(self.lr, end, (epoch + 1 - length) / length)
        if self.schedule == "steps":
            return self.lr * 0.1 ** sum(epoch + 1 > e for e in self.decay_epochs)
        if self.schedule == "one-cycle":
            done = (epoch + within) / self.epochs
            if done < self.warmup:
                return _cosine(self.lr / ONE_CYCLE_START, self.lr, done / self.warmup)
            return _cosine(self.lr, end, (done - self.warmup) / (1 - self.warmup))
        return self.lr


def _cosine(start: float, end: float, share: float) -> float:
    """Half a cosine wave from ``start`` (share 0) to ``end`` (share 1)."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
