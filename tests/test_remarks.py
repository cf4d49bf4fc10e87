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
from unweave import remarks, twins
from unweave.batches import map_tensors
from unweave.rest import fingerprint
from unweave.twins import marks


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


def test_samples_to_forget_that_are_not_held_out_are_told(points: Problem) -> None:
    held_x, held_y = (torch.cat(part) for part in zip(*points.val, strict=True))
    for extra, count in ((points.forget[:3], 3), (points.forget, 40)):
        val = in_batches(torch.cat([held_x, points.x[extra]]), torch.cat([held_y, points.y[extra]]), 123)
        (said,) = [text for text in points.run(val=val).warnings if "among the validation samples" in text]
        assert said.startswith(f"{count} of these 40 samples are among")
    for val in (points.val, None):
        assert not any("among the validation" in text for text in points.run(val=val).warnings)


def test_what_any_rank_has_met_counts() -> None:
    assert remarks.not_held_out([[True, False, False], [True, False, True]])[0].startswith("2 of these 3 samples")
    assert remarks.not_held_out([[False] * 3] * 2) == []


INPUTS = {
    "floats": torch.randn(50, 3, 4),
    "ids": torch.randint(0, 9, (50, 12)),
    "halves": torch.randn(50, 5).half(),
    "bytes": torch.randint(0, 255, (50, 6, 6), dtype=torch.uint8),
    "truths": torch.rand(50, 40) > 0.5,
    "complex": torch.randn(50, 4, dtype=torch.complex64),
    "several": {"a": torch.randn(50, 2), "b": (torch.randn(50, 3), torch.arange(50))},
}


@pytest.mark.parametrize("kind", INPUTS)
def test_a_mark_tells_samples_apart_and_does_not_depend_on_the_batch(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = INPUTS[kind]
    whole = marks(inputs)
    assert len(whole.unique()) == 50
    order = torch.randperm(50)
    assert torch.equal(marks(map_tensors(inputs, lambda t: t[order][:20])), whole[order][:20])
    transposed = map_tensors(inputs, lambda t: t.transpose(0, -1).contiguous().transpose(0, -1))
    assert torch.equal(marks(transposed), whole), "the same numbers in another order of memory"
    monkeypatch.setattr(twins, "ELEMENTS", 7)
    assert torch.equal(marks(inputs), whole)


def test_a_mark_sees_every_number_and_its_place() -> None:
    x = torch.arange(12.0).view(1, 3, 4)
    found = {int(marks(x)), int(marks(x.flip(1))), int(marks(x.transpose(1, 2).contiguous()))}
    for i in range(12):
        other = x.clone().view(-1)
        other[i] += 1e-6 if i == 0 else 1e-6 * i
        found.add(int(marks(other.view(1, 3, 4))))
    assert len(found) == 15
    assert int(marks((x, x + 1))) != int(marks((x + 1, x)))


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
