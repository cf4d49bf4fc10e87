"""ForgetConfig: every setting of a request, its default, and the paper's own settings by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any

from unweave.errors import ConfigError
from unweave.protection import PROTECTIONS
from unweave.space import ENERGIES, NEGATIVE, RANK_RULES, Gamma

TASKS = ("samples", "classes", "poison")
OBJECTIVES = ("match", "paper")
STOPS = ("held-out", "paper", "chance", "poison", "epochs")
WATCHES = ("ends", "epochs")
WAYS = ("walk", "solve")
STRANGERS = ("refuse", "tell")
OWN_STOP = {"samples": "held-out", "classes": "chance", "poison": "poison"}
"""Where a task stops; nowhere else when something is matched."""
HELD_ODDS = 0.5
"""How strongly odds are held where classes are matched."""


@dataclass(frozen=True)
class ForgetConfig:
    """How to forget. The defaults need no tuning; None means "chosen for the task" (see :meth:`resolved`)."""

    task: str = "samples"
    """"samples", "classes" (every sample of some classes) or "poison" (samples with wrong labels)."""
    objective: str | None = None
    """"match" (default) or "paper" (default with ``lam``, ``eps`` or another ``stop``); see :mod:`unweave.losses`."""
    gamma: Gamma = 0.9
    """Share of each layer's energy that must not be touched: one number in (0, 1], or one per layer."""
    protect: str | None = None
    """"hard": a direction loses all of a step or nothing, as in the paper; "soft": the more the more the retained data
    uses it; "auto": hard, and soft in layers whose directions are used nearly alike. By default auto
    where samples or classes are matched, soft with ``way="solve"``, else hard. See :mod:`unweave.protection`."""
    way: str = "walk"
    """Samples that are matched: "walk", in many small steps, or "solve": in one or a few large ones, each the least
    change that brings all margins to their targets, as far as they are linear in the weights. See
    :mod:`unweave.walking.solving`."""
    lam: float | None = None
    """The paper's loss: weight of the entropy; > 0 spreads the outputs on the forget set, < 0 sharpens them."""
    eps: float | None = None
    """The paper's loss: bounds its gradient by 1/ε."""
    odds: float | None = None
    """Classes that are matched: how strongly the odds among the classes that stay are held on the forget set (default:
    HELD_ODDS); 0: not at all. Large values, from 3 on, may lead a walk astray."""
    lr: float | None = None
    """Learning rate of the first epoch; None lets the step choose itself."""
    lr_end: float | None = None
    """Learning rate after ``epochs``, reached exponentially; None keeps ``lr``."""
    epochs: int = 100
    """At most this many passes over the forget set."""
    batch_size: int = 128
    stop: str | None = None
    """Where to stop: "held-out" (samples), "chance" (classes), "poison", "paper" or "epochs"."""
    layers: Sequence[str] | int | None = None
    """Move only these layers, or only the last k; the others are frozen."""
    seed: int = 0
    max_damage: float | None = 5.0
    """A rise of the validation error by more points than this, beside what fewer samples of a class cost by themselves,
    counts as a collapse and is undone; None: never."""
    watch: str = "ends"
    """When to look at the validation set: before the first step and at the end (and, should that show a collapse, once
    more from the start with a look after every epoch), or "epochs": after every epoch. A stop rule that compares
    validation errors looks after every epoch anyway."""
    energy: str = "sigma"
    rank_rule: str = "paper"
    negative: str = "clip"
    freeze_at_one: bool = False
    """Freeze a layer with γ = 1 altogether, as the authors' code does."""
    label_shift: bool = True
    """Samples: aim where held-out samples would be for a network trained on the retained samples alone. It says a class
    less often that has lost more of its samples than the others have; see :mod:`unweave.behaviour.label_shift`. Turn it
    off where training weighed all classes alike, however many samples they had."""
    shuffle: bool = True
    dropout: bool = False
    """Leave dropout on while unlearning, as the authors' code does."""
    idle_first_epoch: bool = False
    """Let the schedule run one epoch ahead, as the authors' code does (its epoch 0 only evaluates)."""
    strangers: str = "refuse"
    """Samples that were never fitted as they are here, where the counts of margins find more than a few: "refuse" the
    request, or "tell" of them in its warnings and take them out all the same, as where Grams were fitted under a little
    random augmentation. See :mod:`unweave.behaviour.strangers`."""
    trust: int = 400
    """De-poisoning: at most so many of the weakest core directions of the last linear layer are rescaled (0: none)."""
    notes: tuple[str, ...] = ()
    """Where a preset follows the authors' code rather than the paper."""

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        self._check_gamma()
        if self.lr is None and self.lr_end is not None:
            raise ConfigError("lr_end without lr: give both, or neither to let the step choose itself.")
        if self._protection() != "hard" and self.rank_rule != "paper":
            raise ConfigError(
                f"rank_rule={self.rank_rule!r} counts protected directions, and protect={self._protection()!r} does "
                "not go by their number. Use protect='hard', or leave rank_rule out."
            )
        if self.objective == "match" and (self.lam is not None or self.eps is not None):
            raise ConfigError("lam and eps belong to the paper's loss. Use objective='paper', or leave them out.")
        if self.odds and (self.task, self._objective()) != ("classes", "match"):
            raise ConfigError(
                "odds are held where classes are matched: task='classes' with objective='match'. Leave odds out."
            )
        if self.way == "solve":
            self._check_solving()
        if self.objective == "match" and self.stop not in (None, OWN_STOP[self.task]):
            raise ConfigError(
                f"objective='match' stops at {OWN_STOP[self.task]!r} for task={self.task!r}, not at {self.stop!r}. "
                "Leave stop out."
            )

    def _check_solving(self) -> None:
        if (self.task, self._objective()) != ("samples", "match"):
            raise ConfigError(
                "way='solve' brings margins to their targets: task='samples' with objective='match'. Leave way out."
            )
        if self.lr is not None or self.dropout:
            raise ConfigError("way='solve' takes no learning rate and no dropout. Leave lr and dropout out, or way.")

    def _check_choices(self) -> None:
        choices = {
            "task": TASKS,
            "watch": WATCHES,
            "way": WAYS,
            "strangers": STRANGERS,
            "energy": tuple(ENERGIES),
            "rank_rule": RANK_RULES,
            "negative": NEGATIVE,
        }
        optional = {"objective": OBJECTIVES, "stop": STOPS, "protect": PROTECTIONS}
        for name, known in {**choices, **optional}.items():
            value = getattr(self, name)
            if value not in known and not (value is None and name in optional):
                raise ConfigError(f"Invalid {name}: {value!r}. Supported: {', '.join(known)}.")

    def _check_numbers(self) -> None:
        for name in ("lr", "lr_end", "eps", "max_damage"):
            value = getattr(self, name)
            positive = _is_number(value) and value > 0 and (math.isfinite(value) or name == "max_damage")
            if value is not None and not positive:
                raise ConfigError(f"Invalid {name}: {value!r}. Supported: a number above 0, or None.")
        if self.odds is not None and not (_is_number(self.odds) and 0 <= self.odds < math.inf):
            raise ConfigError(f"Invalid odds: {self.odds!r}. Supported: a finite number from 0.")
        if self.lam is not None and not (_is_number(self.lam) and math.isfinite(self.lam)):
            raise ConfigError(f"Invalid lam: {self.lam!r}. Supported: a finite number.")
        for name, least in {"epochs": 1, "batch_size": 1, "trust": 0, "seed": 0}.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not (isinstance(value, int) and value >= least):
                raise ConfigError(f"Invalid {name}: {value!r}. Supported: an integer from {least}.")

    def _check_gamma(self) -> None:
        per_layer = isinstance(self.gamma, Mapping)
        for name, value in self.gamma.items() if isinstance(self.gamma, Mapping) else [("", self.gamma)]:
            if not (_is_number(value) and 0 < value <= 1):
                where = f" for {name!r}" if per_layer else ""
                raise ConfigError(f"Invalid gamma{where}: {value!r}. Supported: a number in (0, 1], or one per layer.")

    def _objective(self) -> str:
        """The one given, or else the one for the task."""
        stops = self.stop in (None, OWN_STOP[self.task])
        return self.objective or ("match" if stops and self.lam is None and self.eps is None else "paper")

    def _protection(self) -> str:
        """The one given, or else the one for the way and the task."""
        if self.protect is not None or self.way == "solve":
            return self.protect or "soft"
        as_in_the_paper = self._objective() == "paper" or self.rank_rule != "paper"
        return "hard" if as_in_the_paper or self.task == "poison" else "auto"

    def resolved(self) -> ForgetConfig:
        """The same settings with every "chosen for the task" filled in (but lr, which the step finds)."""
        poison, objective = self.task == "poison", self._objective()
        papers, elsewhere = objective == "paper", (self.task, objective) == ("classes", "match")
        return replace(
            self,
            objective=objective,
            protect=self._protection(),
            lam=(-0.2 if poison else 0.2) if papers and self.lam is None else self.lam,
            eps=(0.1 if poison else 0.05) if papers and self.eps is None else self.eps,
            odds=HELD_ODDS if elsewhere and self.odds is None else self.odds,
            stop=self.stop or OWN_STOP[self.task],
        )

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["gamma"] = dict(self.gamma) if isinstance(self.gamma, Mapping) else self.gamma
        plain["layers"] = self.layers if isinstance(self.layers, int) or self.layers is None else list(self.layers)
        return plain

    @classmethod
    def paper(cls, experiment: str) -> ForgetConfig:
        """The authors' settings for one of their experiments, with notes where their code departs from the paper.

        Raises:
            ConfigError: an experiment that is not there; the message lists those that are.
        """
        from unweave.presets import PRESETS

        if experiment not in PRESETS:
            raise ConfigError(f"Unknown experiment {experiment!r}. Supported: {', '.join(PRESETS)}.")
        return PRESETS[experiment]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
