"""What is said after a request that is done, or looks as if it were; and which weights it left alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import problems
import pytest
import torch
from helpers import in_batches
from problems import Problem
from torch import Tensor

import unweave
from unweave import remarks
from unweave.rest import fingerprint


@pytest.fixture(scope="module")
def points() -> Problem:
    return problems.points()


@pytest.fixture(scope="module")
def poisoned() -> tuple[Problem, Tensor]:
    return problems.poisoned()


def with_frozen(problem: Problem, *names: str) -> Problem:
    net = copy.deepcopy(problem.model)
    for name, weight in net.named_parameters():
        weight.requires_grad_(name not in names)
    return replace(problem, model=net)


def moved(problem: Problem, result: unweave.ForgetResult) -> set[str]:
    old, new = problem.model.state_dict(), result.model.state_dict()
    return {name for name in old if not torch.equal(old[name], new[name])}


# ------------------------------------------------------------------------------------------------------ what may move


def test_frozen_weights_stay_as_they_are(points: Problem) -> None:
    problem = with_frozen(points, "0.weight", "2.bias")
    result = problem.run()
    assert result.ok
    assert moved(problem, result) == {"2.weight", "4.weight"}
    assert set(result.ranks) == set(result.shift) == {"2", "4"}


def test_what_is_asked_for_moves_though_it_is_frozen(points: Problem) -> None:
    problem = with_frozen(points, "0.weight")
    assert moved(problem, problem.run(layers=["0", "4"])) == {"0.weight", "4.weight"}


def test_a_model_that_is_frozen_as_a_whole_was_loaded_to_be_used(points: Problem) -> None:
    problem = with_frozen(points, *dict(points.model.named_parameters()))
    result = problem.run()
    assert moved(problem, result) == moved(points, points.run()) == {"0.weight", "2.weight", "4.weight"}
    assert not any(weight.requires_grad for weight in result.model.parameters())


def test_few_weights_that_can_move_are_told(points: Problem) -> None:
    problem = with_frozen(points, "0.weight", "2.weight")
    (said,) = [text for text in problem.run().warnings if "could move" in text]
    assert said.startswith("only 5 % of the model's parameters could move: others are frozen, left out by layers=, or")
    assert not any("could move" in text for text in points.run().warnings)


# ----------------------------------------------------------------------------------------------------- what was asked


def test_a_whole_class_passed_as_samples_is_told(points: Problem) -> None:
    everything = replace(points, forget=(points.y == 2).nonzero().flatten())
    (said,) = [text for text in everything.run().warnings if "no training sample of class 2 is left" in text]
    assert "task='classes' (--classes)" in said
    for request in (everything.run(task="classes"), replace(points, forget=everything.forget[1:]).run()):
        assert not any("no training sample of class" in text for text in request.warnings)


def test_labels_that_are_not_followed_are_not_the_wrong_ones(poisoned: tuple[Problem, Tensor]) -> None:
    problem, truth = poisoned
    corrected = in_batches(problem.x[problem.forget], truth[problem.forget], 64)
    config = unweave.ForgetConfig(task="poison")
    result = unweave.forget(problem.model, corrected, problem.grams, problem.val, config)
    (said,) = [text for text in result.warnings if "taken for something else than the labels given" in text]
    assert said.endswith("from the model and Grams of before")
    assert not any("labels given" in text for text in problem.run(task="poison").warnings)


def test_right_labels_that_cannot_be_left_cost_nothing(points: Problem) -> None:
    """They are protected by their neighbours: where the walk gains little, what it costs is not kept either."""
    problem = replace(points, forget=torch.arange(60))
    result = problem.run(task="poison")
    assert not result.ok
    assert result.final.forget_error == result.history[0].forget_error
    assert moved(problem, result) == set()
    assert result.grams is problem.grams
    assert "(epoch 0)" in result.stopped


# ------------------------------------------------------------------------------------------------ what all did together


def told_together(points: Problem, forgotten: tuple[str, ...], now: dict[int, float], **shifts: float) -> list[str]:
    """What is said after a request that left these held-out errors and shifts, by hand."""
    grams = points.grams.belonging_to(fingerprint(points.model), forgotten=forgotten, held_out=points.grams.held_out)
    final = SimpleNamespace(val_error_by_class=now)
    found = {"0": shifts["since_the_first"]} if "since_the_first" in shifts else {}
    return remarks.since_the_first(grams, grams, final, found, {"0": shifts.get("in_this", 0.0)})


def test_damage_that_adds_up_over_requests_is_told(points: Problem) -> None:
    held_out = points.grams.held_out
    assert held_out is not None
    before = {c: 100 * float(held_out.error[c]) for c in range(5)}
    risen = {c: error + 6 for c, error in before.items()}
    (said,) = told_together(points, ("earlier",), risen)
    mean = sum(before.values()) / 5
    assert f"rose from {mean:.1f} to {mean + 6:.1f} %: damage adds up" in said
    assert told_together(points, ("earlier",), {c: error + 4 for c, error in before.items()}) == []
    assert told_together(points, (), risen) == [], "the first request has its own words for it"
    (said,) = told_together(points, ("earlier",), before, since_the_first=0.25, in_this=0.1)
    assert said == "over all requests so far retained samples feel layer '0' change by 25 %: check their errors"
    assert told_together(points, ("earlier",), before, since_the_first=0.25, in_this=0.21) == [], "said already"


def test_the_shift_since_the_first_model_is_measured_where_it_is_given(
    points: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = points.run()
    more = points.samples(torch.arange(40, 60))
    seen = dict[str, float]()

    def noted(
        grams: object, retained: object, final: object, shift: dict[str, float], now: dict[str, float]
    ) -> list[str]:
        seen.update(shift)
        return []

    monkeypatch.setattr(remarks, "since_the_first", noted)
    second = unweave.forget(one.model, more, one.grams, points.val)
    assert seen == {}
    second = unweave.forget(one.model, more, one.grams, points.val, first=points.model)
    assert seen.keys() == second.shift.keys()
    assert all(seen[name] > 0.9 * one.shift[name] for name in seen)
