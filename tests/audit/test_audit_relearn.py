"""Relearn time: who knew it before relearns faster, and nobody is changed by it."""

from __future__ import annotations

import problems
import pytest
import torch
from helpers import in_batches, state_of
from torch import nn

from unweave.audit.relearn import Relearning, relearn_steps, relearn_time
from unweave.errors import ConfigError, DataError

FAST = Relearning(lr=0.02, max_steps=60)


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, nn.Module, problems.Batches]:
    """A network that knows 40 points by heart, one trained without them, and the points."""
    x, y = problems.clusters(300, 5, 20, 1.7, seed=1)
    full = problems.train(problems.mlp(), x, y, 250)
    without = problems.train(problems.mlp(), x[40:], y[40:], 250)
    return full, without, in_batches(x[:40], y[:40], 16)


def test_the_original_needs_no_step_and_a_stranger_some(trained: tuple) -> None:
    full, without, forget = trained
    assert relearn_steps(full, forget, target_error=0.0, how=FAST) == 0
    steps = relearn_steps(without, forget, target_error=0.0, how=FAST)
    assert steps is not None
    assert steps > 3
    assert relearn_steps(without, forget, target_error=0.0, how=FAST) == steps


def test_a_network_that_kept_something_is_faster_than_one_that_never_saw_it(trained: tuple) -> None:
    full, without, forget = trained
    blurred = problems.mlp()
    mixed = {k: 0.6 * v + 0.4 * without.state_dict()[k] for k, v in full.state_dict().items()}
    blurred.load_state_dict(mixed)
    found = relearn_time(blurred, forget, original=full, retrained=without, how=FAST)
    assert found.retrained is not None
    assert found.unlearned.value < found.retrained.value
    assert found.retrained.low is not None
    assert found.retrained.low <= found.retrained.value
    assert found.details["target_error"] == 0.0
    assert found.details["reached"] == {"unlearned": 3, "retrained": 3}
    assert found.document()["original"] == {"value": 0.0, "models": 1}


def test_by_loss(trained: tuple) -> None:
    full, without, forget = trained
    found = relearn_time(full, forget, original=full, retrained=without, how=FAST, by="loss", orders=1)
    assert found.unlearned.value == 0
    assert found.retrained is not None
    assert found.retrained.value > 0


def test_too_many_steps_are_said_so(trained: tuple) -> None:
    full, without, forget = trained
    short = Relearning(lr=1e-5, max_steps=2)
    assert relearn_steps(without, forget, target_loss=1e-9, how=short) is None
    found = relearn_time(without, forget, original=full, how=short, orders=2)
    assert (found.unlearned.value, found.details["reached"]) == (2, {"unlearned": 0})
    assert found.retrained is None


def test_the_model_is_left_untouched() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)).train()
    model[0].weight.requires_grad_(False)
    forget = [(torch.randn(10, 3), torch.arange(10) % 2)]
    before = state_of(model)
    relearn_steps(model, forget, target_loss=0.0, how=Relearning(max_steps=3))
    relearn_time(model, iter(forget), original=model, retrained=model, how=Relearning(max_steps=3), orders=2)
    assert state_of(model) == before


def test_bad_settings_are_refused(trained: tuple) -> None:
    full, without, forget = trained
    for targets in ({}, {"target_error": 1.0, "target_loss": 1.0}):
        with pytest.raises(ConfigError, match="one of"):
            relearn_steps(full, forget, **targets)
    with pytest.raises(ConfigError, match="lr > 0"):
        Relearning(lr=0)
    with pytest.raises(ConfigError, match="by='margin'"):
        relearn_time(full, forget, original=full, by="margin")
    with pytest.raises(ConfigError, match="smaller learning rate"):
        relearn_steps(without, forget, target_loss=1e-9, how=Relearning(lr=1e30))
    with pytest.raises(DataError, match="empty"):
        relearn_steps(full, [], target_error=1.0)
