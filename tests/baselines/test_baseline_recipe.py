"""The recipe: its schedules against PyTorch's or a closed form, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from unweave.baselines import BASELINES
from unweave.baselines.recipe import Recipe
from unweave.errors import ConfigError


def optimiser(lr: float) -> torch.optim.SGD:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr)


def by_pytorch(schedule: torch.optim.lr_scheduler.LRScheduler, count: int) -> list[float]:
    rates = []
    for _ in range(count):
        rates.append(schedule.optimizer.param_groups[0]["lr"])
        schedule.optimizer.step()
        schedule.step()
    return rates


def test_constant() -> None:
    assert [Recipe(lr=0.3, epochs=4).rate(e, 0.5) for e in range(4)] == [0.3] * 4


def test_exponential_ends_one_step_before_its_end() -> None:
    recipe = Recipe(lr=0.01, lr_end=0.0005, schedule="exponential", epochs=100)
    assert recipe.rate(0) == 0.01
    assert recipe.rate(50) == pytest.approx(math.sqrt(0.01 * 0.0005))
    assert recipe.rate(100) == pytest.approx(0.0005)


def test_cosine_is_pytorchs() -> None:
    recipe = Recipe(lr=0.1, lr_end=0.01, schedule="cosine", epochs=7)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser(0.1), 7, eta_min=0.01)
    assert [recipe.rate(e) for e in range(7)] == pytest.approx(by_pytorch(schedule, 7))


def test_restarts_are_pytorchs() -> None:
    recipe = Recipe(lr=0.1, lr_end=0.005, schedule="restarts", epochs=62)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimiser(0.1), 1, 2, eta_min=0.005)
    assert [recipe.rate(e) for e in range(62)] == pytest.approx(by_pytorch(schedule, 62))


def test_one_cycle_rises_to_its_peak_and_falls_to_its_end() -> None:
    recipe = Recipe(lr=0.5, lr_end=0.001, schedule="one-cycle", warmup=0.25, epochs=4)
    rates = [recipe.rate(e, s / 100) for e in range(4) for s in range(100)]
    assert rates[0] == pytest.approx(0.5 / 25)
    assert rates[100] == max(rates) == pytest.approx(0.5)
    assert rates[:101] == sorted(rates[:101])
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert recipe.rate(3, 1.0) == pytest.approx(0.001)


def test_steps_fall_after_their_epochs_counted_from_one() -> None:
    recipe = Recipe(lr=1.0, schedule="steps", decay_epochs=(3, 5), epochs=7)
    assert [recipe.rate(e) for e in range(7)] == pytest.approx([1, 1, 1, 0.1, 0.1, 0.01, 0.01])


BAD = [
    {"epochs": 0},
    {"epochs": 2.0},
    {"epochs": True},
    {"lr": 0},
    {"lr": float("nan")},
    {"lr": "fast"},
    {"lr_end": -1.0},
    {"schedule": "linear"},
    {"schedule": "exponential"},
    {"schedule": "steps"},
    {"decay_epochs": (3,)},
    {"schedule": "steps", "decay_epochs": (0,)},
    {"warmup": 1.0},
    {"optimizer": "lion"},
    {"momentum": 1.0},
    {"nesterov": True, "momentum": 0.0},
    {"nesterov": True, "optimizer": "adam"},
    {"weight_decay": -1e-4},
    {"clip": 0.0},
    {"norm": "eval"},
    {"bf16": 1},
    {"seed": -1},
]


@pytest.mark.parametrize("settings", BAD, ids=str)
def test_a_bad_setting_is_refused_and_named(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="|".join(settings)):
        Recipe(**settings)


OWN = [
    ("eu_k", {"k": 0}),
    ("cf_k", {"k": 1.5}),
    ("neg_grad_plus", {"a": 1.1}),
    ("random_label", {"labels": "true"}),
    ("random_label", {"drawn": "never"}),
    ("random_label", {"order": "sorted"}),
    ("scrub", {"gamma": -1}),
    ("scrub", {"alpha": float("inf")}),
    ("scrub", {"temperature": 0}),
    ("scrub", {"forget_epochs": -1}),
    ("scrub", {"rewind": "yes"}),
    ("salun", {"share": 0}),
    ("salun", {"labels": "true"}),
    ("retrain", {"lr": -1}),
    ("delete", {"epochs": 0}),
]


@pytest.mark.parametrize("method, settings", OWN, ids=str)
def test_a_bad_setting_of_a_method_is_refused_and_named(method: str, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        BASELINES[method].config(**settings)
