"""Of the ways to take wrong labels back, the one that held-out samples favour is kept."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from problems import Problem
from torch import Tensor, nn

from unweave import ForgetConfig
from unweave.loop import Ending
from unweave.result import Look
from unweave.ways import Walked, better_of, ways_of

POISON = ForgetConfig(task="poison").resolved()


def look(val_error: float | None) -> Look:
    return Look(1, 0.5, 95.0, val_error, None, 0.1, None, 0.01, 1.0)


def walked(config: ForgetConfig, val_error: float | None, *, ok: bool = True, looks: int = 2) -> Walked:
    return Walked(config, nn.Identity(), [look(val_error)] * looks, Ending("Landed.", ok), look(val_error))


def kept_of(*ends: tuple[float, bool]) -> Walked:
    """What is kept of two ways that end with these validation errors, and well or not."""
    outcomes = iter(ends)

    def walk(config: ForgetConfig) -> Walked:
        val_error, ok = next(outcomes)
        return walked(config, val_error, ok=ok)

    return better_of(ways_of(POISON, watched=True), walk)


def test_only_wrong_labels_have_two_ways_and_only_where_held_out_samples_can_judge() -> None:
    def shares(config: ForgetConfig, watched: bool) -> list[float | None]:
        return [way.trust_share for way in ways_of(config, watched=watched)]

    assert shares(POISON, True) == [0.5, 1.0]
    assert shares(POISON, False) == [0.5]
    assert shares(dataclasses.replace(POISON, trust=0), True) == [0.5], "nothing is rescaled"
    assert shares(dataclasses.replace(POISON, trust_share=0.7), True) == [0.7]
    for task in ("samples", "classes"):
        config = ForgetConfig(task=task).resolved()
        assert ways_of(config, watched=True) == [config]
    assert shares(ForgetConfig.paper("smallvgg-cifar10-poison").resolved(), True) == [1.0]


@pytest.mark.parametrize(
    "first, second, share",
    [
        ((30.0, True), (29.0, True), 1.0),
        ((29.0, True), (30.0, True), 0.5),
        ((30.0, True), (30.0, True), 0.5),  # the careful one
        ((30.0, True), (29.0, False), 0.5),
        ((30.0, False), (35.0, True), 1.0),
        ((30.0, False), (29.0, False), 1.0),
    ],
)
def test_a_target_counts_before_the_validation_error(
    first: tuple[float, bool], second: tuple[float, bool], share: float
) -> None:
    kept = kept_of(first, second)
    assert kept.config.trust_share == share
    assert kept.ending.ok == (first[1] or second[1])


def test_the_words_say_what_became_of_both() -> None:
    words = kept_of((30.0, True), (29.0, False)).ending.words
    assert words.startswith("Landed. ")
    assert "50% (validation error 30.00 %) and 100% (validation error 29.00 %, not done)" in words


def test_where_there_is_nothing_to_do_no_other_way_is_walked() -> None:
    taken = list[ForgetConfig]()

    def walk(config: ForgetConfig) -> Walked:
        taken.append(config)
        return walked(config, 30.0, looks=1)

    kept = better_of(ways_of(POISON, watched=True), walk)
    assert len(taken) == 1
    assert kept.ending.words == "Landed."


def test_a_request_keeps_the_way_with_the_lower_validation_error(poisoned: tuple[Problem, Tensor]) -> None:
    problem, _ = poisoned
    each = {share: problem.run(task="poison", trust_share=share) for share in (0.5, 1.0)}
    result = problem.run(task="poison")
    best = min(each, key=lambda share: (not each[share].ok, each[share].final.val_error))
    assert result.config.trust_share == best
    for name, value in result.model.state_dict().items():
        assert torch.equal(value, each[best].model.state_dict()[name]), "as if only that way had been walked"
    assert [one.val_error for one in result.history] == [one.val_error for one in each[best].history]
    words = result.stopped.replace("validation error ", "")
    assert all(f"({one.final.val_error:.2f} %" in words for one in each.values())
