"""The paper's splits take the images they say."""

from __future__ import annotations

import pytest
import torch

from experiments.data import (
    Labelled,
    first_of_class,
    halves,
    incremental_step,
    poison_pairs,
    poisoned,
    without,
)
from unweave.errors import ConfigError


@pytest.mark.parametrize(("classes", "each"), [(10, 20), (200, 50)])
def test_halves_share_no_image_and_have_equally_many_of_each_class(classes: int, each: int) -> None:
    labels = torch.arange(classes).repeat(each)
    test, val = halves(labels)
    assert sorted([*test.tolist(), *val.tolist()]) == list(range(classes * each))
    assert labels[test].bincount().tolist() == labels[val].bincount().tolist() == [each // 2] * classes


def test_halves_are_drawn_by_pythons_generator() -> None:
    # random.Random(0).shuffle([0, 1, 2, 3]) gives [2, 0, 1, 3].
    test, val = halves(torch.zeros(4, dtype=torch.long))
    assert (test.tolist(), val.tolist()) == ([2, 0], [1, 3])


def test_a_forget_set_is_taken_in_the_order_of_the_data_set() -> None:
    assert first_of_class(torch.tensor([1, 0, 1, 1, 0]), 1, 1, 3).tolist() == [2, 3]


def test_incremental_steps_follow_each_other_in_every_class() -> None:
    labels = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0, 1])
    assert incremental_step(labels, 1, 2).tolist() == [1, 4, 0, 2]
    assert incremental_step(labels, 2, 2).tolist() == [5, 7, 3, 6]
    for step in (0, 3):
        with pytest.raises(ConfigError, match=f"Invalid step: {step}.*1 to 2"):
            incremental_step(labels, step, 2)


def test_what_is_not_chosen_is_retained() -> None:
    assert without(5, torch.tensor([3, 0])).tolist() == [1, 2, 4]


def test_the_pairs_of_cifar10_are_the_papers() -> None:
    pairs = poison_pairs(10)
    assert all(pairs[a] == b and pairs[b] == a for a, b in ((7, 8), (1, 5), (3, 4), (2, 0), (9, 6)))
    assert len(pairs) == 10


def test_the_200_classes_of_tinyimagenet_are_paired_too() -> None:
    pairs = poison_pairs(200)
    assert sorted(pairs) == sorted(pairs.values()) == list(range(200))
    assert all(pairs[pairs[c]] == c != pairs[c] for c in range(200))
    with pytest.raises(ConfigError, match="even"):
        poison_pairs(7)


def sixty() -> Labelled:
    labels = torch.arange(10).repeat(6)
    return Labelled(torch.arange(60.0).view(60, 1, 1, 1), labels)


def test_the_sections_of_a_poisoned_set_fit_together() -> None:
    train, pairs = sixty(), poison_pairs(10)
    made = poisoned(train, 2, classes=10)
    number = made.poison.x.flatten().long()
    assert torch.equal(number, made.chosen)
    assert train.y[number].bincount().tolist() == [2] * 10
    assert torch.equal(made.poison_clean.y, train.y[number])
    assert torch.equal(made.poison_clean.x, made.poison.x)
    assert made.poison.y.tolist() == [pairs[c] for c in made.poison_clean.y.tolist()]
    rest = made.clean.x.flatten().long()
    assert sorted([*number.tolist(), *rest.tolist()]) == list(range(60))
    assert torch.equal(made.clean.y, train.y[rest])
    assert torch.equal(made.full.y[number], made.poison.y)
    assert torch.equal(made.full.y[rest], made.clean.y)
    assert torch.equal(train.y, torch.arange(10).repeat(6)), "the given labels stay"


def test_a_larger_budget_poisons_the_same_images_and_more() -> None:
    small, large = (set(poisoned(sixty(), n, classes=10).chosen.tolist()) for n in (2, 5))
    assert small < large
    assert set(poisoned(sixty(), 2, classes=10, seed=1).chosen.tolist()) != small
    with pytest.raises(ConfigError, match="1 to 6"):
        poisoned(sixty(), 7, classes=10)
