from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from unweave import ForgetConfig
from unweave.behaviour.outcomes import ClassProfile, Outcomes
from unweave.errors import DataError
from unweave.stopping import Goal, choose_goal, collapsed


def outcomes(labels: list[int], margins: list[float], classes: int = 3) -> Outcomes:
    """Samples with these margins, wrong where the margin is below zero."""
    margin = torch.tensor(margins, dtype=torch.float64)
    zero = torch.zeros_like(margin)
    return Outcomes(torch.tensor(labels), margin < 0, zero, margin, zero, classes)


HELD_OUT = ClassProfile.of(
    outcomes([0] * 4 + [1] * 2 + [2] * 5, [-1.0, 1.0, 2.0, 3.0, -2.0, 4.0, -3.0, -2.0, -1.0, 0.5, 1.0])
)
"""Errors of 25, 50 and 60 percent."""


def goal_for(before: Outcomes, held_out: ClassProfile | None = HELD_OUT, **settings: object) -> Goal:
    return choose_goal(ForgetConfig(**settings).resolved(), before, held_out)


# -------------------------------------------------------------------------------------------------------- the error


def test_the_target_error_has_the_forget_set_s_class_proportions() -> None:
    goal = goal_for(outcomes([0, 0, 0, 1], [5.0, 6.0, 7.0, 8.0]))
    assert goal.error == pytest.approx((3 * 25 + 50) / 4)


@pytest.mark.parametrize("objective", ["match", "paper"])
def test_a_class_without_held_out_samples_is_refused_by_name(objective: str) -> None:
    known = HELD_OUT.count.clone()
    known[1] = 0
    without = replace(HELD_OUT, count=known)
    with pytest.raises(DataError, match=r"class 1.*val="):
        goal_for(outcomes([0, 1], [1.0, 1.0]), without, objective=objective)


def test_nothing_to_aim_at_is_refused() -> None:
    with pytest.raises(DataError, match="val="):
        goal_for(outcomes([0, 1], [1.0, 1.0]), None)


@pytest.mark.parametrize("task", ["classes", "poison"])
def test_classes_and_poison_aim_at_chance_and_need_no_held_out_data(task: str) -> None:
    goal = goal_for(outcomes([0, 0], [1.0, 1.0], classes=4), None, task=task)
    assert goal.error == 75
    assert goal.margins is None
    assert goal.mean_margin == pytest.approx(-math.log(3))
    assert goal.at_least == (task == "poison")


@pytest.mark.parametrize("count, tolerance", [(1, 100), (20, 5), (199, 100 / 199), (200, 0.5), (5000, 0.5)])
def test_a_landing_may_be_off_by_one_sample_or_half_a_point(count: int, tolerance: float) -> None:
    goal = goal_for(outcomes([0] * count, [1.0] * count))
    assert goal.tolerance == pytest.approx(tolerance)
    assert goal.reached(goal.error + goal.tolerance - 1e-9)
    assert goal.reached(goal.error - goal.tolerance + 1e-9)
    assert not goal.reached(goal.error + goal.tolerance + 0.01)
    assert not goal.reached(goal.error - goal.tolerance - 0.01)


def test_more_than_chance_is_enough_for_poison_only() -> None:
    samples = outcomes([0] * 50, [1.0] * 50, classes=4)
    assert goal_for(samples, task="poison").reached(100)
    assert not goal_for(samples, task="classes").reached(100)
    assert not goal_for(samples, task="poison").reached(70)


# ------------------------------------------------------------------------------------------------------- the margins


def expected(label: int, rank: float) -> float:
    held_out = {0: [-1.0, 1.0, 2.0, 3.0], 1: [-2.0, 4.0], 2: [-3.0, -2.0, -1.0, 0.5, 1.0]}[label]
    return torch.tensor(held_out, dtype=torch.float64).quantile(rank).item()


def test_a_sample_gets_the_held_out_margin_at_its_rank_within_its_class() -> None:
    """Ranks are (position + ½) / n among the forget set's samples of the class, from the lowest margin up."""
    goal = goal_for(outcomes([0, 1, 0, 2, 0, 0], [9.0, 5.0, 3.0, 1.0, 7.0, 5.0]))
    ranks = [(0, 3.5 / 4), (1, 0.5), (0, 0.5 / 4), (2, 0.5), (0, 2.5 / 4), (0, 1.5 / 4)]
    by_hand = [expected(label, rank) for label, rank in ranks]
    # Only whole percents are kept, so the second place of a kinked quantile curve is not exact.
    assert goal.margins.tolist() == pytest.approx(by_hand, abs=0.02)
    assert goal.margins[1].item() == pytest.approx(1.0)


def test_the_order_of_margins_survives_within_a_class() -> None:
    before = outcomes([2] * 40, torch.randn(40, generator=torch.Generator().manual_seed(1)).tolist())
    assert goal_for(before).margins.argsort().tolist() == before.margin.argsort().tolist()


def test_the_paper_s_objective_aims_at_the_error_alone() -> None:
    goal = goal_for(outcomes([0, 1], [1.0, 1.0]), objective="paper")
    assert goal.margins is None
    assert goal.distance(outcomes([0, 1], [9.0, 9.0])) == pytest.approx(9 - goal.mean_margin)
    assert goal.distance(outcomes([0, 1], [-9.0, -9.0])) == 0


def test_the_goal_stays_when_the_forget_set_s_outcomes_change() -> None:
    """It holds numbers, not samples: nothing about it can be measured again."""
    before = outcomes([0, 0, 1], [3.0, 5.0, 1.0])
    goal = goal_for(before)
    kept = goal.error, goal.margins.clone()
    before.margin.neg_()
    before.wrong.logical_not_()
    assert goal.error == kept[0]
    assert torch.equal(goal.margins, kept[1])


def test_shifted_targets_move_together_and_the_error_stays() -> None:
    goal = goal_for(outcomes([0, 1], [1.0, 1.0]))
    moved = goal.shifted(-0.5)
    assert torch.allclose(moved.margins, goal.margins - 0.5)
    assert moved.error == goal.error


# ------------------------------------------------------------------------------------------------------ being there


def at_the_targets(goal: Goal, off: Tensor | float = 0.0) -> list[float]:
    return (goal.margins + off).tolist()


def test_margins_at_their_targets_with_the_right_error_meet_the_goal() -> None:
    labels = [0] * 8
    goal = goal_for(outcomes(labels, [float(i) for i in range(8)]))
    assert goal.met(outcomes(labels, at_the_targets(goal)))
    assert not goal.met(outcomes(labels, at_the_targets(goal, off=5.0)))


@pytest.mark.parametrize("objective", ["match", "paper"])
def test_one_memorised_sample_does_not_meet_the_goal_by_the_tolerance_of_its_error(objective: str) -> None:
    """One sample is off by at most one sample, whatever its margin."""
    goal = goal_for(outcomes([0], [20.0]), objective=objective)
    assert goal.reached(0.0)
    assert not goal.met(outcomes([0], [20.0]))
    assert goal.met(outcomes([0], [goal.mean_margin]))


def test_a_collapse_is_a_rise_by_more_points_than_allowed() -> None:
    assert collapsed(15.1, 10.0, 5.0)
    assert not collapsed(14.9, 10.0, 5.0)
    assert not collapsed(None, None, 5.0)
