"""Where a request should land, when it has, and what counts as a ruin.

A goal is fixed on the original model before the first step. (A goal measured again on the changing model runs away: the
damage done so far makes more damage look right.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unweave.config import ForgetConfig
from unweave.errors import DataError
from unweave.outcomes import ClassProfile, Outcomes
from unweave.spread import MarginCounts

LANDING_POINTS = 0.5
"""A landing is right within this many points of the target error, or within one sample if that is more."""

FEW = 20
"""With fewer samples of a class, each is ranked among all that the model was trained on, where that is known."""

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
    """Of every class there are so few samples that the error alone may say nothing: one that stays right may not have
    been forgotten at all."""
    near: float = 0.0
    """Of few samples: a distance that is none, should no step make it smaller."""
    highest: Tensor | None = None
    """Margins [N] that no target may exceed."""
    due: Mapping[int, float] = field(default_factory=dict)
    """Points by which the held-out error of a class would rise by retraining too; see :mod:`unweave.label_shift`."""

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
    goal = _as_held_out(config, tolerance, before, aim, trained, learnt or before)
    as_it_is = held_out.expected_error(before.labels)
    words = f"{goal.words}{FEWER}" if aim.expected_error(before.labels) > as_it_is + SAID else goal.words
    due = _due(before, held_out.without(present), aim) if shifted else {}
    return replace(goal, held_out_error=as_it_is, words=words, due=due)


def _due(before: Outcomes, now: ClassProfile, aim: ClassProfile) -> dict[int, float]:
    """What retraining would cost held-out samples of the request's classes: from where they would be now, in points."""
    rises = 100 * (aim.error - now.error)
    return {c: rises[c].item() for c in before.labels.unique().tolist() if rises[c] > 0}


def _as_held_out(
    config: ForgetConfig,
    tolerance: float,
    before: Outcomes,
    held_out: ClassProfile,
    trained: MarginCounts | None,
    learnt: Outcomes,
) -> Goal:
    """Every sample at the margin of held-out ones of its class at its rank."""
    held_out.require(before.labels)
    ranks, wrong, words = _ranks_within(before), held_out.error[before.labels], "the held-out error of its classes"
    few = ranked_by_training(before, trained)
    if trained is not None and bool(few.any()):
        ranks[few] = trained.ranks(before.labels[few], learnt.margin[few])
        # What would be wrong is aimed at the middle of what is: the lowest margins are those of the oddest of many
        # samples, which a single one hardly is, and the way there costs the others.
        middle = wrong[few] / 2
        wrong[few] = (ranks[few] < wrong[few]).double()
        ranks[few] = ranks[few].maximum(middle)
        words += ", for samples as hard to learn as these" if bool(few.all()) else ", for some by how hard to learn"
    margins = held_out.margin_at(before.labels, ranks)
    # Who asks to be forgotten is not to be known better: what is wrong already, and would be right, stays wrong.
    highest = before.margin.where(few, torch.inf)
    wrong = wrong.where(~(before.wrong & (margins >= highest)), 1.0)
    margins = margins.minimum(highest)
    spread = (margins.std().item() if len(margins) > 1 else 0.0) or 1.0  # few may all have one target
    return Goal(
        error=100.0 * wrong.mean().item(),
        tolerance=tolerance,
        mean_margin=margins.mean().item(),
        words=words,
        margins=margins if config.objective == "match" else None,
        spread=max(spread, 1e-12),
        few=bool(few.all()),
        near=NEAR * held_out.margin[before.labels].std(1).mean().item() if bool(few.all()) else 0.0,
        highest=highest,
    )


def ranked_by_training(outcomes: Outcomes, trained: MarginCounts | None) -> Tensor:
    """Which samples are ranked among the training samples of their class, bool [N]: those of which there are few.

    Among themselves a few are ranked by chance, and a single one is always in the middle.
    """
    few = outcomes.labels.bincount(minlength=outcomes.classes)[outcomes.labels] < FEW
    return few & trained.known(outcomes.labels) if trained is not None else torch.zeros_like(few)


def _ranks_within(outcomes: Outcomes) -> Tensor:
    """Where each sample's margin stands among the forget set's own samples of its class: (position + ½) / n."""
    ranks = torch.empty(len(outcomes), dtype=torch.float64)
    for c in outcomes.labels.unique():
        own = (outcomes.labels == c).nonzero().squeeze(1)
        order = outcomes.margin[own].argsort(stable=True).argsort(stable=True)
        ranks[own] = (order.double() + 0.5) / len(own)
    return ranks


def collapsed(val_error: float | None, val_before: float | None, max_damage: float | None) -> bool:
    """Whether the validation error has risen by more than the user allows."""
    if max_damage is None:
        return False
    return val_error is not None and val_before is not None and val_error > val_before + max_damage
