"""Of the ways to take wrong labels back, the one that held-out samples favour is kept."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import weakref

import pytest
import torch
from helpers import in_batches
from problems import Problem, clusters, mlp, train
from torch import Tensor, nn

import unweave
from unweave import ForgetConfig, ForgetResult
from unweave.descent import Descent
from unweave.loop import Ending
from unweave.result import Look
from unweave.ways import Walked, Way, better_of, counted_on, ways_of

POISON = ForgetConfig(task="poison").resolved()
TWO = [Way(dataclasses.replace(POISON, trust_share=share), width) for share, width in ((0.5, 30), (1.0, 60))]


def look(val_error: float | None, forget_error: float) -> Look:
    return Look(1, 0.5, forget_error, val_error, None, 0.1, None, 0.01, 1.0)


def walked(
    config: ForgetConfig, val_error: float, *, ok: bool = True, forget_error: float = 95.0, looks: int = 2
) -> Walked:
    final = look(val_error, forget_error)
    return Walked(config, nn.Identity(), [final] * looks, Ending("Landed.", ok), final)


def kept_of(*ends: tuple[float, bool, float]) -> Walked:
    """What is kept of two ways that end with these validation errors, well or not, and these forget errors."""
    outcomes = iter(ends)

    def walk(config: ForgetConfig) -> Walked:
        val_error, ok, forget_error = next(outcomes)
        return walked(config, val_error, ok=ok, forget_error=forget_error)

    return better_of(TWO, walk)


def test_only_wrong_labels_have_two_ways_and_only_where_held_out_samples_can_judge() -> None:
    def shares(config: ForgetConfig, core: int = 60, watched: bool = True) -> list[tuple[float | None, int]]:
        return [(way.config.trust_share, way.width) for way in ways_of(config, core, watched=watched)]

    assert shares(POISON) == [(0.5, 30), (1.0, 60)]
    assert shares(POISON, watched=False) == [(0.5, 30)]
    assert shares(dataclasses.replace(POISON, trust_share=0.7)) == [(0.7, 42)]
    for task in ("samples", "classes"):
        config = ForgetConfig(task=task).resolved()
        assert ways_of(config, 60, watched=True) == [Way(config)]
    assert shares(ForgetConfig.paper("smallvgg-cifar10-poison").resolved()) == [(1.0, 60)]


def test_ways_that_rescale_the_same_are_one() -> None:
    assert len(ways_of(POISON, 0, watched=True)) == 1, "no linear layer moves"
    assert len(ways_of(POISON, 800, watched=True)) == 1, "400 of 800 either way"
    assert [way.width for way in ways_of(POISON, 600, watched=True)] == [300, 400]


@pytest.mark.parametrize(
    "first, second, share",
    [
        ((30.0, True, 95.0), (29.0, True, 91.0), 1.0),
        ((29.0, True, 95.0), (30.0, True, 99.0), 0.5),
        ((30.0, True, 95.0), (30.0, True, 95.0), 0.5),  # the careful one
        ((30.0, True, 95.0), (29.0, False, 80.0), 0.5),
        ((30.0, False, 80.0), (35.0, True, 95.0), 1.0),
        ((30.0, False, 85.0), (25.0, False, 10.0), 0.5),  # an unmoved one has a fine validation error
        ((30.0, False, 70.0), (35.0, False, 85.0), 1.0),
    ],
)
def test_a_target_counts_before_the_validation_error(
    first: tuple[float, bool, float], second: tuple[float, bool, float], share: float
) -> None:
    kept = kept_of(first, second)
    assert kept.config.trust_share == share
    assert kept.ending.ok == (first[1] or second[1])


def test_the_words_say_what_became_of_both() -> None:
    words = kept_of((30.0, True, 95.0), (29.0, False, 80.0)).ending.words
    assert words.startswith("Landed. ")
    assert "30 (validation error 30.00 %) or 60 (validation error 29.00 %, not done); the better was kept." in words


def test_where_there_is_nothing_to_do_no_other_way_is_walked() -> None:
    taken = list[ForgetConfig]()

    def walk(config: ForgetConfig) -> Walked:
        taken.append(config)
        return walked(config, 30.0, looks=1)

    assert better_of(TWO, walk).ending.words == "Landed."
    assert taken == [TWO[0].config]


def test_epochs_count_on_from_walk_to_walk() -> None:
    told = list[tuple[str, int, int | None]]()
    tell = counted_on(lambda what, done, most: told.append((what, done, most)))
    for walk in ((1, 2, 3), (1, 2), (1,)):
        for done in walk:
            tell("forget", done, 100)
    assert told == [("forget", n, 100 + before) for n, before in ((1, 0), (2, 0), (3, 0), (4, 3), (5, 3), (6, 5))]


# ------------------------------------------------------------------------------------------------- whole requests


@pytest.fixture(scope="module")
def half_wrong() -> Problem:
    """An MLP that has half learnt points nearly half of whose labels are wrong."""
    x, y = clusters(300, 5, 20, 1.0, seed=1)
    wrong, chosen = y.clone(), torch.randperm(300, generator=torch.Generator().manual_seed(0))[:135]
    wrong[chosen] = (y[chosen] + 1) % 5
    net = train(mlp(), x, wrong, 60)
    val = in_batches(*clusters(500, 5, 20, 1.0, seed=2), 250)
    return Problem(net, x, wrong, val, unweave.fit(net, in_batches(x, wrong, 128)), chosen)


def is_the_better(result: ForgetResult, problem: Problem) -> float | None:
    """The share that was kept; the result is that of the better of both ways, as if no other had been walked."""
    each = {share: problem.run(task="poison", trust_share=share) for share in (0.5, 1.0)}
    best = min(each.values(), key=lambda one: (not one.ok, one.final.val_error))
    assert result.config == best.config
    for name, value in result.model.state_dict().items():
        assert torch.equal(value, best.model.state_dict()[name])
    assert [one.val_error for one in result.history] == [one.val_error for one in best.history]
    for one in each.values():
        assert f"(validation error {one.final.val_error:.2f} %" in result.stopped
    return result.config.trust_share


def test_few_wrong_labels_are_taken_back_the_careful_way(poisoned: tuple[Problem, Tensor]) -> None:
    problem, _ = poisoned
    assert is_the_better(problem.run(task="poison"), problem) == 0.5


def test_many_wrong_labels_are_taken_back_with_all_of_the_core(half_wrong: Problem) -> None:
    assert is_the_better(half_wrong.run(task="poison"), half_wrong) == 1.0


def test_without_a_linear_layer_that_moves_there_is_one_way(half_wrong: Problem) -> None:
    result = half_wrong.run(task="poison", layers=["0", "2"])
    assert "rescaled" not in result.stopped
    told = list[int]()
    unweave.forget(
        half_wrong.model,
        half_wrong.forgotten,
        half_wrong.grams,
        half_wrong.val,
        ForgetConfig(task="poison", layers=["0", "2"]),
        progress=lambda what, done, most: told.append(done),
    )
    assert told == list(range(1, len(result.history)))


def test_looks_are_timed_from_the_beginning_of_the_request(half_wrong: Problem) -> None:
    careful = half_wrong.run(task="poison", trust_share=0.5)
    result = half_wrong.run(task="poison")
    assert result.config.trust_share == 1.0
    assert result.history[0].seconds > 0.5 * careful.history[-1].seconds, "after the first walk"
    assert result.history[-1].seconds <= result.seconds


def test_the_walk_before_is_let_go_when_the_next_begins(half_wrong: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the collector happens to pass by: on a GPU a recorded step holds much memory."""
    forgetting = importlib.import_module("unweave.forget")  # the name unweave.forget is the function
    made, make = list["weakref.ref[Descent]"](), forgetting._descent
    left_over = list[int]()

    def watched(*arguments: object) -> Descent:
        left_over.append(sum(one() is not None for one in made))
        descent: Descent = make(*arguments)
        made.append(weakref.ref(descent))
        return descent

    monkeypatch.setattr(forgetting, "_descent", watched)
    gc.disable()
    try:
        half_wrong.run(task="poison")
    finally:
        gc.enable()
    assert left_over == [0, 0]
