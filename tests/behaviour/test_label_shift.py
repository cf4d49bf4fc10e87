"""What fewer samples of a class do to its margins, against exact odds; temperatures against a search of their own."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import in_batches
from problems import Problem, points
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from torch import Tensor

import unweave
from unweave import ForgetConfig
from unweave.behaviour.label_shift import TEMPERATURES, best_temperature, label_shift, tempered_losses
from unweave.behaviour.outcomes import ClassProfile, Outcomes, margin
from unweave.request import remarks
from unweave.stopping import FEWER, Goal, choose_goal

NAN = float("nan")


def counts(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def log_odds(points: Tensor, samples: Tensor) -> Tensor:
    """Logits [N, C] of who knows the densities, normal around 0, 1, 2 …, and how often each class comes."""
    centres = torch.arange(len(samples), dtype=torch.float64)
    return samples.log() - 0.5 * (points[:, None] - centres) ** 2


# ------------------------------------------------------------------------------------------------------- the identity


@pytest.mark.parametrize("label", [0, 1, 2])
def test_margins_of_a_class_that_loses_samples_move_by_the_shift_for_every_input(label: int) -> None:
    points = torch.linspace(-4, 6, 41, dtype=torch.float64)
    before, after = counts(300, 500, 200), counts(300, 500, 200)
    after[label] *= 0.3
    labels = torch.full((41,), label)
    moved = margin(log_odds(points, after), labels) - margin(log_odds(points, before), labels)
    shift = label_shift(before, after, torch.tensor(1.0, dtype=torch.float64))
    assert torch.allclose(moved, shift[label].expand(41), rtol=0, atol=1e-12)


def test_a_network_that_is_too_sure_of_itself_moves_as_many_times_as_far() -> None:
    """With two classes exactly: its logits are T times as long, before and after."""
    points = torch.linspace(-4, 6, 41, dtype=torch.float64)
    before, after, times = counts(300, 500), counts(60, 400), torch.tensor(2.5, dtype=torch.float64)
    shift = label_shift(before, after, times)
    for label in (0, 1):
        labels = torch.full((41,), label)
        moved = margin(times * log_odds(points, after), labels) - margin(times * log_odds(points, before), labels)
        assert torch.allclose(moved, shift[label].expand(41), rtol=0, atol=1e-12)


def test_nothing_moves_where_every_class_loses_the_same_share() -> None:
    for lost in range(1, 100):  # shares that are alike may differ in their last bits
        trained = counts(100, 300, 700)
        assert not label_shift(trained, trained * (1 - lost / 100), counts(1.7)[0]).any()


@pytest.mark.parametrize(
    ("trained", "retained", "temperature"),
    [(counts(NAN, NAN), counts(5, 6), 1.0), (counts(5, 6), counts(NAN, NAN), 1.0), (counts(5, 6), counts(4, 6), NAN)],
)
def test_what_is_not_known_moves_nothing(trained: Tensor, retained: Tensor, temperature: float) -> None:
    assert label_shift(trained, retained, torch.tensor(temperature)).tolist() == [0.0, 0.0]


def test_a_class_that_nothing_is_left_of_is_no_choice_and_has_no_odds() -> None:
    one = counts(1.0)[0]
    assert label_shift(counts(100, 50), counts(0, 50), one).tolist() == [0, 0]
    shift = label_shift(counts(100, 50, 80, 0), counts(0, 25, 80, 0), one)
    assert shift.tolist() == pytest.approx([0, math.log(0.5), -math.log(0.5), 0])


def test_the_shift_is_a_mean_where_the_others_lose_unequally() -> None:
    """Between what it would be against the one and against the other alone; the module says so."""
    trained, retained = counts(100, 100, 100), counts(50, 10, 100)
    shift = label_shift(trained, retained, counts(1.0)[0])[0]
    against = [label_shift(trained[[0, c]], retained[[0, c]], counts(1.0)[0])[0] for c in (1, 2)]
    assert against[1] < shift < against[0]


# ------------------------------------------------------------------------------------------------------ temperatures


@pytest.mark.parametrize("times", [0.7, 1.0, 1.6, 2.9])
def test_the_temperature_is_that_of_the_least_loss(times: float) -> None:
    order = torch.Generator().manual_seed(0)
    honest = 2 * torch.randn(4000, 5, generator=order, dtype=torch.float64)
    labels = torch.multinomial(honest.softmax(1), 1, generator=order).squeeze(1)
    logits = times * honest
    found = best_temperature(tempered_losses(logits, labels))

    def loss(t: float) -> float:
        return torch.nn.functional.cross_entropy(logits / t, labels).item()

    assert found == pytest.approx(minimize_scalar(loss, bounds=(0.3, 6), method="bounded").x, rel=0.01)
    assert found == pytest.approx(times, rel=0.1)


def test_losses_are_sums_over_samples_at_every_temperature() -> None:
    logits, labels = torch.randn(7, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    expected = [
        torch.nn.functional.cross_entropy(logits.double() / t, labels, reduction="sum").item() for t in TEMPERATURES
    ]
    assert tempered_losses(logits, labels).tolist() == pytest.approx(expected)


def test_who_is_never_wrong_and_who_guesses_have_the_ends_of_the_scale() -> None:
    labels = torch.arange(20) % 2
    sure = torch.nn.functional.one_hot(labels, 2) * 9.0
    assert best_temperature(tempered_losses(sure, labels)) == TEMPERATURES[0]
    assert best_temperature(tempered_losses(sure, (torch.arange(20) // 2) % 2)) == TEMPERATURES[-1]
    assert math.isnan(best_temperature(torch.empty(0)))


# ---------------------------------------------------------------------------------------------- profiles and targets


def seen(margins: Tensor, labels: Tensor) -> Outcomes:
    zero = torch.zeros_like(margins)
    return Outcomes(labels, margins < 0, zero, margins, zero, 2)


def profile(**more: object) -> ClassProfile:
    """Two classes of 2,000 held-out samples, of a network trained on 1,000 each, a third too sure of itself."""
    order = torch.Generator().manual_seed(1)
    margins = 1 + 2 * torch.randn(4000, generator=order, dtype=torch.float64)
    found = ClassProfile.of(seen(margins, torch.arange(4000) % 2), (1000, 1000))
    return replace(found, **{"temperature": counts(1.5)[0], **more})


def test_a_profile_moves_with_its_error() -> None:
    before = profile()
    after = before.without((400, 1000))
    by = 1.5 * math.log(0.4)
    assert torch.allclose(after.margin[0], before.margin[0] + by)
    assert torch.equal(after.margin[1], before.margin[1]), "nobody is to be known better"
    assert after.error[0].item() == pytest.approx(norm.cdf(-(1 + by) / 2), abs=0.02)
    assert after.error[1] == before.error[1]
    assert torch.equal(before.without((500, 500)).error, before.error)
    assert torch.equal(before.without((500, 500)).margin, before.margin)


@pytest.mark.parametrize(
    ("margins", "left", "error"),
    [
        ([6.0, 7.0, 8.0, 12.0], 0.4, 0.0),  # far from being wrong
        ([5.0], 0.999, 0.0),
        ([-5.0], 0.4, 1.0),
        ([-1.0, 0.2, 4.0, 9.0], 0.4, 0.5),  # the second falls below, as interpolated between it and the first
        ([-9.0, -8.0, -7.0], 0.1, 1.0),
    ],
)
def test_errors_move_with_margins_where_held_out_samples_are_few(
    margins: list[float], left: float, error: float
) -> None:
    own = counts(*margins)
    found = ClassProfile.of(seen(own, torch.zeros(len(own), dtype=torch.long)), (1000, 1000))
    moved = replace(found, temperature=counts(1.0)[0]).without((round(1000 * left), 1000))
    assert moved.error[0].item() == pytest.approx(error, abs=0.5 / max(len(own) - 1, 1))
    assert (moved.error[0] - found.error[0]).item() >= 0


@pytest.mark.parametrize("unknown", [{"temperature": counts(NAN)[0]}, {"trained": counts(NAN, NAN)}])
def test_a_profile_that_does_not_know_stays_as_it_is(unknown: dict[str, Tensor]) -> None:
    before = profile(**unknown)
    assert torch.equal(before.without((400, 1000)).margin, before.margin)
    assert torch.equal(before.without((400, 1000)).error, before.error)


def test_the_target_of_a_request_reckons_with_what_its_class_loses() -> None:
    before = seen(torch.linspace(3, 9, 60, dtype=torch.float64), torch.zeros(60, dtype=torch.long))

    def goal(retained: tuple[int, ...] = (400, 1000), **settings: object) -> Goal:
        there = (1000, 1000)
        return choose_goal(ForgetConfig(**settings).resolved(), before, profile(), present=there, retained=retained)

    aimed, plain = goal(), goal(label_shift=False)
    assert aimed.error > plain.error + 15
    assert aimed.margins is not None
    assert plain.margins is not None
    assert torch.allclose(aimed.margins, plain.margins + 1.5 * math.log(0.4))
    assert aimed.words.endswith(FEWER)
    assert FEWER not in plain.words
    assert goal((500, 500)).error == goal(()).error == plain.error, "alike for all classes, or nobody knows"
    assert goal(stop="paper").error == plain.error, "the authors' rule is theirs"


def test_what_retraining_would_cost_a_class_is_counted_from_where_a_request_began() -> None:
    before = seen(torch.linspace(3, 9, 60, dtype=torch.float64), torch.zeros(60, dtype=torch.long))

    def due(present: tuple[int, int], retained: tuple[int, int], **settings: object) -> dict[int, float]:
        config = ForgetConfig(**settings).resolved()
        return dict(choose_goal(config, before, profile(), present=present, retained=retained).due)

    whole, first, second = (
        due(*c) for c in (((1000, 1000), (400, 1000)), ((1000, 1000), (700, 1000)), ((700, 1000), (400, 1000)))
    )
    assert set(whole) == {0}, "the other class pays nothing"
    assert first[0] + second[0] == pytest.approx(whole[0])
    assert due((1000, 1000), (500, 500)) == {}
    assert due((1000, 1000), (400, 1000), label_shift=False) == {}


@pytest.mark.parametrize("task", ["classes", "poison"])
def test_other_tasks_are_aimed_as_before(task: str) -> None:
    before = seen(torch.linspace(3, 9, 60, dtype=torch.float64), torch.zeros(60, dtype=torch.long))
    config = ForgetConfig(task=task, objective="paper", stop="held-out").resolved()
    goal = choose_goal(config, before, profile(), present=(1000, 1000), retained=(400, 1000))
    assert goal.error == pytest.approx(100 * profile().error[0].item())
    assert not goal.due


@pytest.fixture(scope="module")
def problem() -> Problem:
    return points()


def test_requests_in_a_row_reckon_with_all_of_them(problem: Problem, tmp_path: Path) -> None:
    """Each is aimed from the first model's held-out samples, by what is left of what that was trained on."""
    net, grams, goals = problem.model, problem.grams, []
    assert grams.held_out is not None
    assert grams.held_out.trained.tolist() == list(grams.origin.labels)
    assert TEMPERATURES[0] <= grams.held_out.temperature <= TEMPERATURES[-1]
    for part in (problem.y == 0).nonzero().squeeze(1)[:40].split(20):
        result = unweave.forget(net, problem.samples(part), grams, val=problem.val, first=problem.model)
        net, goals = result.model, [*goals, result.goal]
        result.grams.save(tmp_path / "grams.safetensors")
        grams = unweave.LayerGrams.load(tmp_path / "grams.safetensors")
    assert grams.held_out is not None
    assert grams.held_out.trained.tolist() == list(problem.grams.origin.labels)
    assert grams.origin.labels[0] == problem.grams.origin.labels[0] - 40
    assert result.left == pytest.approx({0: 20 / 40}), "of what was there before the second"
    assert result.left_of_all == pytest.approx({0: 20 / 60})
    left = [grams.held_out.without((60 - 20 * k, *problem.grams.origin.labels[1:])).error[0].item() for k in (1, 2)]
    assert [goal.error for goal in goals] == pytest.approx([100 * error for error in left])
    assert left[1] > left[0] > grams.held_out.error[0]


def test_sums_of_two_halves_know_what_the_model_was_trained_on(problem: Problem) -> None:
    first, second = (torch.arange(i, len(problem.y), 2) for i in (0, 1))
    both = unweave.fit(problem.model, problem.samples(first), val=problem.val)
    other = unweave.fit(problem.model, problem.samples(second))
    for grams in (both + other, (both + other - other) + other):  # what came back was there before
        assert grams.held_out is not None
        assert grams.held_out.trained.tolist() == problem.y.bincount().tolist()


def test_a_file_of_an_earlier_release_does_not_know(problem: Problem, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from unweave.store import digest_of, metadata_of

    path = tmp_path / "grams.safetensors"
    problem.grams.save(path)
    header, tensors = metadata_of(path.read_bytes()), load_file(path)
    for key in ("trained", "temperature", "overlap"):
        del tensors[f"held_out.{key}"]
    save_file(tensors, path, {**header, "sha256": digest_of(tensors, header)})
    loaded = unweave.LayerGrams.load(path).held_out
    assert loaded is not None
    assert loaded.temperature.isnan()
    assert torch.equal(loaded.without((10, 60, 60, 60, 60)).margin, loaded.margin)
    result = unweave.forget(problem.model, problem.forgotten, unweave.LayerGrams.load(path))
    result.grams.save(path)
    assert unweave.LayerGrams.load(path).samples == problem.grams.samples - len(problem.forget)


def test_validation_samples_in_batches_of_any_size_give_one_temperature(problem: Problem) -> None:
    held, found = [torch.cat(column) for column in zip(*problem.val, strict=True)], []
    for size in (7, 500):
        profile = unweave.fit(problem.model, problem.samples(torch.arange(9)), val=in_batches(*held, size)).held_out
        assert profile is not None
        found.append(profile.temperature.item())
    assert found[0] == pytest.approx(found[1], rel=1e-6), "but for how float32 rounds"


def test_a_class_may_rise_by_what_it_is_due_and_another_may_not(problem: Problem) -> None:
    """Nine tenths of a class: held-out samples of it are wrong far more often, which is no collapse."""
    own = (problem.y == 0).nonzero().squeeze(1)[:54]

    def forgotten(**settings: object) -> unweave.ForgetResult:
        config = ForgetConfig(protect="soft", **settings)
        return unweave.forget(problem.model, problem.samples(own), problem.grams, val=problem.val, config=config)

    result = forgotten()
    assert result.ok
    assert result.goal.due[0] > 10
    assert result.left == {0: 0.1}
    before, after = result.history[0].val_error_by_class, result.final.val_error_by_class
    assert before is not None
    assert after is not None
    assert after[0] > before[0] + 5
    without = forgotten(label_shift=False)
    assert without.goal.error < result.goal.error - 10
    assert without.left == without.left_of_all == {}, "an audit is to excuse nothing"


def test_only_what_a_class_is_due_is_no_damage(problem: Problem) -> None:
    from unweave.walking.walk import Walk

    walk = Walk.__new__(Walk)
    walk.goal = replace(problem.run(epochs=1).goal, due={0: 30.0})
    walk._first_val = Outcomes(*(torch.arange(10) % 5 for _ in range(5)), classes=5)
    looks = [
        SimpleNamespace(val_error_by_class=dict.fromkeys(range(5), 10.0) | changed)
        for changed in ({}, {0: 90.0}, {1: 90.0}, {0: 20.0})
    ]
    assert [walk.due(looks[0], look) for look in looks] == pytest.approx([0, 30 / 5, 0, 10 / 5])  # type: ignore[arg-type]
    for look in looks:  # a class that is gone is not watched, and weighs nothing
        del look.val_error_by_class[4]
    assert [walk.due(looks[0], look) for look in looks] == pytest.approx([0, 30 / 4, 0, 10 / 4])  # type: ignore[arg-type]


def test_held_out_samples_without_an_error_are_asked_about_as_before(problem: Problem) -> None:
    """The training set as validation set: what fewer samples cost must not hide that nothing is held out."""
    own = (problem.y == 0).nonzero().squeeze(1)[:30]
    result = unweave.forget(problem.model, problem.samples(own), problem.grams, val=problem.samples(torch.arange(300)))
    assert result.goal.held_out_error == 0
    assert any("really held out" in warning for warning in result.warnings)


def test_requests_over_all_have_cost_what_they_are_due(problem: Problem) -> None:
    """Of every class but one most samples are gone: its held-out errors rise by themselves."""
    left = (6, 6, 6, 6, 60)
    retained = SimpleNamespace(origin=SimpleNamespace(labels=left))
    kept = problem.grams.held_out
    assert kept is not None
    errors = {c: 100 * kept.without(left).error[c].item() for c in range(5)}
    grams = SimpleNamespace(held_out=kept, origin=replace(problem.grams.origin, forgotten=("one",)))
    look = SimpleNamespace(val_error_by_class=errors)
    assert remarks.risen_since(grams, retained, look, 500) == []  # type: ignore[arg-type]
    look.val_error_by_class = {c: min(error + 30, 100) for c, error in errors.items()}
    assert remarks.risen_since(grams, retained, look, 500)  # type: ignore[arg-type]


def test_a_rise_beyond_what_is_due_is_told_with_what_is_due(problem: Problem) -> None:
    goal = replace(problem.run(epochs=1).goal, due={0: 30.0})
    first, final = (
        SimpleNamespace(forget_error=0.0, val_error=9.0, val_error_by_class=e) for e in ({0: 10.0}, {0: 49.0})
    )
    facts = {"shift": {}, "first": first, "goal": goal, "config": ForgetConfig()}
    assert remarks.about_the_end(final=final, **facts) == []  # type: ignore[arg-type]
    final.val_error_by_class = {0: 51.0}
    assert "by retraining to about 40.0" in remarks.about_the_end(final=final, **facts)[0]  # type: ignore[arg-type]


def test_samples_that_were_subtracted_by_hand_were_trained_on_all_the_same(problem: Problem) -> None:
    own = (problem.y == 0).nonzero().squeeze(1)
    fewer = problem.grams - unweave.fit(problem.model, problem.samples(own[:20]))
    goals = [
        unweave.forget(problem.model, problem.samples(own[20:40]), fewer, val=val).goal for val in (problem.val, None)
    ]
    assert goals[0].error == pytest.approx(goals[1].error)
    assert goals[0].error > 100 * problem.grams.held_out.without((40, 60, 60, 60, 60)).error[0]  # type: ignore[union-attr]


def test_nothing_is_less_where_nothing_was_taken_out(problem: Problem) -> None:
    result = problem.run(gamma=1.0)
    assert result.grams is problem.grams
    assert result.left == result.left_of_all == {}
