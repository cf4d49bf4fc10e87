from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import problems
import pytest
import torch
from helpers import small_cnn, token_classifier
from torch import nn

import unweave
from unweave.errors import ConfigError, DataError, ModelError
from unweave.reading.rest import fingerprint
from unweave.request.gone import said_again


@pytest.mark.parametrize("dropped, kept", [([1], [0, 2, 3, 4]), ([4, 0, 4], [1, 2, 3]), (range(3), [3, 4])])
def test_the_smaller_model_has_the_logits_of_the_classes_that_stay(dropped: Any, kept: list[int]) -> None:
    net, x = problems.mlp(), torch.randn(6, 20)
    before = fingerprint(net)
    smaller, labels = unweave.drop_classes(net, dropped)
    torch.testing.assert_close(smaller(x), net(x)[:, kept])
    assert labels == {old: new for new, old in enumerate(kept)}
    assert fingerprint(net) == before


def test_the_smaller_model_is_an_ordinary_one() -> None:
    smaller, _ = unweave.drop_classes(problems.mlp(), [0])
    assert smaller[4].out_features == 4
    again = problems.mlp(classes=4)
    again.load_state_dict(smaller.state_dict())
    x = torch.randn(3, 20)
    assert torch.equal(again(x), smaller(x))


def test_flags_and_a_missing_bias_are_kept() -> None:
    net = nn.Sequential(nn.Linear(4, 3, bias=False)).eval()
    net[0].weight.requires_grad_(False)
    smaller, _ = unweave.drop_classes(net, [2])
    assert smaller[0].bias is None
    assert not smaller[0].weight.requires_grad
    assert not smaller.training


def test_a_compiled_model_is_shortened_inside() -> None:
    net = problems.mlp()
    smaller, _ = unweave.drop_classes(torch.compile(net, backend="eager"), [0])
    x = torch.randn(3, 20)
    torch.testing.assert_close(smaller(x), net(x)[:, 1:])


def test_the_last_linear_layer_is_the_classifier() -> None:
    for net, head in ((small_cnn().eval(), "7"), (token_classifier().eval(), "head")):
        smaller, _ = unweave.drop_classes(net, [0])
        assert smaller.get_submodule(head).out_features == 2


def test_a_forgotten_class_can_be_dropped_and_the_grams_stay_with_the_model_of_before() -> None:
    problem = problems.points(spread=1.0)
    forgotten = problem.samples((problem.y == 1).nonzero().squeeze(1))
    config = unweave.ForgetConfig(task="classes")
    result = unweave.forget(problem.model, forgotten, problem.grams, problem.val, config)
    smaller, labels = unweave.drop_classes(result.model, [1])
    stay = problem.y != 1
    renamed = torch.tensor([labels[int(y)] for y in problem.y[stay]])
    error = (smaller(problem.x[stay]).argmax(1) != renamed).double().mean().item()
    assert error < 0.05
    with pytest.raises(unweave.errors.MismatchError):
        unweave.forget(smaller, [(problem.x[stay][:10], renamed[:10])], result.grams, problem.val)


def test_held_odds_stay_nearer_to_what_they_were() -> None:
    problem = problems.points()
    own = (problem.y == 1).nonzero().squeeze(1)
    others = [c for c in range(5) if c != 1]

    def off(**settings: float) -> float:
        config = unweave.ForgetConfig(task="classes", **settings)
        result = unweave.forget(problem.model, problem.samples(own), problem.grams, problem.val, config)
        assert result.ok
        with torch.no_grad():
            before, after = (net(problem.x[own])[:, others].log_softmax(1) for net in (problem.model, result.model))
        return float((after - before).square().mean().sqrt())

    assert off() < 0.7 * off(odds=0)


def test_classes_that_are_gone_are_no_choice_for_the_next() -> None:
    """A forgotten class ends at chance level, where it still resembles others: the next one must not be led there."""
    problem, config = problems.points(), unweave.ForgetConfig(task="classes")
    own = [(problem.y == c).nonzero().squeeze(1) for c in (0, 1)]
    first = unweave.forget(problem.model, problem.samples(own[0]), problem.grams, problem.val, config)
    uncounted = with_labels(first.grams, ())
    taken_for_0 = {}
    for grams in (first.grams, uncounted):
        done = unweave.forget(first.model, problem.samples(own[1]), grams, problem.val, config)
        watched = set(done.final.val_error_by_class or {})
        taken_for_0[len(watched)] = (done.model(problem.x[own[1]]).argmax(1) == 0).double().mean().item()
    assert set(taken_for_0) == {3, 4}, "what is gone is not watched either, if it was counted"
    assert taken_for_0[3] < 0.5 * taken_for_0[4]


def with_labels(grams: unweave.LayerGrams, labels: tuple[int, ...]) -> unweave.LayerGrams:
    origin = replace(grams.origin, labels=labels)
    return unweave.LayerGrams({name: grams.grouped(name) for name in grams}, grams.layers, origin, grams.held_out)


def test_a_class_that_is_said_again_is_told() -> None:
    problem = problems.points(spread=1.0)
    assert said_again(problem.model, problem.grams, problem.val) == [], "no class is gone"
    grams = with_labels(problem.grams, (60, 0, 60, 60, 60))
    (words,) = said_again(problem.model, grams, problem.val)
    assert re.match(r"\d+ % of held-out samples of class 1 are recognised, though it was forgotten before", words)
    assert said_again(problem.model, grams, None) == []
    smaller_say = nn.Sequential(problem.model, nn.Linear(5, 5, bias=False))
    with torch.no_grad():
        smaller_say[1].weight.copy_(torch.diag(torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0])))
    assert said_again(smaller_say, grams, problem.val) == [], "it never says class 1"


def test_the_last_class_cannot_be_forgotten_in_parts() -> None:
    problem = problems.points(spread=1.0)
    asked = problem.samples((problem.y == 1).nonzero().squeeze(1)[:20])
    grams = with_labels(problem.grams, (0, 60, 0, 0, 0))
    with pytest.raises(DataError, match="No class would stay"):
        unweave.forget(problem.model, asked, grams, problem.val, unweave.ForgetConfig(task="classes"))


def test_what_is_left_of_a_class_is_told() -> None:
    problem = problems.points()
    own = (problem.y == 1).nonzero().squeeze(1)
    config = unweave.ForgetConfig(task="classes")
    whole = unweave.forget(problem.model, problem.samples(own), problem.grams, config=config)
    assert not [words for words in whole.warnings if "still retained" in words]
    part = unweave.forget(problem.model, problem.samples(own[3:]), problem.grams, config=config)
    assert [words for words in part.warnings if words.startswith("3 samples of class 1 were not passed")]
    rest = unweave.forget(part.model, problem.samples(own[:3]), part.grams, config=config)
    assert rest.grams.origin.labels == (60, 0, 60, 60, 60)
    assert not [words for words in rest.warnings if "still retained" in words]


def test_a_matched_class_goes_where_the_model_would_have_put_it() -> None:
    """Both losses take the class out; only one asks what the samples resemble, and retained samples feel it less."""
    problem = problems.points()
    chosen, stay = problem.y == 1, [0, 2, 3, 4]
    resembled = problem.model(problem.x[chosen])[:, stay].softmax(1)
    ends = {}
    for objective in ("match", "paper"):
        config = unweave.ForgetConfig(task="classes", objective=objective)
        result = unweave.forget(
            problem.model, problem.samples(chosen.nonzero().squeeze(1)), problem.grams, config=config
        )
        assert result.ok
        outputs = result.model(problem.x[chosen])[:, stay].softmax(1)
        moved = result.model(problem.x[~chosen]).softmax(1) - problem.model(problem.x[~chosen]).softmax(1)
        ends[objective] = (outputs - resembled).abs().sum(1).mean().item() / 2, moved.abs().sum(1).mean().item() / 2
    assert ends["match"][0] < 0.5 * ends["paper"][0]
    assert ends["match"][1] < ends["paper"][1]


@pytest.mark.parametrize(
    "classes, words",
    [
        ([5], "has the classes 0 to 4"),
        ([-1], "has the classes 0 to 4"),
        ([], "Invalid classes"),
        (range(5), "At least two must stay"),
        (range(4), "At least two must stay"),
    ],
)
def test_classes_that_cannot_be_dropped_are_refused(classes: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        unweave.drop_classes(problems.mlp(), classes)


def test_a_model_without_a_linear_layer_has_no_classes_to_drop() -> None:
    with pytest.raises(ModelError, match=r"no nn\.Linear"):
        unweave.drop_classes(nn.Sequential(nn.Conv2d(1, 2, 1)), [0])


@pytest.mark.parametrize("classes", [["cat"], [None], [1.5], 3])
def test_things_that_are_no_classes_are_refused(classes: Any) -> None:
    with pytest.raises(ConfigError, match="Invalid classes"):
        unweave.drop_classes(problems.mlp(), classes)


def test_another_layer_that_shares_the_weight_keeps_all_of_it() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    smaller, _ = unweave.drop_classes(net, [0])
    x = torch.randn(2, 3)
    torch.testing.assert_close(smaller(x), net(x)[:, 1:])


def test_the_layer_of_the_logits_can_be_named() -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.randn(3, 2, 5, 5)
    smaller, labels = unweave.drop_classes(net, [1], layer="0")
    torch.testing.assert_close(smaller(x), net(x)[:, [0, 2, 3]])
    assert labels == {0: 0, 2: 1, 3: 2}
    with pytest.raises(ModelError, match="layer="):
        unweave.drop_classes(net, [1])


def test_a_parametrised_classifier_is_refused() -> None:
    net = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)))
    with pytest.raises(ModelError, match="parametrised"):
        unweave.drop_classes(net, [1])
