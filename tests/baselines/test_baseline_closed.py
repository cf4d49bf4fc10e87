"""The methods that are no plain training, side by side: the registry, and what they do to a model."""

from __future__ import annotations

import inspect
from typing import Any

import problems
import pytest
import torch
from helpers import state_of
from torch import Tensor

from unweave.baselines import BASELINES
from unweave.baselines.ntk import NtkConfig
from unweave.baselines.preparation import observed
from unweave.baselines.ssd import SsdConfig
from unweave.baselines.warnecke import FirstOrderConfig, SecondOrderConfig

CLOSED = ["ntk", "fisher", "ssd", "first_order", "second_order", "sisa"]


@pytest.mark.parametrize("name", CLOSED)
def test_the_registry_knows_the_method_by_its_name_and_the_signature_is_the_common_one(name: str) -> None:
    method = BASELINES[name]
    assert method.name == name == method.run.__name__
    method.config()
    parameters = inspect.signature(method.run).parameters
    assert list(parameters)[:5] == ["model", "forget_loader", "retain_loader", "val", "config"]
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[5:])
    assert "progress" in parameters


def others(problem: problems.Problem) -> Any:
    return problem.samples(torch.arange(len(problem.forget), len(problem.y)))


@pytest.mark.parametrize(
    "name, config, more",
    [
        ("ntk", NtkConfig(mu=1.0), {"first": problems.mlp().state_dict()}),
        ("ssd", SsdConfig(alpha=3, batch_size=20), {}),
        ("first_order", FirstOrderConfig(tau=0.5, layers=None), {}),
    ],
)
def test_the_forget_set_is_forgotten_more_than_the_rest(
    points: problems.Problem, name: str, config: Any, more: dict[str, Any]
) -> None:
    before = state_of(points.model)
    result = BASELINES[name].run(points.model, points.forgotten, others(points), points.val, config, **more)
    assert state_of(points.model) == before
    assert result.ok
    assert result.history[0]["forget_error"] == 0
    assert result.history[-1]["forget_error"] > observed(result.model, others(points), "retain").error
    assert result.history[-1]["val_error"] < result.history[0]["val_error"] + 10


@pytest.mark.parametrize(
    "name, config",
    [
        ("first_order", FirstOrderConfig(tau=1e-3, steps=10)),
        ("second_order", SecondOrderConfig(scale=2e3, damping=1e-2)),
    ],
)
def test_poison_is_corrected(poisoned: tuple[problems.Problem, Tensor], name: str, config: Any) -> None:
    problem, true = poisoned
    clean = [(problem.x[problem.forget], true[problem.forget])]
    result = BASELINES[name].run(
        problem.model, problem.forgotten, others(problem), problem.val, config, true_labels=clean
    )
    assert result.ok
    assert observed(problem.model, clean, "clean").error == 100
    assert observed(result.model, clean, "clean").error < 30
    assert result.history[-1]["val_error"] < result.history[0]["val_error"]
