"""Where a request should land, when it has, and what counts as a ruin.

A goal is fixed on the original model before the first step. (A goal measured again on the changing model runs away: the
damage done so far makes more damage look right.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from unweave.behaviour.outcomes import ClassProfile, Outcomes
from unweave.behaviour.ranking import places
from unweave.behaviour.spread import MarginCounts, Standing
from unweave.config import ForgetConfig
from unweave.errors import DataError

LANDING_POINTS = 0.5
"""A landing is right within this many points of the target error, or within one sample if that is more."""

NEAR = 0.25
"""Few samples within this share of the spread of held-out margins are near: retrained models differ by
more (on the demonstration's network by 1.1, where margins of samples spread by about 3)."""

FEWER = ", learnt from fewer samples"
SAID = 0.1
"""Points by which a target must have moved for that to be said."""

SAME_MARGIN = 0.1
"""Margins closer to their targets than this share of the targets' spread need no request."""


@dataclass(frozen=True)
class Goal:
    """What the forget set should look like afterwards."""

    error: float
    """Target error on the forget set, in percent."""
    tolerance: float
    """How close is right, in points."""
    mean_margin: float
    """The mean margin that goes with it: the scale for choosing a step."""
    words: str
    """The target in words, for the user."""
    margins: Tensor | None = None
    """Per-sample target margins [N], where samples are matched."""
    at_least: bool = False
    """More than the target is right as well."""
    spread: float = math.inf
    """How much held-out margins vary; infinite where only the error counts."""
    held_out_error: float | None = None
    """The held-out error of the forget set's classes, in percent, where the target comes of it."""
    few: bool = False
    """Of every class there are few samples, or odd ones: the error alone may say nothing, for one that stays right may
    not have been forgotten at all."""
    near: float = 0.0
    """Of such samples: a distance that is none, should no step make it smaller."""
    highest: Tensor | None = None
    """Margins [N] that no target may exceed."""
    due: Mapping[int, float] = field(default_factory=dict)
    """Points by which the held-out error of a class would rise by retraining too; see
    :mod:`unweave.behaviour.label_shift`."""

    def __str__(self) -> str:
        return f"{'at least ' if self.at_least else ''}{self.error:.2f} % ({self.words})"

    def gap(self, error: float) -> float:
        """How far an error is from the target, in points, signed: negative while too little is forgotten."""
        return error - self.error

    def reached(self, error: float) -> bool:
        gap = self.gap(error)
        return gap >= -self.tolerance if self.at_least else abs(gap) <= self.tolerance

    def distance(self, outcomes: Outcomes) -> float:
        """How far the margins still have to go: the mean over samples (match), or of the mean."""
        if self.margins is not None:
            return (outcomes.margin - self.margins).abs().mean().item()
        return max(0.0, outcomes.margin.mean().item() - self.mean_margin)

    def met(self, outcomes: Outcomes) -> bool:
        """Whether error and margins are both where they should be (a few samples may have the error by chance)."""
        return self.reached(outcomes.error) and self.distance(outcomes) <= SAME_MARGIN * self.spread

    def shifted(self, by: float) -> Goal:
        """The goal with every target margin moved, as far as it may be."""
        if self.margins is None:
            return self
        margins = self.margins + by
        return replace(self, margins=margins if self.highest is None else margins.minimum(self.highest))


def choose_goal(
    config: ForgetConfig,
    before: Outcomes,
    held_out: ClassProfile | None,
    trained: MarginCounts | None = None,
    learnt: Outcomes | None = None,
    present: Sequence[int] = (),
    retained: Sequence[int] = (),
    *,
    same_model: bool = False,
) -> Goal:
    """The goal of a request.

    Args:
        config: what is asked for.
        before: what the model makes of the forget set.
        held_out: what is known of its outputs on held-out samples.
        trained: how the margins of training samples are spread.
        learnt: what the model that these margins are of makes of the forget set, where it is there.
        present: how many samples of each class there are before the request; empty where nobody knows.
        retained: how many there are afterwards.
        same_model: whether ``learnt`` is of the model that ``trained`` is of.

    Raises:
        DataError: neither ``val=`` nor aggregates in the Grams to aim at, or none for one of the classes.
    """
    tolerance = max(LANDING_POINTS, 100.0 / len(before))
    chance = 100.0 * (1 - 1 / before.classes)
    chance_margin = -math.log(before.classes - 1) if before.classes > 2 else -1.0
    if config.stop in ("chance", "poison", "epochs"):
        return Goal(chance, tolerance, chance_margin, "chance level", at_least=config.stop != "chance")
    if held_out is None:
        raise DataError(
            "There is nothing to aim at: pass val= (held-out samples; --val on the command line), or Grams that were "
            "fitted with it."
        )
    shifted = config.label_shift and (config.task, config.stop) == ("samples", "held-out")
    aim = held_out.without(retained) if shifted else held_out
    goal = _as_held_out(config, tolerance, before, aim, _learnt(before, learnt, trained), same_model)
    as_it_is = held_out.expected_error(before.labels)
    words = f"{goal.words}{FEWER}" if aim.expected_error(before.labels) > as_it_is + SAID else goal.words
    due = _due(before, held_out.without(present), aim) if shifted else {}
    return replace(goal, held_out_error=as_it_is, words=words, due=due)


def _due(before: Outcomes, now: ClassProfile, aim: ClassProfile) -> dict[int, float]:
    """What retraining would cost held-out samples of the request's classes: from where they would be now, in points."""
    rises = 100 * (aim.error - now.error)
    return {c: rises[c].item() for c in before.labels.unique().tolist() if rises[c] > 0}


def _as_held_out(
    config: ForgetConfig, tolerance: float, before: Outcomes, held_out: ClassProfile, learnt: Standing, same_model: bool
) -> Goal:
    """Every sample at the margin of held-out ones of its class at its rank, and none above where it is.

    Arguments are those of :func:`choose_goal`, but ``learnt``: where samples stand among the training samples.
    """
    held_out.require(before.labels)
    aim = places(before, learnt, held_out.error, same_model)
    margins = held_out.margin_at(before.labels, aim.ranks).minimum(before.margin)
    spread = (margins.std().item() if len(margins) > 1 else 0.0) or 1.0  # few may all have one target
    few = bool(aim.by_training.all())
    error, words = 100.0 * aim.wrong.mean().item(), "the held-out error of its classes"
    if bool(aim.by_training.any()):
        words += ", for samples as hard to learn as these" if few else ", for some by how hard to learn"
    elif error > held_out.expected_error(before.labels) + SAID:
        words += ", and no better than now"
    return Goal(
        error=error,
        tolerance=tolerance,
        mean_margin=margins.mean().item(),
        words=words,
        margins=margins if config.objective == "match" else None,
        spread=max(spread, 1e-12),
        few=few,
        near=NEAR * held_out.margin[before.labels].std(1).mean().item() if few else 0.0,
        highest=before.margin,
    )


def _learnt(before: Outcomes, learnt: Outcomes | None, trained: MarginCounts | None) -> Standing:
    """Where the samples stand among the training samples."""
    if trained is None:
        return Standing.unknown(len(before))
    return trained.standing(before.labels, before.margin if learnt is None else learnt.margin)


def collapsed(val_error: float | None, val_before: float | None, max_damage: float | None) -> bool:
    """Whether the validation error has risen by more than the user allows."""
    if max_damage is None:
        return False
    return val_error is not None and val_before is not None and val_error > val_before + max_damage
