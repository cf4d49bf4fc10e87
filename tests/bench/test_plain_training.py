"""A recipe written plainly teaches what the fast way does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import plain_training
from benchmarks.plain_training import train_plainly
from experiments.data import load_embedded
from experiments.datasets.images import error
from experiments.training.fast import train_recipe
from experiments.training.recipes import RECIPES


@pytest.mark.parametrize(
    "changes", [{}, {"optimiser": "adam", "lr": 0.003, "schedule": "exponential", "lr_end": 0.001}], ids=["sgd", "adam"]
)
def test_a_recipe_written_plainly_teaches_as_much(changes: dict[str, Any]) -> None:
    recipe = replace(RECIPES["quick"], epochs=4, padding=2, **changes)
    images = load_embedded(torch.device("cpu"), per_class=40).train
    ways = (train_plainly, train_plainly, train_recipe)
    once, again, fast = (error(train(recipe, images, 0), images) for train in ways)
    assert once == again
    assert once < 70
    assert abs(once - fast) < 10


def test_plain_epochs_show_images_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    images, steps = load_embedded(torch.device("cpu"), per_class=10).train, list[int]()
    monkeypatch.setattr(plain_training, "augment", lambda x, *_: (steps.append(len(x)), x)[1])
    train_plainly(replace(RECIPES["quick"], epochs=3, plain_epochs=1), images, 0)
    assert steps == [50, 50] * 2
