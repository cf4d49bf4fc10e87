from __future__ import annotations

import copy
import gc
import importlib
import statistics
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import problems
import pytest
import torch
from helpers import gap, in_batches, state_of
from problems import Problem, without_counts
from torch import Tensor, nn
from torch.nn import functional as F

import unweave
from unweave import ForgetConfig, ForgetResult, LayerGrams
from unweave.behaviour.outcomes import margin
from unweave.errors import ConfigError, DataError, LayerError, MismatchError, ModelError, UnweaveWarning
from unweave.losses import poison_loss, second_choice
from unweave.reading.rest import fingerprint
from unweave.request import remarks
from unweave.walking.descent import Descent
from unweave.walking.loop import PATIENCE, Request
from unweave.walking.walk import Seen, Walk

forgetting = importlib.import_module("unweave.forget")  # the name unweave.forget is the function


def error_on(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return 100 * (net(x).argmax(1) != y).double().mean().item()


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return fingerprint(one) == fingerprint(other)


def landed(result: ForgetResult, problem: Problem) -> bool:
    """Whether the returned model itself, measured here again, is within the promised distance of the target."""
    x, y = problem.x[problem.forget], problem.y[problem.forget]
    tolerance = max(0.5, 100 / len(y)) + 1e-9
    return result.ok and abs(error_on(result.model, x, y) - result.goal.error) <= tolerance


def agrees_with_its_model(result: ForgetResult, problem: Problem) -> bool:
    """Whether ``result.final`` describes the returned weights."""
    x, y = problem.x[problem.forget], problem.y[problem.forget]
    forget_error = error_on(result.model, x, y)
    val_error = error_on(result.model, torch.cat([b[0] for b in problem.val]), torch.cat([b[1] for b in problem.val]))
    return (result.final.forget_error, result.final.val_error) == (
        pytest.approx(forget_error),
        pytest.approx(val_error),
    )


OBJECTIVES = ["match", "paper"]


# ------------------------------------------------------------------------------------------------------ the right place


@pytest.mark.parametrize("kind", ["points", "pictures"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_forget_error_lands_at_the_held_out_error(
    kind: str, objective: str, request: pytest.FixtureRequest
) -> None:
    problem: Problem = request.getfixturevalue(kind)
    result = problem.run(objective=objective)
    before = error_on(problem.model, problem.x[problem.forget], problem.y[problem.forget])
    assert landed(result, problem), result.stopped
    assert result.goal.error > before + 100 / len(problem.forget)
    assert agrees_with_its_model(result, problem)
    assert result.stopped.startswith("Landed after ")


def test_match_is_the_default(points: Problem) -> None:
    result = unweave.forget(points.model, points.forgotten, points.grams)
    assert result.config.objective == "match"
    assert landed(result, points)


def test_match_brings_the_margins_to_those_of_held_out_samples(points: Problem) -> None:
    result = points.run()
    assert result.final.distance < 0.5 * result.history[0].distance


def test_retained_samples_are_hardly_touched(points: Problem) -> None:
    result = points.run()
    kept = torch.ones(len(points.y), dtype=torch.bool)
    kept[points.forget] = False
    rise = error_on(result.model, points.x[kept], points.y[kept]) - error_on(
        points.model, points.x[kept], points.y[kept]
    )
    assert rise < 4
    assert result.final.forget_error - result.history[0].forget_error > 10


@pytest.mark.parametrize("watch", ["ends", "epochs"])
@pytest.mark.parametrize("objective, saved", [("match", 0), ("paper", 1)])
def test_the_epoch_with_the_chosen_step_is_not_taken_twice(
    points: Problem, objective: str, saved: int, watch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the steps have no memory; and everything else is as if it were."""
    with mock.patch.object(Descent, "epoch", autospec=True, side_effect=Descent.epoch) as once:
        result = points.run(objective=objective, watch=watch)
    monkeypatch.setattr(Walk, "_epoch", Walk._steps)
    with mock.patch.object(Descent, "epoch", autospec=True, side_effect=Descent.epoch) as again:
        expected = points.run(objective=objective, watch=watch)
    assert once.call_count == again.call_count - saved
    assert fingerprint(result.model) == fingerprint(expected.model)
    walks = [[replace(look, seconds=0.0) for look in one.history[1:]] for one in (result, expected)]
    assert walks[0] == walks[1]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("steps", [25, 2000])
def test_no_learning_rate_is_needed_for_a_soft_or_a_certain_model(steps: int, objective: str) -> None:
    problem = problems.points(steps=steps)
    certainty = problem.model(problem.x).softmax(1).max(1).values.median().item()
    assert certainty > 0.9999 if steps == 2000 else certainty < 0.97
    assert landed(problem.run(objective=objective), problem)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_learning_rate_is_needed_for_a_few_samples(points: Problem, objective: str) -> None:
    few = replace(points, forget=torch.arange(20))
    assert landed(few.run(objective=objective), few)


@pytest.fixture(scope="module")
def many() -> Problem:
    return problems.points(train_size=6000, forget=2000, steps=1500, spread=2.5)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_learning_rate_is_needed_for_thousands_of_samples(many: Problem, objective: str) -> None:
    # A third of the training set goes: the validation error rises by about what max_damage allows by default, and on
    # which side of it depends on the last bits of the trained network.
    result = many.run(objective=objective, max_damage=15.0)
    assert landed(result, many), result.stopped
    assert result.goal.tolerance == 0.5


def margins_of(model: nn.Module, points: Problem) -> Tensor:
    with torch.no_grad():
        return margin(model(points.x).double(), points.y)


def as_hard_as(points: Problem, *ranks: float, label: int = 1) -> Tensor:
    """Of the training samples of a class, those with such shares of the others below them."""
    own = (points.y == label).nonzero().squeeze(1)
    order = margins_of(points.model, points)[own].argsort()
    return own[order[[int(rank * len(own)) for rank in ranks]]]


def uncapped(points: Problem, grams: LayerGrams) -> Tensor:
    """The held-out margin at every training sample's rank among those of which there are Grams, or at the middle of
    those that are wrong, if that is higher."""
    ranks = grams.margins.standing(points.y, margins_of(points.model, points)).rank
    return points.grams.held_out.margin_at(points.y, ranks.maximum(points.grams.held_out.error[points.y] / 2))


def test_the_worst_learnt_sample_goes_to_the_middle_of_those_that_are_wrong(points: Problem) -> None:
    """Not to the lowest margin of all held-out samples: the way there would cost the others."""
    worst = replace(points, forget=as_hard_as(points, 0.0))
    goal, held_out = worst.run(label_shift=False).goal, points.grams.held_out
    label = points.y[worst.forget]
    assert goal.error == 100
    assert goal.margins.item() == pytest.approx(held_out.margin_at(label, held_out.error[label] / 2).item())
    assert goal.margins.item() > held_out.margin[label, 0].item() + 1


@pytest.mark.parametrize("rank", [0.1, 0.4])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_sample_can_be_forgotten(points: Problem, objective: str, rank: float) -> None:
    one = replace(points, forget=as_hard_as(points, rank))
    result = one.run(objective=objective)
    assert result.ok
    assert result.final.distance < 0.5 * result.history[0].distance
    assert not same_weights(result.model, points.model)
    assert result.goal.error == (100 if rank < points.grams.held_out.error[1] else 0)


def test_one_sample_that_is_known_as_well_without_having_been_seen_is_left_as_it_is(points: Problem) -> None:
    already = (uncapped(points, points.grams) >= margins_of(points.model, points)).nonzero().squeeze(1)[:1]
    result = replace(points, forget=already).run()
    assert result.ok
    assert "nothing was changed" in result.stopped
    assert same_weights(result.model, points.model)
    assert result.grams.samples == points.grams.samples - 1, "it is out of the Grams all the same"


def test_one_sample_after_the_other_is_forgotten_by_how_hard_it_was_to_learn(points: Problem) -> None:
    """The middle of its class would do for none of the hard ones: held-out samples as hard are wrong."""
    chosen = torch.cat([as_hard_as(points, 0.02, 0.1, 0.4, 0.7, label=label) for label in range(5)])
    model, grams = points.model, points.grams
    for sample in chosen:
        done = unweave.forget(model, points.samples(sample[None]), grams, points.val, first=points.model)
        model, grams = done.model, done.grams
    hard = chosen.view(5, 4)[:, :2]
    assert error_on(points.model, points.x[chosen], points.y[chosen]) == 0
    assert error_on(model, points.x[hard.flatten()], points.y[hard.flatten()]) >= 60
    easy = chosen.view(5, 4)[:, 2:].flatten()
    assert error_on(model, points.x[easy], points.y[easy]) <= 20


def test_of_a_single_sample_only_its_margin_tells_whether_it_was_forgotten(points: Problem) -> None:
    result = replace(points, forget=as_hard_as(points, 0.1)).run(lr=1e-12, epochs=2)
    assert not result.ok
    assert "its margins have gone 0 % of the way" in result.stopped


def test_the_paper_s_rule_stops_where_the_forget_error_passes_the_validation_error(points: Problem) -> None:
    result = points.run(stop="paper")
    assert result.ok
    assert "passed the validation error" in result.stopped
    gaps = [look.forget_error - look.val_error for look in result.history]
    assert all(g <= 0 for g in gaps[:-1])
    assert gaps[-1] > 0
    assert result.final in result.history[-2:]
    assert agrees_with_its_model(result, points)


def test_the_paper_s_rule_keeps_the_weights_of_before_where_the_error_never_passes(points: Problem) -> None:
    result = points.run(stop="paper", lr=1e-9, epochs=2)
    assert not result.ok
    assert same_weights(result.model, points.model)
    assert result.final == result.history[0]


def test_the_paper_s_rule_leaves_a_model_that_has_nothing_to_forget(points: Problem) -> None:
    """Also where all of the samples are wrong, so that nothing could be better than a target."""
    wrong = replace(points, y=(points.y + 1) % 5)
    with pytest.warns(UnweaveWarning, match=r"wrong on 100\.0 % of the training samples"):
        wrong = replace(wrong, grams=without_counts(wrong.fitted(val=points.val)))
    result = wrong.run(stop="paper", objective="paper")
    assert "Unchanged: the forget error exceeds the validation error" in result.stopped
    assert not result.ok
    assert same_weights(result.model, points.model)


def test_the_paper_s_rule_needs_a_validation_set(points: Problem) -> None:
    with pytest.raises(DataError, match="val="):
        points.run(stop="paper", val=None)


def test_a_preset_runs_with_its_schedule(points: Problem) -> None:
    config = ForgetConfig.paper("allcnn-cifar10")
    result = unweave.forget(points.model, points.forgotten, points.grams, val=points.val, config=config)
    expected = [0.1 * 0.1 ** ((epoch + 1) / 100) for epoch in range(3)]
    assert [look.lr for look in result.history[1:4]] == pytest.approx(expected)


def test_all_epochs_are_run_where_that_was_asked(points: Problem) -> None:
    result = points.run(stop="epochs", lr=1e-3, epochs=4)
    assert result.ok
    assert len(result.history) == 5
    assert "All 4 epochs" in result.stopped
    assert result.final == result.history[-1]


def test_running_on_beyond_chance_does_not_run_away(points: Problem) -> None:
    """Once nothing is left to gain the gradient vanishes; a step of constant length would wander off."""
    result = points.run(stop="epochs", val=None, epochs=80)
    assert len(result.history) == 81
    for layer in (0, 2, 4):
        before = points.model[layer].weight
        assert (result.model[layer].weight - before).norm() < 2 * before.norm()


# -------------------------------------------------------------------------------------- when the validation is watched


@pytest.mark.parametrize("settings", [{}, {"objective": "paper"}])
def test_looking_at_the_validation_set_less_often_changes_nothing(points: Problem, settings: dict[str, Any]) -> None:
    seldom, always = points.run(**settings), points.run(**settings, watch="epochs")
    assert seldom.ok
    assert fingerprint(seldom.model) == fingerprint(always.model)
    assert seldom.final.val_error == always.final.val_error
    looked = [look.val_error is not None for look in seldom.history]
    assert looked[0]
    assert sum(looked) <= 2
    assert all(look.val_error is not None for look in always.history)


def test_a_ruin_that_nobody_watched_is_walked_again_with_open_eyes(points: Problem) -> None:
    """Where the validation error must not rise at all, the end of an unwatched walk is a ruin."""
    seldom, always = points.run(max_damage=1e-6), points.run(max_damage=1e-6, watch="epochs")
    assert seldom.stopped == always.stopped
    assert fingerprint(seldom.model) == fingerprint(always.model)
    assert all(look.val_error is not None for look in seldom.history)


# ------------------------------------------------------------------------------------------------------ the whole story


def test_the_history_tells_what_happened(points: Problem) -> None:
    result = points.run(watch="epochs")
    assert [look.epoch for look in result.history] == list(range(len(result.history)))
    assert all(look.lr > 0 for look in result.history[1:])
    seconds = [look.seconds for look in result.history]
    assert seconds == sorted(seconds)
    assert result.seconds >= seconds[-1] > 0
    assert all(set(look.val_error_by_class) == set(range(5)) for look in result.history)
    for look in result.history:
        assert sum(look.val_error_by_class.values()) / 5 == pytest.approx(look.val_error)
    assert result.samples == 40
    assert set(result.ranks) == {"0", "2", "4"}
    assert result.config.stop == "held-out"


def test_the_summary_names_the_most_affected_class(points: Problem) -> None:
    result = points.run()
    rises = {c: e - result.history[0].val_error_by_class[c] for c, e in result.final.val_error_by_class.items()}
    label, before, after = result.worst_class()
    assert rises[label] == max(rises.values()) == pytest.approx(after - before)
    assert f"most affected class {label}" in result.summary()
    assert result.summary().startswith("done: ")
    assert f"target {result.goal.error:.2f} %" in result.summary()
    assert f"\n  {len(result.history) - 1} epochs, " in result.summary()
    worst = {c: max(error, 90.0) for c, error in result.history[0].val_error_by_class.items()}
    spared = replace(result, history=[replace(result.history[0], val_error_by_class=worst), *result.history[1:]])
    assert "no class's held-out error rose" in spared.summary()
    assert "most affected" not in spared.summary()


def test_the_summary_of_a_solved_request_counts_its_steps(points: Problem) -> None:
    result = points.run(way="solve")
    steps = len(result.history) - 1
    assert f"\n  {steps} solved step{'s' * (steps != 1)}, " in result.summary()
    assert result.way_gone() in result.stopped


def test_without_validation_samples_the_summary_says_that_nobody_watched(points: Problem) -> None:
    result = points.run(val=None)
    assert result.final.val_error is None
    assert result.worst_class() is None
    assert "not watched" in result.summary()


def test_progress_is_told_with_increasing_counts(points: Problem) -> None:
    told: list[tuple[str, int, int | None]] = []
    for objective in OBJECTIVES:
        told.clear()
        config = ForgetConfig(objective=objective)
        unweave.forget(
            points.model, points.forgotten, points.grams, points.val, config, progress=lambda *a: told.append(a)
        )
        counts = [done for _, done, _ in told]
        assert len(counts) > 1
        assert counts == list(range(len(counts)))
        assert {(stage, total) for stage, _, total in told} == {("forget", 100)}


def test_progress_is_told_before_anything_takes_long(points: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for wide in ("stream", "CoreSpace"):
        monkeypatch.setattr(forgetting, wide, None)
    with pytest.raises(KeyboardInterrupt):
        unweave.forget(points.model, points.forgotten, points.grams, points.val, progress=interrupt)


def test_no_more_epochs_than_allowed(points: Problem) -> None:
    for epochs in (1, 2, 5):
        result = points.run(epochs=epochs)
        assert len(result.history) - 1 <= epochs


# ------------------------------------------------------------------------------------------------ nothing else changes


def lived_in(problem: Problem) -> Problem:
    """The problem with a model in the middle of its life: mixed flags, a gradient, a frozen weight, a hook."""
    net = copy.deepcopy(problem.model)
    net(problem.x[:4]).sum().backward()
    net.train()
    net[1].eval()
    net[0].weight.requires_grad_(False)
    net[2].register_forward_hook(lambda module, args, output: None)
    return replace(problem, model=net)


@pytest.mark.parametrize("settings", [{}, {"objective": "paper"}, {"task": "poison", "max_damage": None}])
def test_the_model_passed_in_is_untouched_to_the_bit(pictures: Problem, settings: dict[str, Any]) -> None:
    problem = lived_in(pictures)
    before, rng = state_of(problem.model), torch.get_rng_state()
    result = problem.run(**settings)
    assert state_of(problem.model) == before
    assert torch.equal(torch.get_rng_state(), rng)
    assert not same_weights(result.model, problem.model)


def test_the_new_model_has_the_flags_of_the_old_and_shares_nothing_with_it(pictures: Problem) -> None:
    problem = lived_in(pictures)
    result = problem.run()
    old, new = state_of(problem.model), state_of(result.model)
    assert new["training"] == old["training"]
    assert new["requires_grad"] == old["requires_grad"]
    assert new["attributes"] == old["attributes"]
    assert set(new["objects"].values()).isdisjoint(old["objects"].values())


def test_only_weights_of_layers_move(pictures: Problem) -> None:
    result = pictures.run()
    before, after = pictures.model.state_dict(), result.model.state_dict()
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved == {"0.weight", "4.weight", "8.weight"}


@pytest.mark.parametrize(
    "settings", [{}, {"objective": "paper"}, {"task": "poison", "max_damage": None}, {"dropout": True}]
)
def test_the_same_seed_gives_the_same_bits(pictures: Problem, settings: dict[str, Any]) -> None:
    one = pictures.run(**settings)
    torch.rand(7)
    two = pictures.run(**settings)
    other = pictures.run(**settings, seed=1, batch_size=8)
    assert same_weights(one.model, two.model)
    assert one.grams == two.grams
    assert [replace(look, loss=0, seconds=0) for look in one.history] == [
        replace(look, loss=0, seconds=0) for look in two.history
    ]
    assert not same_weights(one.model, other.model)


MODES = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", [{}, {"objective": "paper"}, {"task": "poison"}])
def test_a_mode_of_the_caller_s_changes_no_bit(pictures: Problem, mode: str, settings: dict[str, Any]) -> None:
    expected = pictures.run(**settings)
    with MODES[mode]():
        problem = replace(pictures, grams=pictures.fitted(val=pictures.val))
        found = problem.run(**settings)
    assert problem.grams == pictures.grams
    assert found.grams == expected.grams
    assert same_weights(found.model, expected.model)
    assert found.shift == expected.shift
    assert not any(p.is_inference() for p in found.model.parameters())


class Watched(nn.Sequential):
    """A network whose author wrote forward for looking only."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class WatchedForGood(nn.Sequential):
    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Frozen(nn.Sequential):
    """Gradients come to the last layer only."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for module in list(self)[:-1]:
                x = module(x)
        return self[-1](x)


@pytest.mark.parametrize("settings", [{}, {"way": "solve"}, {"objective": "paper"}, {"task": "poison"}])
@pytest.mark.parametrize("kind", [Watched, WatchedForGood])
def test_a_model_without_gradients_is_refused_before_the_first_step(
    points: Problem, kind: type[nn.Module], settings: dict[str, Any]
) -> None:
    net = copy.deepcopy(points.model)
    net.__class__ = kind
    with pytest.raises(ModelError, match=r"under torch\.no_grad\(\).*Take that out of forward"):
        replace(points, model=net).run(**settings)


class Squeezing(nn.Sequential):
    """Its author never passes a single sample."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


def test_no_sample_is_run_by_itself_to_see_whether_there_are_gradients(points: Problem) -> None:
    net = copy.deepcopy(points.model)
    net.__class__ = Squeezing
    result = replace(points, model=net).run(epochs=1)
    assert len(result.history) == 2


def test_layers_that_gradients_come_to_may_move_though_others_have_none(points: Problem) -> None:
    net = copy.deepcopy(points.model)
    net.__class__ = Frozen
    grams, last = points.grams, points.grams.names[-1]
    assert replace(points, model=net).run(layers=[last], epochs=1).grams.names == grams.names
    with pytest.raises(ModelError, match=rf"are to move \({grams.names[0]}\).*layers= \(--layers\)"):
        replace(points, model=net).run(layers=[grams.names[0]])


@pytest.mark.parametrize("settings", [{}, {"task": "poison"}])
def test_what_was_made_in_inference_mode_can_be_used(
    pictures: Problem, tmp_path: Path, settings: dict[str, Any]
) -> None:
    pictures.grams.save(tmp_path / "grams.safetensors")
    with torch.inference_mode():
        grams = unweave.LayerGrams.load(tmp_path / "grams.safetensors")
        val = [(x.clone(), y.clone()) for x, y in pictures.val]
        net, x, y = copy.deepcopy(pictures.model), pictures.x.clone(), pictures.y.clone()
    made = replace(pictures, model=net, x=x, y=y, val=val, grams=grams)
    assert made.fitted() == pictures.grams
    assert same_weights(made.run(**settings).model, pictures.run(**settings).model)


class Averaging(nn.Module):
    """Rows of any number, [N, rows, 20]."""

    def __init__(self) -> None:
        super().__init__()
        self.net = problems.mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).mean(1)


@pytest.mark.parametrize("settings", [{}, {"objective": "paper"}])
def test_batches_of_inference_mode_that_stay_as_they_came_can_be_used(points: Problem, settings: Any) -> None:
    """Batches of different shapes are not joined, which would make ordinary tensors of them."""
    net, config = Averaging(), ForgetConfig(**settings)
    net.net.load_state_dict(points.model.state_dict())
    rows = points.x[:40].unsqueeze(1)
    plain = [(rows[:20], points.y[:20]), (rows[20:].repeat(1, 2, 1), points.y[20:40])]
    with torch.inference_mode():
        made = [(x.clone(), y.clone()) for x, y in plain]
    val = [(x.unsqueeze(1), y) for x, y in points.val]
    grams = unweave.fit(net, [(points.x.unsqueeze(1), points.y)], val=val) + unweave.fit(net, plain[1:])
    expected = unweave.forget(net, plain, grams, config=config)
    assert same_weights(unweave.forget(net, made, grams, config=config).model, expected.model)
    assert not same_weights(expected.model, net)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mode", [lambda: torch.autocast("cuda", torch.bfloat16), torch.inference_mode])
def test_on_a_gpu_a_mode_of_the_caller_s_is_off_too(pictures: Problem, mode: Any) -> None:
    there = replace(pictures, model=copy.deepcopy(pictures.model).cuda())
    expected = replace(there, grams=there.fitted(val=there.val))
    with mode():
        found = replace(there, grams=there.fitted(val=there.val))
        result = found.run()
    assert found.grams == expected.grams
    assert landed(replace(result, model=result.model.cpu()), pictures)


def test_an_interruption_leaves_the_model_and_the_grams_as_they_were(points: Problem) -> None:
    def interrupt(stage: str, done: int, total: int | None) -> None:
        if done == 2:
            raise KeyboardInterrupt

    before, grams = state_of(points.model), points.fitted()
    with pytest.raises(KeyboardInterrupt):
        unweave.forget(points.model, points.forgotten, grams, points.val, progress=interrupt)
    assert state_of(points.model) == before
    assert grams == points.fitted()
    assert landed(points.run(), points)


# ------------------------------------------------------------------------------------------------------ what it aims at


def test_the_grams_alone_or_val_alone_are_enough_and_agree(points: Problem) -> None:
    bare = problems.without_profile(points)
    from_grams = points.run(val=None)
    from_val = bare.run()
    assert landed(from_grams, points)
    assert landed(from_val, points)
    assert from_grams.goal.error == pytest.approx(from_val.goal.error)
    assert torch.allclose(from_grams.goal.margins, from_val.goal.margins)


def test_nothing_to_aim_at_is_refused(points: Problem) -> None:
    with pytest.raises(DataError, match=r"nothing to aim at.*val="):
        problems.without_profile(points).run(val=None)


def test_a_class_that_the_grams_know_nothing_of_is_taken_from_val(points: Problem) -> None:
    some = [(x[y != 2], y[y != 2]) for x, y in points.val]
    problem = replace(points, grams=points.fitted(val=some))
    with pytest.raises(DataError, match="class 2"):
        problem.run(val=None)
    assert landed(problem.run(), problem)


def test_val_may_be_a_generator(points: Problem) -> None:
    result = points.run(val=(batch for batch in points.val))
    assert len(result.history) > 2
    assert result.final.val_error is not None


def test_the_target_is_that_of_the_original_model_in_later_requests_too(points: Problem) -> None:
    first = points.run()
    many = points.samples(torch.arange(40, 190))
    second = unweave.forget(first.model, many, first.grams, points.val, ForgetConfig(epochs=1))
    assert second.goal.error == pytest.approx(points.grams.held_out.expected_error(points.y[40:190]))
    few = points.samples(torch.arange(40, 80)), ForgetConfig(epochs=1)  # ranked by what the first model had learnt
    later = unweave.forget(first.model, few[0], first.grams, points.val, few[1], first=points.model)
    by_hand = uncapped(points, first.grams)[40:80].minimum(margins_of(first.model, points)[40:80])
    assert gap(later.goal.margins, by_hand) < 1e-5


# ---------------------------------------------------------------------------------------------------- no ruin, no no-op


def test_samples_that_look_like_unseen_ones_are_left_alone(points: Problem) -> None:
    """Held-out samples that only went through fit(): the model never held on to them."""
    x, y = torch.cat([b[0] for b in points.val]), torch.cat([b[1] for b in points.val])
    batches = [*points.val, *in_batches(points.x, points.y, 128)]
    with pytest.warns(UnweaveWarning, match="500 of the 500 validation samples are among the training samples"):
        grams = unweave.fit(points.model, batches, val=points.val)
    both = torch.cat([x, points.x]), torch.cat([y, points.y])
    everything = Problem(points.model, *both, points.val, grams, torch.arange(500))
    for objective in OBJECTIVES:
        result = everything.run(objective=objective)
        assert result.ok
        assert "Already there" in result.stopped
        assert same_weights(result.model, points.model)
        assert len(result.history) == 1


@pytest.fixture(scope="module")
def hard() -> Problem:
    """A request of 100 samples, 40 of them with doubtful labels, which the network has learnt less well than others."""
    problem = problems.points(train_size=600, forget=100, spread=1.4)
    y = problem.y.clone()
    y[:40] = (y[:40] + 1) % 5
    problem = replace(problem, model=problems.train(problems.mlp(), problem.x, y, 250), y=y)
    return replace(problem, grams=problem.fitted(val=problem.val))


def retrained_error(problem: Problem, seed: int) -> float:
    rest = torch.ones(len(problem.y), dtype=torch.bool)
    rest[problem.forget] = False
    net = problems.train(problems.mlp(seed=seed), problem.x[rest], problem.y[rest], 250)
    return error_on(net, problem.x[problem.forget], problem.y[problem.forget])


@pytest.mark.parametrize("settings", [{}, {"way": "solve"}, {"objective": "paper"}], ids=["walk", "solve", "paper"])
def test_samples_harder_than_their_class_are_not_aimed_at_its_held_out_ones(
    hard: Problem, settings: dict[str, Any]
) -> None:
    result = hard.run(**settings)
    assert result.ok
    assert "for samples as hard to learn as these" in result.goal.words
    assert result.goal.held_out_error is not None
    retrained = statistics.mean(retrained_error(hard, seed) for seed in range(2))
    assert abs(result.final.forget_error - retrained) < 0.5 * abs(result.goal.held_out_error - retrained)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_nobody_is_taught(points: Problem, objective: str) -> None:
    """Without counts nobody knows that wrong labels are odd, but they must not become right."""
    y = points.y.clone()
    y[:40] = (y[:40] + 1) % 5
    taught = replace(points, y=y, forget=torch.arange(100))
    taught = replace(taught, grams=without_counts(taught.fitted(val=points.val)))
    result = taught.run(objective=objective)
    before = result.history[0].forget_error
    assert before > result.goal.held_out_error + 10
    assert result.goal.error >= before - 1e-9
    assert result.final.forget_error >= before - result.goal.tolerance
    assert result.ok, result.stopped
    assert "and no better than now" in result.goal.words


def test_soft_protection_is_not_advised_to_those_who_have_it() -> None:
    """An embedding's rows are single directions, which are protected or are not, whatever was asked for."""
    x, y = torch.randint(0, 50, (290, 4), generator=torch.Generator().manual_seed(0)), torch.arange(290) % 3
    net = problems.train(nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(32, 3)), x[:200], y[:200], 200)
    grams = unweave.fit(net, [(x[:200], y[:200])], val=[(x[200:], y[200:])])
    for protect, advised in (("soft", False), ("hard", True)):
        config = unweave.ForgetConfig(protect=protect, lr=1e6, gamma=0.5)
        result = unweave.forget(net, [(x[:30], y[:30])], grams, config=config)
        assert "What may help" in result.stopped
        assert ("protect='soft'" in result.stopped) == advised


@pytest.mark.parametrize("settings", [{}, {"objective": "paper"}, {"freeze_at_one": True}, {"lr": 0.1, "epochs": 3}])
def test_without_a_direction_left_nothing_moves_and_it_says_so(points: Problem, settings: dict[str, Any]) -> None:
    result = points.run(gamma=1.0, layers=["0"], **settings)
    assert points.grams.layers["0"].d == 20
    assert not result.ok
    assert same_weights(result.model, points.model)
    assert "Lower gamma" in result.stopped
    assert agrees_with_its_model(result, points)


@pytest.mark.parametrize("val", [True, False])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_learning_rate_far_too_large_is_noticed_and_undone(points: Problem, objective: str, val: bool) -> None:
    result = points.run(objective=objective, lr=1e6, val=points.val if val else None)
    assert all(value.isfinite().all() for value in result.model.state_dict().values())
    val_x, val_y = torch.cat([b[0] for b in points.val]), torch.cat([b[1] for b in points.val])
    damage = error_on(result.model, val_x, val_y) - error_on(points.model, val_x, val_y)
    assert damage <= (5 if val else 15)
    assert result.ok == (abs(result.final.forget_error - result.goal.error) <= result.goal.tolerance)
    if objective == "match":
        assert not result.ok
        assert "Collapse" in result.stopped
        assert "drove the outputs far off their targets; nothing was changed" in result.stopped
        assert result.stopped.endswith("What may help: to leave lr out; protect='soft'.")
        assert same_weights(result.model, points.model)
    if val:
        assert agrees_with_its_model(result, points)


def test_values_that_are_not_finite_are_undone(points: Problem) -> None:
    result = points.run(objective="paper", lr=1e38)
    assert not result.ok
    assert "Collapse: every step from epoch 0 on did harm" in result.stopped
    assert "the shortest that was tried made values infinite; nothing was changed" in result.stopped
    assert same_weights(result.model, points.model)


@pytest.mark.parametrize(
    ("error", "share", "objective", "ok"),
    [(0.0, 0.3, "match", True), (0.0, 0.7, "match", False), (9.0, 0.3, "match", False), (0.0, 0.3, "paper", False)],
)
def test_a_walk_that_cannot_go_on_is_done_where_its_error_is_right_and_most_of_the_way_gone(
    points: Problem, error: float, share: float, objective: str, ok: bool
) -> None:
    """``error``: off the target, in points; ``share`` of the way that is left."""
    goal = replace(points.run(epochs=1, objective=objective).goal, few=False, tolerance=2.5)
    first = SimpleNamespace(distance=5.0, forget_error=0.0, epoch=0)
    best = SimpleNamespace(look=SimpleNamespace(distance=5.0 * share, forget_error=goal.error + error, epoch=7))
    request = Request.__new__(Request)
    request.goal, request.config, request.history = goal, ForgetConfig(), [first, best.look]  # type: ignore[list-item]
    request._fault, request._ruined = "made values infinite", False
    request.descent = SimpleNamespace(weights={})  # type: ignore[assignment]
    ending, kept = request._give_up(best)  # type: ignore[arg-type]
    assert kept is best
    assert ending.ok == ok
    assert ("70 % of the way" in ending.words) == ok
    assert ("Collapse" in ending.words) == (not ok)


@pytest.mark.parametrize("settings", [{}, {"objective": "paper"}, {"stop": "paper"}, {"stop": "epochs"}])
def test_more_damage_than_allowed_is_undone(points: Problem, settings: dict[str, Any]) -> None:
    result = points.run(max_damage=1e-6, **settings)
    assert not result.ok
    assert "Collapse" in result.stopped
    assert "the shortest that was tried raised the validation error by more than 1e-06 points" in result.stopped
    assert "What may help: protect='soft'; a larger max_damage, which accepts more harm" in result.stopped
    assert result.final.val_error <= result.history[0].val_error
    assert agrees_with_its_model(result, points)
    assert [look.epoch for look in result.history] == list(range(len(result.history)))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_too_few_epochs_hand_back_the_best_weights_seen(points: Problem, objective: str) -> None:
    result = points.run(objective=objective, epochs=1)
    assert not result.ok
    assert "Target not reached" in result.stopped
    assert "more epochs" in result.stopped
    assert agrees_with_its_model(result, points)
    assert result.summary().startswith("NOT DONE")
    nearest = min(abs(look.forget_error - result.goal.error) for look in result.history)
    assert abs(result.final.forget_error - result.goal.error) == pytest.approx(nearest)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_samples_that_flip_together_still_land_and_undone_epochs_leave_no_trace(
    points: Problem, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 copies of one point, a little blurred: one step too many flips them all."""
    blur = torch.randn(40, 20, generator=torch.Generator().manual_seed(3))
    x, y = points.x.clone(), points.y.clone()
    x[:40], y[:40] = x[0] + 0.02 * blur, y[0]
    alike = replace(points, model=problems.train(problems.mlp(), x, y, 250), x=x, y=y)
    alike = replace(alike, grams=without_counts(alike.fitted(val=points.val)))  # their counts would tell they are odd
    undone: list[Any] = []
    undo = Request._undo

    def noted(self: Request, now: Any, shrink: float) -> None:
        undone.extend(self.history[now.look.epoch + 1 :])
        undo(self, now, shrink)

    monkeypatch.setattr(Request, "_undo", noted)
    result = alike.run(objective=objective)
    assert landed(result, alike), result.stopped
    assert undone or objective == "match"
    assert not any(look in result.history for look in undone)
    assert [look.epoch for look in result.history] == list(range(len(result.history)))


# ------------------------------------------------------------------------------------------------------------- classes


@pytest.fixture(scope="module")
def one_class() -> tuple[Problem, ForgetResult]:
    problem = problems.points(spread=1.0)
    problem = replace(problem, forget=(problem.y == 1).nonzero().squeeze(1))
    return problem, problem.run(task="classes", watch="epochs")


def test_a_class_is_forgotten_down_to_chance(one_class: tuple[Problem, ForgetResult]) -> None:
    problem, result = one_class
    assert landed(result, problem), result.stopped
    assert result.goal.error == 80
    assert result.goal.words == "chance level"


def test_what_comes_after_a_class_is_said(points: Problem, one_class: tuple[Problem, ForgetResult]) -> None:
    assert "unweave.drop_classes cuts their rows off" in one_class[1].summary()
    assert "drop_classes" not in points.run().summary()


def test_only_the_classes_that_stay_are_watched(one_class: tuple[Problem, ForgetResult]) -> None:
    problem, result = one_class
    assert all(set(look.val_error_by_class) == {0, 2, 3, 4} for look in result.history)
    x, y = torch.cat([b[0] for b in problem.val]), torch.cat([b[1] for b in problem.val])
    expected = error_on(result.model, x[y != 1], y[y != 1])
    assert result.final.val_error == pytest.approx(expected)
    assert result.final.val_error - result.history[0].val_error <= 5


def test_a_validation_set_without_a_class_that_stays_is_refused(one_class: tuple[Problem, ForgetResult]) -> None:
    problem, _ = one_class
    with pytest.raises(DataError, match="validation loader has only classes"):
        problem.run(task="classes", val=[(x[y == 1], y[y == 1]) for x, y in problem.val])


def test_a_class_that_is_gone_already_is_left_alone(one_class: tuple[Problem, ForgetResult]) -> None:
    problem, _ = one_class
    net = copy.deepcopy(problem.model)
    with torch.no_grad():
        net[4].bias[1] = -100
    gone = replace(problem, model=net)
    result = replace(gone, grams=gone.fitted()).run(task="classes")
    assert result.ok
    assert "Already there" in result.stopped
    assert same_weights(result.model, net)


def test_forgetting_every_class_is_refused(points: Problem) -> None:
    with pytest.raises(ConfigError, match="all 5 classes"):
        points.run(task="classes")


# -------------------------------------------------------------------------------------------------------------- poison


@pytest.mark.parametrize("watched", [False, True])
def test_poisoned_labels_are_left_and_the_true_ones_found_without_being_told(
    poisoned: tuple[Problem, Tensor], watched: bool
) -> None:
    problem, truth = poisoned
    assert problem.grams.held_out is None
    result = problem.run(task="poison", val=problem.val if watched else None)
    x = problem.x[problem.forget]
    assert result.ok, result.stopped
    assert error_on(problem.model, x, truth[problem.forget]) == 100
    assert error_on(result.model, x, problem.y[problem.forget]) >= 80 - 100 / len(x)
    assert error_on(result.model, x, truth[problem.forget]) < 40
    assert (result.final.val_error is not None) == watched
    if watched:
        assert result.final.val_error <= result.history[0].val_error + 1
        assert agrees_with_its_model(result, problem)


@pytest.fixture(scope="module")
def half_learnt() -> tuple[Problem, Tensor]:
    """Wrong labels that are followed less often than by chance, and hide what the samples look like all the same."""
    problem = problems.points(train_size=600, forget=120, spread=1.2)
    truth, y = problem.y[:120].clone(), problem.y.clone()
    y[:120] = (y[:120] + 1) % 5
    problem = replace(problem, y=y, model=problems.train(problems.mlp(), problem.x, y, 40))
    with pytest.warns(UnweaveWarning, match="Unless many training labels are wrong"):
        return replace(problem, grams=problem.fitted(val=problem.val)), truth


def test_wrong_labels_that_are_hardly_followed_are_left_where_held_out_samples_gain(
    half_learnt: tuple[Problem, Tensor],
) -> None:
    problem, truth = half_learnt
    result = problem.run(task="poison")
    assert result.goal.reached(result.history[0].forget_error), "there from the first"
    assert result.ok
    assert result.final.val_error < result.history[0].val_error - 3
    x = problem.x[problem.forget]
    assert error_on(result.model, x, truth) < 0.5 * error_on(problem.model, x, truth)
    unwatched = problem.run(task="poison", val=None)
    assert "Already there" in unwatched.stopped
    assert same_weights(unwatched.model, problem.model)


def test_where_wrong_labels_are_gone_already_the_look_that_gained_is_kept(
    half_learnt: tuple[Problem, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a later one that is as good as it, but not better than the start."""
    problem, _ = half_learnt
    rises = iter([-0.2, -0.7, -0.3, 1.0, 1.0, 1.0, 1.0, 1.0])

    def advance(request: Request, now: Seen) -> Seen:
        first = request.history[0]
        look = replace(now.look, epoch=now.look.epoch + 1, val_error=first.val_error + next(rises))
        request.history.append(look)
        return replace(now, look=look)

    monkeypatch.setattr(Request, "_advance", advance)
    result = problem.run(task="poison")
    assert result.final.epoch == 2
    assert len(result.history) == 1 + 3 + PATIENCE
    assert "Already there" not in result.stopped


def test_wrong_labels_that_are_gone_are_left_where_nothing_can_move(half_learnt: tuple[Problem, Tensor]) -> None:
    problem, _ = half_learnt
    result = problem.run(task="poison", gamma=1.0, trust=0)
    assert result.ok
    assert "Already there" in result.stopped


def test_wrong_labels_that_hide_nothing_change_nothing(half_learnt: tuple[Problem, Tensor]) -> None:
    problem, truth = half_learnt
    clean = torch.cat([truth, problem.y[120:]])
    never = replace(problem, model=problems.train(problems.mlp(), problem.x, clean, 400))
    with pytest.warns(UnweaveWarning, match="Unless many training labels are wrong"):
        grams = never.fitted(val=problem.val)
    result = replace(never, grams=grams).run(task="poison")
    assert result.ok
    assert "Already there" in result.stopped
    assert same_weights(result.model, never.model)
    assert result.final == result.history[0]


def test_a_cleaned_model_is_an_ordinary_one(poisoned: tuple[Problem, Tensor]) -> None:
    problem, _ = poisoned
    result = problem.run(task="poison")
    shapes = {name: value.shape for name, value in problem.model.state_dict().items()}
    assert {name: value.shape for name, value in result.model.state_dict().items()} == shapes
    assert list(result.model.state_dict()) == list(shapes)
    fresh = problems.mlp()
    fresh.load_state_dict(result.model.state_dict())
    with torch.no_grad():
        assert torch.equal(fresh(problem.x), result.model(problem.x))


def test_the_trust_region_moves_the_last_layer_inside_its_core(poisoned: tuple[Problem, Tensor]) -> None:
    problem, _ = poisoned
    for trust, moves in ((400, True), (0, False)):
        result = problem.run(task="poison", trust=trust)
        given = unweave.fit(problem.model, problem.forgotten)
        space = unweave.CoreSpace.from_grams(problem.grams - given, gamma=0.9)
        way = (result.model[4].weight - problem.model[4].weight).detach().double()
        share = ((way @ space.layers["4"].core[0]).norm() / way.norm()).item()
        assert (share > 1e-2) == moves


def half_wrong() -> Problem:
    """An MLP that knows points by heart nearly half of whose labels are wrong."""
    x, y = problems.clusters(300, 5, 20, 1.0, seed=1)
    wrong, chosen = y.clone(), torch.randperm(300, generator=torch.Generator().manual_seed(0))[:135]
    wrong[chosen] = (y[chosen] + 1) % 5
    net = problems.train(problems.mlp(), x, wrong, 400)
    val = in_batches(*problems.clusters(500, 5, 20, 1.0, seed=2), 250)
    return Problem(net, x, wrong, val, unweave.fit(net, in_batches(x, wrong, 128)), chosen)


def test_what_a_wrong_label_hides_is_decided_before_the_first_step(poisoned: tuple[Problem, Tensor]) -> None:
    """Few wrong labels or many: samples end at the second choice of the original, and the others are not lost."""
    for problem in (poisoned[0], half_wrong()):
        result = problem.run(task="poison")
        x, wrong = problem.x[problem.forget], problem.y[problem.forget]
        with torch.no_grad():
            hidden = problem.model(x).scatter(1, wrong[:, None], float("-inf")).argmax(1)
        assert result.ok
        assert result.final.val_error < 5 < 10 < result.history[0].val_error
        assert error_on(result.model, x, hidden) < 5


def test_wrong_labels_do_not_bring_a_class_back_that_is_gone(poisoned: tuple[Problem, Tensor]) -> None:
    problem, truth = poisoned
    gone = replace(problem, forget=(problem.y == 2).nonzero().squeeze(1)).run(task="classes")
    wrong = problem.forget[problem.y[problem.forget] != 2]
    left = replace(problem, model=gone.model, grams=gone.grams, forget=wrong)
    result = left.run(task="poison")
    assert result.ok
    with torch.no_grad():
        before, after = (model(problem.x[wrong]).argmax(1) for model in (gone.model, result.model))
    assert bool((truth[wrong] == 2).any()), "some of them look like it"
    assert int((after == 2).sum()) <= int((before == 2).sum())


def test_ranks_go_by_the_choices_of_the_first(
    poisoned: tuple[Problem, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where two choices are as good, ranks may disagree: here the first says class 3 of all."""
    problem, _ = poisoned
    monkeypatch.setattr("unweave.walking.walk.broadcast", lambda choices, source: torch.full_like(choices, 3 - source))
    others = problem.forget[problem.y[problem.forget] != 3]
    result = replace(problem, forget=others).run(task="poison", max_damage=None, val=None)
    with torch.no_grad():
        said = result.model(problem.x[others]).argmax(1)
    assert (said == 3).double().mean() > 0.7


def test_wrong_labels_of_the_only_class_there_is_are_refused(points: Problem) -> None:
    only = replace(points, y=torch.zeros_like(points.y))
    with pytest.raises(DataError, match="one class only"):
        replace(only, grams=only.fitted()).run(task="poison")


def test_wrong_labels_are_left_by_the_loss_that_was_asked_for(poisoned: tuple[Problem, Tensor]) -> None:
    """The first epoch is one step here, and tells the loss before it."""
    problem, _ = poisoned
    y = problem.y[problem.forget]
    with torch.no_grad():
        logits = problem.model(problem.x[problem.forget])
    found = {objective: problem.run(task="poison", objective=objective, lr=1e-3, epochs=1) for objective in OBJECTIVES}
    expected = {"match": F.cross_entropy(logits, second_choice(logits, y)), "paper": poison_loss(logits, y, -0.2, 0.1)}
    for objective, result in found.items():
        assert result.history[1].loss == pytest.approx(expected[objective].item(), rel=1e-5)


@pytest.mark.parametrize("watched", [False, True])
def test_wrong_labels_are_left_alone_once_they_are_gone(poisoned: tuple[Problem, Tensor], watched: bool) -> None:
    """Without a validation set at the first look past chance; with one, no look follows one without any left."""
    problem, _ = poisoned
    errors = [look.forget_error for look in problem.run(task="poison", val=problem.val if watched else None).history]
    assert all(error < (100 if watched else 80 - 100 / len(problem.forget)) for error in errors[:-1])


def test_a_request_lets_go_of_its_walk(points: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the collector happens to pass by: on a GPU a recorded step holds much memory."""
    made, make = list["weakref.ref[Descent]"](), forgetting._descent

    def watched(*arguments: Any) -> Descent:
        descent: Descent = make(*arguments)
        made.append(weakref.ref(descent))
        return descent

    monkeypatch.setattr(forgetting, "_descent", watched)
    gc.disable()
    try:
        result = points.run()
        assert [one() for one in made] == [None]
    finally:
        gc.enable()
    assert 0 < result.history[0].seconds <= result.history[-1].seconds <= result.seconds


class Nested(nn.Module):
    """The same network in two parts, of which torch.compile may wrap the head."""

    def __init__(self, net: nn.Sequential, compiled: bool) -> None:
        super().__init__()
        net = copy.deepcopy(net)
        self.body = nn.Sequential(*net[:4])
        self.head = net[4]
        if compiled:
            self.head = torch.compile(self.head, backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def test_a_compiled_part_of_the_model_is_cleaned_like_any_other(poisoned: tuple[Problem, Tensor]) -> None:
    problem, _ = poisoned
    results = []
    for compiled in (False, True):
        twin = replace(problem, model=Nested(problem.model, compiled))
        twin = replace(twin, grams=twin.fitted())
        assert twin.grams.names == ["body.0", "body.2", "head"]
        results.append(twin.run(task="poison"))
    assert results[0].ok
    assert results[0].stopped == results[1].stopped
    with torch.no_grad():
        assert torch.equal(results[0].model(problem.x), results[1].model(problem.x))


# ---------------------------------------------------------------------------------------------------- some layers only


@pytest.mark.parametrize("layers, moved", [(["4"], {"4"}), (["2", "4"], {"2", "4"}), (1, {"4"}), (2, {"2", "4"})])
def test_only_the_named_layers_move(points: Problem, layers: Any, moved: set[str]) -> None:
    result = points.run(layers=layers, gamma=0.5)
    before, after = points.model.state_dict(), result.model.state_dict()
    assert {name.removesuffix(".weight") for name in after if not torch.equal(before[name], after[name])} == moved
    assert set(result.ranks) == moved
    assert result.grams.names == points.grams.names


@pytest.mark.parametrize("gamma", [0.3, 0.5, 0.7])
def test_one_layer_alone_lands_where_the_first_epoch_goes_but_a_little_way(points: Problem, gamma: float) -> None:
    result = points.run(layers=["4"], gamma=gamma, max_damage=15.0)
    assert landed(result, points), result.stopped


def test_an_unknown_layer_is_refused_with_the_nearest_name(points: Problem) -> None:
    with pytest.raises(LayerError, match=r"Unknown layer '44'. Did you mean '4'\?"):
        points.run(layers=["44"])


def test_gamma_may_name_a_layer_that_is_frozen(points: Problem) -> None:
    result = points.run(layers=["4"], gamma={"default": 0.5, "0": 0.9})
    assert set(result.ranks) == {"4"}


# ------------------------------------------------------------------------------------------------ one after another


def test_two_requests_leave_the_grams_of_one_where_the_activations_agree(points: Problem) -> None:
    a, b = torch.arange(20), torch.arange(20, 50)
    first = replace(points, forget=a).run()
    second = unweave.forget(first.model, points.samples(b), first.grams)
    both = replace(points, forget=torch.arange(50)).run()
    rest = unweave.fit(points.model, points.samples(torch.arange(50, 300)))
    assert gap(second.grams["0"], both.grams["0"]) < 1e-10
    assert gap(second.grams["0"], rest["0"]) < 1e-10
    assert second.grams.samples == both.grams.samples == 250
    assert len(second.grams.origin.forgotten) == 50


def test_with_the_first_model_every_request_takes_out_what_was_added(
    points: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, choose = list[Any](), forgetting.choose_goal
    passes, stream, look = list[str](), forgetting.stream, forgetting.observe_together
    monkeypatch.setattr(
        forgetting, "choose_goal", lambda *given, **more: seen.append(given[1]) or choose(*given, **more)
    )
    monkeypatch.setattr(forgetting, "stream", lambda *a, **k: passes.append("the pass") or stream(*a, **k))
    monkeypatch.setattr(forgetting, "observe_together", lambda *a: passes.append("a look") or look(*a))
    model, grams, rest = points.model, points.grams, unweave.fit(points.model, points.samples(torch.arange(50, 300)))
    for chosen in (torch.arange(20), torch.arange(20, 50)):
        now = unweave.forget(model, points.samples(chosen), grams, points.val, first=points.model)
        by_now = F.cross_entropy(model(points.x[chosen]), points.y[chosen], reduction="none").detach().double()
        torch.testing.assert_close(seen[-1].loss, by_now, rtol=1e-3, atol=1e-6)
        assert passes == ["the pass"] if len(seen) == 1 else passes == ["the pass"] * 2 + ["a look"]
        model, grams = now.model, now.grams
    assert {name: gap(grams[name], rest[name]) < 1e-6 for name in rest} == dict.fromkeys(rest, True)
    assert not grams.origin.drifted
    drifted = unweave.forget(points.model, points.samples(torch.arange(20)), points.grams, points.val)
    drifted = unweave.forget(drifted.model, points.samples(torch.arange(20, 50)), drifted.grams, points.val)
    assert max(gap(drifted.grams[name], rest[name]) for name in rest) > 1e-3, "without it, not quite"
    assert drifted.grams.origin.drifted


def test_with_the_first_model_wrong_samples_are_refused_as_in_the_first_request(points: Problem) -> None:
    x, y = 1.6 * points.x[40:70], points.y[40:70]
    points = replace(points, grams=problems.without_counts(points.grams))  # which would tell at once
    with pytest.raises(MismatchError, match="not under this transform"):
        unweave.forget(points.model, [(x, y)], points.grams, points.val)
    now = points.run()
    with pytest.raises(MismatchError) as refused:
        unweave.forget(now.model, [(x, y)], now.grams, points.val, first=points.model)
    assert "not under this transform" in str(refused.value)
    assert "first=" not in str(refused.value), "it was passed"
    drifted = replace(now.grams.origin, drifted=True)
    loose = unweave.LayerGrams({n: now.grams.grouped(n) for n in now.grams}, now.grams.layers, drifted, None)
    with pytest.raises(MismatchError, match=r"requests without first= .* have left the sums inexact: start again"):
        unweave.forget(now.model, [(4 * x, y)], loose, points.val, first=points.model)


def test_the_class_of_a_request_is_seen_by_the_network_as_it_is(points: Problem) -> None:
    """Of two classes in a row, with the first model: the second request knows that the first class is gone."""
    model, grams = points.model, points.grams
    for c in (0, 1):
        chosen = (points.y == c).nonzero().squeeze(1)
        config = ForgetConfig(task="classes")
        now = unweave.forget(model, points.samples(chosen), grams, points.val, config, first=points.model)
        assert now.ok
        model, grams = now.model, now.grams
    assert error_on(model, points.x[points.y == 1], points.y[points.y == 1]) > 70


def test_grams_that_do_not_name_their_model_serve_without_the_first(points: Problem) -> None:
    nameless = replace(points.run().grams.origin, key="")
    now = points.run()
    grams = unweave.LayerGrams({n: now.grams.grouped(n) for n in now.grams}, now.grams.layers, nameless, None)
    with pytest.raises(MismatchError, match=r"do not say which model.*Leave first= \(--first\) out"):
        unweave.forget(now.model, points.samples(torch.arange(40, 60)), grams, points.val, first=points.model)


def test_the_first_model_may_be_another_object_in_train_mode_and_is_left_alone(points: Problem) -> None:
    now = points.run()
    first = copy.deepcopy(points.model).train()
    before = state_of(first)
    found = unweave.forget(now.model, points.samples(torch.arange(40, 60)), now.grams, points.val, first=first)
    assert found.ok
    assert state_of(first) == before
    with pytest.raises(
        MismatchError, match=f"fitted with model {fingerprint(points.model)[:12]}, first=.*leave it out"
    ):
        unweave.forget(now.model, points.samples(torch.arange(40, 60)), now.grams, points.val, first=now.model)


def test_what_a_changed_network_makes_of_samples_may_be_too_much_to_take_out(points: Problem) -> None:
    """As after many requests: the weights of a layer have grown, so that the next one sees larger inputs."""
    grown = copy.deepcopy(points.model)
    with torch.no_grad():
        grown[0].weight.mul_(3)
    grams = points.grams.belonging_to(fingerprint(grown), forgotten=("before",), held_out=points.grams.held_out)
    with pytest.raises(MismatchError, match=r"requests have changed the network.*as first= \(--first\)"):
        unweave.forget(grown, points.samples(torch.arange(150)), grams, points.val)
    found = unweave.forget(grown, points.samples(torch.arange(150)), grams, points.val, first=points.model)
    assert not any("clipped" in text for text in found.warnings)


def test_a_little_drift_is_told(points: Problem) -> None:
    space = SimpleNamespace(layers={"0": SimpleNamespace(clipped=0.004)})

    def words(drifted: bool, by: str) -> str:
        grams = SimpleNamespace(origin=replace(points.grams.origin, drifted=drifted))
        given = SimpleNamespace(origin=replace(points.grams.origin, key=by))
        (found,) = remarks.drifted(space, grams, given)
        assert found.startswith("0.4 % of a layer's spectrum was negative and clipped")
        return found

    same = points.grams.origin.key
    assert "first=" not in words(False, same)
    assert words(True, same).endswith("from the first model and its Grams all of them are exact")
    assert words(False, "another").endswith("first= (--first) keeps it exact")
    assert remarks.drifted(SimpleNamespace(layers={}), points.grams, points.grams) == []


def test_copies_in_a_request_are_told(points: Problem) -> None:
    copies = torch.tensor([3, 3, 7])  # which the training set held as well
    grams = unweave.fit(points.model, points.samples(torch.cat([torch.arange(300), copies])), val=points.val)
    twice = replace(points, grams=grams, forget=torch.cat([torch.arange(40), copies])).run()
    assert [text for text in twice.warnings if text.startswith("3 of these 43 samples are copies of others")]
    assert not any("copies" in text for text in points.run().warnings)


def test_a_result_is_shown_in_a_line_and_printed_as_its_summary(points: Problem) -> None:
    result = points.run()
    assert repr(result) == f"ForgetResult(40 samples, done: {result.stopped})"
    assert str(result) == result.summary()


def test_the_grams_belong_to_the_new_model(points: Problem) -> None:
    result = points.run()
    assert result.grams.origin.model == fingerprint(result.model)
    assert result.grams.samples == 260
    with pytest.raises(MismatchError, match="belong to model"):
        unweave.forget(points.model, points.samples(torch.arange(50, 60)), result.grams)


def test_a_second_request_lands_too(points: Problem) -> None:
    first = points.run()
    more = Problem(first.model, points.x, points.y, points.val, first.grams, torch.arange(40, 80))
    assert landed(more.run(), more)


def backwards(problem: Problem) -> Any:
    return problem.samples(problem.forget.flip(0), size=7)


def test_the_same_request_twice_is_refused_in_any_order_and_from_a_file(points: Problem, tmp_path: Path) -> None:
    result = points.run()
    result.grams.save(tmp_path / "grams.safetensors")
    for grams in (result.grams, unweave.LayerGrams.load(tmp_path / "grams.safetensors")):
        for loader in (points.forgotten, backwards(points)):
            with pytest.raises(MismatchError, match=r"forgotten before.*start from the model"):
                unweave.forget(result.model, loader, grams, val=points.val)


# ----------------------------------------------------------------------------------------------------- what is refused


def test_grams_of_another_model_are_refused_with_both_fingerprints(points: Problem) -> None:
    other = problems.mlp(seed=5)
    with pytest.raises(MismatchError) as caught:
        unweave.forget(other, points.forgotten, points.grams, points.val)
    assert fingerprint(other)[:12] in str(caught.value)
    assert fingerprint(points.model)[:12] in str(caught.value)


@pytest.mark.parametrize("count", [300, 301])
def test_a_forget_set_as_large_as_the_training_set_is_refused(points: Problem, count: int) -> None:
    with pytest.raises(MismatchError, match=f"{count} samples with Grams of 300"):
        replace(points, forget=torch.arange(count) % 300).run()


def test_samples_that_were_never_fitted_are_refused(points: Problem) -> None:
    grams = unweave.fit(points.model, points.samples(torch.arange(12)), val=points.val)
    x, y = problems.clusters(6, 5, 20, 1.7, seed=77)
    with pytest.raises(MismatchError, match="not fitted as they are here"):
        unweave.forget(points.model, [(x, y)], grams, points.val)
    with pytest.raises(MismatchError, match="not part of what was fitted"):
        unweave.forget(points.model, [(x, y)], problems.without_counts(grams), points.val)


# ------------------------------------------------------------------------------------------------------ kinds of models


class Named(nn.Module):
    """Takes its inputs by name and wraps its logits, as Hugging Face's models do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = copy.deepcopy(net)

    def forward(self, points: Tensor, scale: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.net(points * scale))


def test_inputs_by_name_and_wrapped_logits_give_the_same_result(points: Problem) -> None:
    def named(batches: Any) -> Any:
        return [({"points": x, "scale": torch.ones(len(x), 1)}, y) for x, y in batches]

    model = Named(points.model)
    grams = unweave.fit(model, named(points.samples(torch.arange(300), 128)), val=named(points.val))
    result = unweave.forget(model, named(points.forgotten), grams, val=named(points.val))
    plain = points.run()
    assert result.ok
    assert torch.equal(result.model.net[4].weight, plain.model[4].weight)


def test_a_compiled_model_gives_the_same_result(points: Problem) -> None:
    compiled = torch.compile(copy.deepcopy(points.model), backend="eager")
    result = unweave.forget(compiled, points.forgotten, points.grams, points.val)
    assert same_weights(result.model, points.run().model)


def converted(problem: Problem, change: Callable[[Any], Any]) -> Problem:
    model = change(copy.deepcopy(problem.model))
    twin = replace(problem, model=model, x=change(problem.x), val=[(change(x), y) for x, y in problem.val])
    return replace(twin, grams=twin.fitted(val=twin.val))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_model_in_half_precision_lands(points: Problem, objective: str) -> None:
    coarse = converted(points, lambda thing: thing.to(torch.bfloat16))
    result = coarse.run(objective=objective)
    assert landed(result, coarse), result.stopped
    assert {p.dtype for p in result.model.parameters()} == {torch.bfloat16}
    assert agrees_with_its_model(result, coarse)


def test_a_poisoned_model_in_half_precision_is_cleaned(poisoned: tuple[Problem, Tensor]) -> None:
    coarse = converted(poisoned[0], lambda thing: thing.to(torch.bfloat16))
    result = coarse.run(task="poison")
    assert result.ok, result.stopped
    assert agrees_with_its_model(result, coarse)


def test_channels_last_lands_and_stays_channels_last(pictures: Problem) -> None:
    turned = converted(pictures, lambda thing: thing.to(memory_format=torch.channels_last))
    result = turned.run()
    assert landed(result, turned)
    assert result.model[4].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_loader_that_runs_once_is_enough(points: Problem) -> None:
    def once() -> Iterator[Any]:
        yield from points.forgotten

    result = unweave.forget(points.model, once(), points.grams, points.val)
    assert landed(result, points)


# ------------------------------------------------------------------------------------- what a failed request leaves


def test_a_request_that_failed_and_changed_nothing_takes_nothing_out(points: Problem) -> None:
    failed = points.run(gamma=1.0)
    assert not failed.ok
    assert failed.grams is points.grams
    assert unweave.forget(failed.model, points.forgotten, failed.grams, val=points.val).ok


def test_some_of_the_same_samples_are_refused_with_their_number(points: Problem) -> None:
    first = replace(points, forget=torch.arange(20)).run()
    with pytest.raises(MismatchError, match="5 of these 15 samples were forgotten before"):
        unweave.forget(first.model, points.samples(torch.arange(15, 30)), first.grams)


def test_the_shift_is_what_retained_rows_feel(points: Problem) -> None:
    result = points.run()
    name = next(iter(result.shift))
    rows = torch.cat([x for x, _ in points.samples(torch.arange(len(points.forget), 300))]).double()
    old, new = (dict(m.named_modules())[name].weight.detach().double() for m in (points.model, result.model))
    expected = (rows @ (new - old).T).norm() / (rows @ old.T).norm()
    assert result.shift[name] == pytest.approx(float(expected), rel=1e-6)


def test_an_idle_first_epoch_counts_among_the_epochs(points: Problem) -> None:
    """The authors' epoch 0 only evaluates: of 5 epochs, 4 move the weights."""
    settings = {"objective": "paper", "stop": "epochs", "lr": 1e-6, "epochs": 5}
    assert points.run(**settings, idle_first_epoch=True).history[-1].epoch == 4
    assert points.run(**settings).history[-1].epoch == 5


def test_a_learning_rate_of_the_user_s_is_not_changed(points: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ruin ends the request; without lr= smaller steps would be tried."""
    sizes: list[float] = []
    epoch = Descent.epoch

    def noted(self: Descent, samples: Any, loss: Any, size: float, *rest: Any) -> Any:
        sizes.append(size)
        return epoch(self, samples, loss, size, *rest)

    monkeypatch.setattr(Descent, "epoch", noted)
    assert not points.run(objective="paper", lr=1e6).ok
    assert set(sizes) == {1e6}


# ------------------------------------------------------------------------------------------------------------ warnings


def warned(points: Problem, **changes: Any) -> list[str]:
    """The warnings of a request whose outcome is changed by hand."""
    result = points.run()
    facts = {"shift": {"0": 0.01}, "first": result.history[0], "final": result.final, "goal": result.goal}
    return remarks.about_the_end(**({"config": ForgetConfig()} | facts | changes))


def test_an_ordinary_request_warns_of_nothing(points: Problem) -> None:
    assert warned(points) == []


def test_a_large_shift_is_a_warning_that_names_the_layer(points: Problem) -> None:
    poison = {"config": ForgetConfig(task="poison")}
    for settings, advised in (
        (dict[str, Any](), True),
        ({"soft": {"0"}}, True),
        ({"soft": {"2"}}, False),
        (poison, False),
    ):
        (text,) = warned(points, shift={"0": 0.1, "2": 0.7}, **settings)
        assert "layer '2' change by 70 %" in text
        assert ("protect='soft' may do less" in text) == advised, "rescaling is felt whatever the protection"


def test_one_class_that_suffers_is_a_warning_though_the_average_is_fine(points: Problem) -> None:
    first = replace(points.run().history[0], val_error_by_class={0: 10.0, 1: 10.0})
    (text,) = warned(points, first=first, final=replace(first, val_error_by_class={0: 9.0, 1: 25.0}))
    assert text == "the held-out error of class 1 rose from 10.0 to 25.0 %"


def test_a_validation_set_without_any_error_is_a_warning(points: Problem) -> None:
    learnt = in_batches(points.x[40:], points.y[40:], 100)
    result = points.run(val=learnt)
    assert any("really held out" in text for text in result.warnings)
    first = replace(result.history[0], val_error=1.0)
    texts = warned(points, first=first, final=first, goal=result.goal)
    assert not any("held out" in text for text in texts), "a class alone may well have no error"


def test_samples_that_look_unseen_from_the_start_are_a_warning(points: Problem) -> None:
    first = replace(points.run().history[0], forget_error=95.0)
    assert "were they trained on" in warned(points, first=first)[0]


def to_tf32(x: Tensor) -> Tensor:
    """Rounded to the ten bits of mantissa that TF32 has."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("count", [40, 236])
def test_grams_of_tf32_serve_on_a_cpu_with_a_warning(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU adds up there differs in the third digit from what a CPU subtracts; that is no stranger's sample."""
    pictures, plain = problems.pictures(), nn.Conv2d._conv_forward
    with monkeypatch.context() as gpu:
        gpu.setattr(nn.Conv2d, "_conv_forward", lambda conv, x, w, b: plain(conv, to_tf32(x), to_tf32(w), b))
        grams = pictures.fitted(val=pictures.val)
    origin = replace(grams.origin, convolutions="tf32")
    there = unweave.LayerGrams({n: grams.grouped(n) for n in grams}, grams.layers, origin, grams.held_out)
    result = replace(pictures, grams=there, forget=torch.arange(count)).run(epochs=2)
    assert any("fitted with tf32=True on a GPU, this request ran on a CPU" in text for text in result.warnings)
    assert result.grams.origin.convolutions == "tf32"


def test_a_stranger_s_samples_are_refused_with_grams_of_tf32_too(points: Problem) -> None:
    grams = unweave.fit(points.model, points.samples(torch.arange(12)), val=points.val)
    origin = replace(grams.origin, convolutions="tf32")
    few = unweave.LayerGrams({n: grams.grouped(n) for n in grams}, grams.layers, origin, grams.held_out)
    with pytest.raises(MismatchError, match="not part of what was fitted"):
        unweave.forget(points.model, [problems.clusters(6, 5, 20, 1.7, seed=77)], few, points.val)
