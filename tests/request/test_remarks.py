"""What is said after a request that is done, or looks as if it were; and which weights it left alone."""

from __future__ import annotations

import copy
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import problems
import pytest
import torch
from helpers import in_batches, sentences, token_classifier
from problems import Jittered, Problem, without_counts
from torch import Tensor, nn

import unweave
from unweave.behaviour.outcomes import ClassProfile, Outcomes
from unweave.behaviour.ranking import FEW
from unweave.errors import LayerError, MismatchError, UnweaveWarning
from unweave.fitting import twins
from unweave.fitting.twins import Twins, marks
from unweave.reading.batches import map_tensors
from unweave.reading.rest import fingerprint
from unweave.request import remarks
from unweave.walking.loop import Request

module = importlib.import_module("unweave.forget")  # the package has a function of that name


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


def test_k_layers_are_the_last_that_are_not_frozen(points: Problem) -> None:
    problem = with_frozen(points, "4.weight")
    assert moved(problem, problem.run(layers=1)) == {"2.weight"}


def test_where_all_layers_are_frozen_and_other_parameters_are_not_somebody_has_to_choose(points: Problem) -> None:
    problem = with_frozen(points, "0.weight", "2.weight", "4.weight")
    with pytest.raises(LayerError, match=r"All layers of the Grams are frozen.*0, 2, 4.*Name those that may move"):
        problem.run()
    assert moved(problem, problem.run(layers=["2", "4"])) == {"2.weight", "4.weight"}


def test_ranks_agree_on_what_may_move(points: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = dict[str, str]()
    monkeypatch.setattr(sys.modules["unweave.request.asked"], "agree", lambda _, facts: agreed.update(facts))
    with_frozen(points, "0.weight").run()
    assert agreed["layers that may move"] == "2 4"


def test_another_model_is_refused_as_such_whatever_its_layers_are_called(points: Problem) -> None:
    with pytest.raises(MismatchError, match="These Grams belong to model"):
        unweave.forget(nn.Sequential(points.model), points.forgotten, points.grams, points.val)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(20, 30, batch_first=True), nn.Linear(30, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cell(x[:, None])[0][:, 0])
        return out


def test_few_weights_that_can_move_are_told(points: Problem) -> None:
    net = problems.train(Recurrent(), points.x, points.y, 50)
    grams = unweave.fit(net, in_batches(points.x, points.y, 100), val=points.val)
    recurrent = replace(points, model=net, grams=grams)
    (said,) = [text for text in recurrent.run(epochs=2).warnings if "could move" in text]
    assert said.startswith("only 2 % of the model's parameters could move: others are in layers of kinds that stay")
    for quiet in (points.run(), with_frozen(points, "0.weight", "2.weight").run(), recurrent.run(epochs=2, layers=1)):
        assert not any("could move" in text for text in quiet.warnings)


# ----------------------------------------------------------------------------------------------------- what was asked


def test_a_whole_class_passed_as_samples_is_told(points: Problem) -> None:
    everything = replace(points, forget=(points.y == 2).nonzero().flatten())
    (said,) = [text for text in everything.run().warnings if "no training sample of class 2 is left" in text]
    assert "task='classes' (--classes)" in said
    for request in (everything.run(task="classes"), replace(points, forget=everything.forget[1:]).run()):
        assert not any("no training sample of class" in text for text in request.warnings)


def test_labels_of_a_class_that_only_wrong_ones_had_are_not_a_class_passed_as_samples(
    poisoned: tuple[Problem, Tensor],
) -> None:
    problem, _ = poisoned
    assert not any("no training sample of class" in text for text in problem.run(task="poison").warnings)


def test_labels_that_are_not_followed_are_not_the_wrong_ones(poisoned: tuple[Problem, Tensor]) -> None:
    problem, truth = poisoned
    corrected = in_batches(problem.x[problem.forget], truth[problem.forget], 64)
    config = unweave.ForgetConfig(task="poison")
    grams = without_counts(problem.grams)  # else they are refused
    result = unweave.forget(problem.model, corrected, grams, problem.val, config)
    (said,) = [text for text in result.warnings if "taken for something else than the labels given" in text]
    assert said.endswith("from the model and Grams of before")
    assert not any("labels given" in text for text in problem.run(task="poison").warnings)


@pytest.mark.parametrize(
    "after, task, moved, told",
    [
        (31.0, "poison", True, True),
        (30.0, "poison", True, True),
        (29.0, "poison", True, False),
        (31.0, "poison", False, False),
        (31.0, "samples", True, False),
        (None, "poison", True, False),
    ],
)
def test_wrong_labels_that_are_gone_and_leave_nothing_better(
    poisoned: tuple[Problem, Tensor], after: float | None, task: Any, moved: bool, told: bool
) -> None:
    look = poisoned[0].run(task="poison", epochs=1).history[0]
    first, last = replace(look, val_error=30.0), replace(look, val_error=after)
    goal, config = replace(poisoned[0].run(task="poison", epochs=1).goal, error=0.0), unweave.ForgetConfig(task=task)
    said = remarks.nothing_recovered(first, last, moved, goal, config)
    assert remarks.nothing_recovered(first, last, moved, replace(goal, error=100.0), config) == [], "still followed"
    assert remarks.nothing_recovered(replace(first, val_error=0.0), last, moved, goal, config) == [], "all was right"
    assert [text.startswith(f"the validation error did not fall (30.00 -> {after:.2f} %)") for text in said] == (
        [True] * told
    )


def test_a_request_that_is_another_each_time_it_is_read_is_told(points: Problem) -> None:
    for noise, told in ((1e-4, True), (0.0, False)):
        loader = torch.utils.data.DataLoader(Jittered(points.x[:40], points.y[:40], noise), batch_size=16)
        config = unweave.ForgetConfig(epochs=1)
        result = unweave.forget(points.model, loader, points.grams, points.val, config)
        assert any("another each time it is read" in text for text in result.warnings) == told


def test_grams_remember_that_their_samples_were_others_each_time(points: Problem, tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(Jittered(points.x, points.y, 1e-4), batch_size=64)
    with pytest.warns(UnweaveWarning, match="gives sample 0 otherwise"):
        grams = unweave.fit(points.model, loader, val=points.val)
    assert grams.origin.unsteady
    assert not points.grams.origin.unsteady
    grams.save(tmp_path / "grams.safetensors")
    again = unweave.LayerGrams.load(tmp_path / "grams.safetensors")
    config = unweave.ForgetConfig(epochs=1, strangers="tell")
    result = unweave.forget(points.model, points.forgotten, again, points.val, config)
    assert any("when these Grams were fitted, a sample was another each time" in text for text in result.warnings)
    assert result.grams.origin.unsteady, "later requests are told as well"


def test_grams_remember_that_their_validation_samples_were_trained_on(points: Problem, tmp_path: Path) -> None:
    x, y = torch.cat([points.x[100:200], points.val[0][0]]), torch.cat([points.y[100:200], points.val[0][1]])
    with pytest.warns(UnweaveWarning, match="100 of the 350 validation samples"):
        fitted = points.fitted(val=[(x, y)])
    fitted.save(tmp_path / "grams.safetensors")
    grams = unweave.LayerGrams.load(tmp_path / "grams.safetensors")
    config = unweave.ForgetConfig(epochs=1)
    for val, told in ((None, True), ([(x, y)], True), (points.val, False)):
        result = unweave.forget(points.model, points.forgotten, grams, val, config)
        found = [text for text in result.warnings if "were trained on as well" in text]
        assert [text[:29] for text in found] == ["100 of the 350 validation sam"] * told
        more = points.samples(torch.arange(50, 60))
        again = unweave.forget(result.model, more, result.grams, points.val, config)
        later = any("were trained on as well" in text for text in again.warnings)
        assert later == (val is None), "later requests aim at what was kept, which a val= of the first has replaced"
    assert not any("were trained on as well" in text for text in points.run(epochs=1, val=None).warnings)


def test_a_validation_set_unlike_that_of_fit_is_told(points: Problem) -> None:
    shifted = [(x + 1.5, y) for x, y in points.val]
    wrong = [(x, (y + 1) % 5) for x, y in points.val]
    config = unweave.ForgetConfig(epochs=1)
    for val, told in ((points.val, False), (points.val[:1], False), (shifted, True), (wrong, True)):
        result = unweave.forget(points.model, points.forgotten, points.grams, val, config)
        assert (
            any("that the Grams were fitted with: are they of the same kind" in text for text in result.warnings)
            == told
        )
    again = points.run()  # the next request watches a changed model: what its error was at first says nothing
    more = unweave.forget(again.model, points.samples(torch.arange(50, 60)), again.grams, shifted, config)
    assert not any("are they of the same kind" in text for text in more.warnings)


def test_a_second_request_without_the_first_model_is_told_of_it(points: Problem) -> None:
    once, config = points.run(), unweave.ForgetConfig(epochs=1)
    more = points.samples(torch.arange(50, 80))
    for first, told in ((None, True), (points.model, False)):
        result = unweave.forget(once.model, more, once.grams, points.val, config, first=first)
        assert any("first= (--first)" in text for text in result.warnings) == told
    assert not any("first=" in text for text in once.warnings)


@pytest.mark.parametrize(
    ("rise", "samples", "due", "told"),
    [(2.1, 10_000, 0.0, True), (1.9, 10_000, 0.0, False), (2.1, 100, 0.0, False), (4.0, 10_000, 3.0, False)],
    ids=["more than two points", "less", "maybe by chance", "as by retraining"],
)
def test_a_validation_error_that_rose_is_told(
    points: Problem, rise: float, samples: int, due: float, told: bool
) -> None:
    look = points.run(epochs=1).history[0]
    first, final = (replace(look, val_error=20.0 + more, val_error_by_class={0: 20.0, 1: 20.0}) for more in (0.0, rise))
    said = remarks.risen(first, final, due, samples)
    assert [text.startswith("the validation error rose from 20.0 to") for text in said] == [True] * told
    assert remarks.risen(replace(first, val_error=None), replace(final, val_error=None), due, 0) == []


def test_what_retraining_would_cost_too_counts_by_the_samples_of_a_class(
    points: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a class that is rare among the validation samples a rise is little of the whole; and no more than it was."""
    seen = list[float]()
    monkeypatch.setattr(remarks, "risen", lambda first, final, due, samples: seen.append(due) or [])
    x, y = torch.cat([x for x, _ in points.val]), torch.cat([y for _, y in points.val])
    rare = torch.cat([(y == 0).nonzero().squeeze(1)[:10], (y != 0).nonzero().squeeze(1)])
    most_of_a_class = replace(points, forget=(points.y == 0).nonzero().squeeze(1)[:40])
    result = most_of_a_class.run(val=[(x[rare], y[rare])])
    before, after = result.history[0].val_error_by_class, result.final.val_error_by_class
    assert before is not None
    assert after is not None
    assert after[0] > before[0], "of a class that has lost most of its samples"
    assert result.goal.due.keys() == {0}
    assert seen == [pytest.approx(10 / len(rare) * min(after[0] - before[0], result.goal.due[0]))]


@pytest.mark.parametrize(("held_out", "told"), [(29.0, True), (30.0, True), (31.0, False), (None, False)])
def test_samples_that_were_no_better_than_held_out_ones_are_told_whatever_they_are_aimed_at(
    points: Problem, held_out: float | None, told: bool
) -> None:
    """The target may be above both: nobody is taught, and odd ones go where they would be unseen."""
    result = points.run(epochs=1)
    first, goal = replace(result.history[0], forget_error=30.0), replace(result.goal, error=33.0)
    goal, config = replace(goal, held_out_error=held_out), unweave.ForgetConfig().resolved()
    said = remarks.about_the_end({}, first, first, goal, config)
    assert any("was no better than held out" in text for text in said) == told


def test_a_validation_set_of_a_class_with_few_held_out_samples_is_no_wonder() -> None:
    def of(labels: Tensor, wrong: Tensor) -> Outcomes:
        zero = torch.zeros(len(labels), dtype=torch.float64)
        return Outcomes(labels, wrong, zero, zero, zero, 2)

    labels = torch.tensor([0] * 10 + [1] * 2000)
    kept = ClassProfile.of(of(labels, torch.arange(2010) % 5 == 0))
    for asked, told in ((0, False), (1, True)):
        grams = SimpleNamespace(held_out=kept, origin=SimpleNamespace(forgotten=()))
        seen = of(torch.full((100,), asked), torch.arange(100) < 45)  # 20 % of those of fit
        assert bool(remarks.another_val(grams, seen)) == told  # type: ignore[arg-type]


def test_whose_model_and_whose_protection_it_is_reaches_those_who_ask(
    points: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    same, soft, watched = list[bool](), list[set[str]](), list[bool]()
    choose, about = module.choose_goal, remarks.about_the_end
    monkeypatch.setattr(remarks, "risen_since", lambda *args: watched.append(args[-1]) or [])
    monkeypatch.setattr(
        module, "choose_goal", lambda *args, same_model: same.append(same_model) or choose(*args, same_model=same_model)
    )
    monkeypatch.setattr(remarks, "about_the_end", lambda *args: soft.append(set(args[-1])) or about(*args))
    once, config = points.run(epochs=1), unweave.ForgetConfig(epochs=1, protect="soft")
    more = points.samples(torch.arange(50, 80))
    for first in (None, points.model):
        unweave.forget(once.model, more, once.grams, points.val, config, first=first)
    unweave.forget(once.model, more, once.grams, points.val[:1], config)
    assert watched == [True, True, True, False], "the validation samples of fit, and then half of them"
    soft.pop()
    assert same == [True, False, True, False]
    assert soft == [{"0"}, set(points.grams.names), set(points.grams.names)]


def test_a_request_that_is_padded_to_another_length_is_told() -> None:
    net = token_classifier()
    ids, y = sentences(60)
    grams = unweave.fit(net, in_batches(ids, y, 20), val=in_batches(*sentences(40, seed=5), 20))
    for inputs, told in ((ids[:20], False), (map_tensors(ids[:20], lambda t: t[:, :-2]), True)):
        given = unweave.fit(net, in_batches(inputs, y[:20], 20))
        said = remarks.read_otherwise(grams, given, unsteady=False)
        assert bool(said) == told
        assert all("rows each, those that were fitted" in text and "had all one length" in text for text in said)


def test_right_labels_that_cannot_be_left_cost_nothing(points: Problem) -> None:
    """They are protected by their neighbours: where the walk gains little, what it costs is not kept either."""
    problem = replace(points, forget=torch.arange(60))
    result = problem.run(task="poison")
    assert not result.ok
    assert result.final.forget_error == result.history[0].forget_error
    assert moved(problem, result) == set()
    assert result.grams is problem.grams
    assert "nothing was changed; the forget error had come to" in result.stopped
    assert moved(problem, problem.run(task="poison", val=None)) != set(), "nobody saw what it cost"


def test_what_was_gained_in_too_few_epochs_is_kept(poisoned: tuple[Problem, Tensor]) -> None:
    result = poisoned[0].run(task="poison", epochs=7)
    assert not result.ok
    assert result.final.epoch == 7
    assert result.final.forget_error > 0


def test_a_walk_that_cannot_go_on_is_kept_from_half_way_on(poisoned: tuple[Problem, Tensor]) -> None:
    request = SimpleNamespace(config=SimpleNamespace(stop="poison"), val=[], goal=SimpleNamespace(gap=lambda e: e - 80))

    def seen(forget_error: float, val_error: float) -> Any:
        return SimpleNamespace(look=SimpleNamespace(forget_error=forget_error, val_error=val_error))

    start, too_near, far, dear = seen(0, 50.0), seen(39, 45.0), seen(41, 50.5), seen(41, 51.0)
    assert Request._worth_keeping(request, too_near, start) is start
    assert Request._worth_keeping(request, far, start) is far
    assert Request._worth_keeping(request, dear, start) is start, "a worse network is no use"
    request.val = None
    assert Request._worth_keeping(request, dear, start) is dear


def test_samples_to_forget_that_are_not_held_out_are_told(points: Problem) -> None:
    held_x, held_y = (torch.cat(part) for part in zip(*points.val, strict=True))
    for extra, count in ((points.forget[:3], 3), (points.forget, 40)):
        val = in_batches(torch.cat([held_x, points.x[extra]]), torch.cat([held_y, points.y[extra]]), 123)
        (said,) = [text for text in points.run(val=val).warnings if "among the validation samples" in text]
        assert said.startswith(f"{count} of these 40 samples are among")
    for val in (points.val, None):
        assert not any("among the validation" in text for text in points.run(val=val).warnings)


def test_a_few_among_the_validation_samples_are_not_told_of() -> None:
    assert remarks.not_held_out(2, 4)[0].startswith("2 of these 4 samples")
    assert remarks.not_held_out(0, 4) == remarks.not_held_out(0, 0) == remarks.not_held_out(5, 100) == []
    assert len(remarks.not_held_out(6, 100)) == 1


def test_samples_that_are_alike_by_chance_are_not_met() -> None:
    x = torch.arange(12.0).view(6, 2)
    some = Twins(marks(torch.cat([x[:5], x[:1]])))  # the first is there twice
    assert some.met_once() == 0
    some.show(x[:3])
    assert some.met_once() == 2
    some.show(x[2:])  # the third comes by again
    assert some.met_once() == 3


INPUTS = {
    "floats": torch.randn(50, 3, 4),
    "ids": torch.randint(0, 9, (50, 12)),
    "halves": torch.randn(50, 5).half(),
    "bytes": torch.randint(0, 255, (50, 6, 6), dtype=torch.uint8),
    "truths": torch.rand(50, 40) > 0.5,
    "zeros and ones": (torch.rand(50, 40) > 0.5).double(),
    "conjugate": torch.randn(50, 4, dtype=torch.complex64).conj(),
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
    monkeypatch.setattr(twins, "ELEMENTS", {"cpu": 7})
    assert torch.equal(marks(inputs), whole)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_round_numbers_are_told_apart_and_quantised_ones_have_marks() -> None:
    assert len(marks((torch.rand(5000, 50) > 0.5).double()).unique()) == 5000
    x = torch.quantize_per_tensor(torch.randn(100, 6), 0.05, 0, torch.qint8)
    assert torch.equal(marks(x[:5]), marks(x)[:5])


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


def risen(
    points: Problem,
    now: dict[int, float],
    forgotten: tuple[str, ...] = ("earlier",),
    samples: int = 500,
    same_set: bool = False,
) -> list[str]:
    """What is said where held-out errors have come to this, by hand."""
    grams = points.grams.belonging_to(fingerprint(points.model), forgotten=forgotten, held_out=points.grams.held_out)
    return remarks.risen_since(grams, grams, SimpleNamespace(val_error_by_class=now), samples, same_set)


def test_damage_that_adds_up_over_requests_is_told(points: Problem) -> None:
    held_out = points.grams.held_out
    assert held_out is not None
    before = {c: 100 * float(held_out.error[c]) for c in range(5)}
    after = {c: error + 12 for c, error in before.items()}
    (said,) = risen(points, after)
    mean = sum(before.values()) / 5
    assert "rose by 12.0 points in the middle class" in said
    assert f"rose from {mean:.1f} to {mean + 12:.1f} %: damage adds up" in said
    less = {c: error + 4 for c, error in before.items()}
    assert risen(points, less) == []
    assert risen(points, less, same_set=True), "the same samples: less of it is chance"
    assert risen(points, {c: error + 1.9 for c, error in before.items()}, samples=10**6, same_set=True) == []
    assert risen(points, less, samples=100, same_set=True) == []
    assert risen(points, after, forgotten=()) == [], "the first request has its own words for it"
    assert risen(points, after, samples=20) == [], "it may be chance"
    assert risen(points, before | {2: 100.0}) == [], "one class that was forgotten, perhaps not quite"
    assert risen(points, {}) == []
    counted = points.grams.origin.labels
    for labels, said in (((), False), ((0, *counted[1:]), True)):
        origin = replace(points.grams.origin, forgotten=("earlier",), labels=labels)
        grams = SimpleNamespace(origin=origin, held_out=held_out)
        found = remarks.risen_since(grams, grams, SimpleNamespace(val_error_by_class=after), 500)
        assert bool(found) == said
    without = replace(held_out, count=torch.tensor([0.0, *held_out.count[1:]]), error=held_out.error.clone())
    without.error[0] = float("nan")
    origin = replace(points.grams.origin, forgotten=("earlier",))
    grams = SimpleNamespace(origin=origin, held_out=without)
    (text,) = remarks.risen_since(grams, grams, SimpleNamespace(val_error_by_class=after), 500)
    assert "nan" not in text


def test_a_class_that_is_gone_is_not_held_against_later_requests(points: Problem) -> None:
    own = (points.y == 2).nonzero().flatten()
    one = replace(points, forget=own).run(task="classes")
    others = [(x[y != 2], y[y != 2]) for x, y in points.samples(torch.arange(60))]
    two = unweave.forget(one.model, others, one.grams, points.val, first=points.model)
    assert not any("damage adds up" in text or "of class 2 rose" in text for text in two.warnings)


def test_a_class_that_is_gone_is_no_part_of_the_validation_error_of_later_requests(points: Problem) -> None:
    own = (points.y == 2).nonzero().flatten()
    one = replace(points, forget=own).run(task="classes")
    others = [(x[y != 2], y[y != 2]) for x, y in points.samples(torch.arange(60))]
    two = unweave.forget(one.model, others, one.grams, points.val, first=points.model)
    x, y = (torch.cat(parts) for parts in zip(*points.val, strict=True))
    stay = y != 2
    for look, net in ((two.history[0], one.model), (two.final, two.model)):
        wrong = net(x[stay]).argmax(1) != y[stay]
        assert look.val_error == pytest.approx(100 * wrong.double().mean().item())
        assert set(look.val_error_by_class or {}) == {0, 1, 3, 4}


def test_a_request_that_leaves_next_to_nothing_of_a_class_is_told_of(points: Problem) -> None:
    own = (points.y == 2).nonzero().flatten()
    said = f"4 of {len(own)} samples of class 2 are left"
    assert any(said in text for text in replace(points, forget=own[4:]).run(epochs=1).warnings)
    half = replace(points, forget=own[: len(own) // 2]).run(epochs=1)
    assert not any("samples of class 2 are left" in text for text in half.warnings)


def test_what_all_requests_did_together_is_told_once() -> None:
    (said,) = remarks.felt_since({"0": 0.25, "2": 0.1}, {"0": 0.1})
    words = "retained samples feel layer '0' change by 25 %: check the errors of those that are still there"
    assert said == f"over all requests so far {words}"
    assert remarks.felt_since({"0": 0.25}, {"0": 0.21}) == [], "said already"
    assert remarks.felt_since({"0": 0.09}, {"0": 0.05}) == remarks.felt_since({}, {"0": 0.05}) == []


def test_the_shift_since_the_first_model_is_measured_where_it_is_given(
    points: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = points.run()
    more = points.samples(torch.arange(40, 60))
    seen = dict[str, float]()
    monkeypatch.setattr(remarks, "felt_since", lambda since, _: seen.update(since) or [])
    second = unweave.forget(one.model, more, one.grams, points.val)
    assert seen == {}
    second = unweave.forget(one.model, more, one.grams, points.val, first=points.model)
    assert seen.keys() == second.shift.keys()
    assert all(seen[name] > 0.9 * one.shift[name] for name in seen)


@pytest.mark.parametrize(
    ("count", "wrong", "told"),
    [(6, 3, True), (25, 12, True), (120, 60, False), (1, 0, True), (3, 3, True), (120, 0, False)],
)
def test_a_target_that_rests_on_few_held_out_samples_is_told(
    points: Problem, count: int, wrong: int, told: bool
) -> None:
    labels, zero = torch.zeros(count, dtype=torch.long), torch.zeros(count, dtype=torch.float64)
    seen = Outcomes(labels, torch.arange(count) < wrong, zero, zero, zero, 5)
    goal, profile = replace(points.run(epochs=1).goal, few=False), ClassProfile.of(seen)
    config, papers = unweave.ForgetConfig().resolved(), unweave.ForgetConfig(stop="paper").resolved()
    found = remarks.aimed_at_few(goal, profile, seen, config)
    assert bool(found) == told
    if told:
        assert found[0].startswith(f"the target rests on {count} held-out samples of these classes, and may be ")
    odd = remarks.aimed_at_few(replace(goal, few=True), profile, seen, config)
    assert bool(odd) == (told and count >= FEW), "a few stand for themselves, not many that are odd"
    assert remarks.aimed_at_few(goal, profile, seen, papers) == [], "the authors' rule aims elsewhere"
