"""The contract, kept by every method that trains; and that each does its job on a small problem."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from helpers import state_of
from problems import Problem
from small_worlds import batch, equal, forget_set, held_out, normed_net, retain_set, tensors
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from unweave.baselines import BASELINES
from unweave.behaviour.outcomes import Outcomes, observe
from unweave.errors import ConfigError, DataError
from unweave.reading.batches import Loader
from unweave.reading.rest import at_rest

TRAINED = (
    "retrain",
    "fine_tune",
    "eu_k",
    "cf_k",
    "neg_grad",
    "neg_grad_plus",
    "random_label",
    "scrub",
    "salun",
    "delete",
)


def short(name: str, **settings: Any) -> Any:
    return BASELINES[name].config(epochs=2, **({"k": 2} if name in ("eu_k", "cf_k") else {}), **settings)


def test_all_are_listed_by_their_names() -> None:
    assert set(TRAINED) <= set(BASELINES)
    assert all(name == method.name for name, method in BASELINES.items())


def test_an_unknown_name_is_an_error_of_ours_and_a_key_error() -> None:
    with pytest.raises(KeyError) as caught:
        BASELINES["scrubb"]
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value).startswith("Unknown baseline: 'scrubb'. Supported: retrain, fine_tune, ")
    assert str(caught.value).endswith(", sisa.")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert "scrubb" not in BASELINES
    assert BASELINES.get("scrubb") is None
    assert BASELINES.get("scrub") is BASELINES["scrub"]
    assert len(list(BASELINES)) == len(BASELINES), "asking for what is not there has added nothing"


@pytest.mark.parametrize("name", TRAINED)
def test_the_model_passed_in_is_untouched_and_shares_nothing(name: str) -> None:
    net = normed_net().train()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    before = state_of(net)
    result = BASELINES[name].run(net, forget_set(), retain_set(), held_out(), short(name))
    assert state_of(net) == before
    here = {value.data_ptr() for value in net.state_dict().values()}
    assert not here & {value.data_ptr() for value in result.model.state_dict().values()}
    assert not equal(tensors(net), tensors(result.model))
    assert result.ok
    assert result.config == short(name)
    assert not any(m.training for m in result.model.modules())
    assert len(result.history) == 2


@pytest.mark.parametrize("name", TRAINED)
def test_the_same_seed_gives_the_same_bits_and_the_users_random_numbers_go_on(name: str) -> None:
    net = normed_net()
    net.insert(3, nn.Dropout(0.5))
    retain = DataLoader(TensorDataset(*batch(30, 1)), batch_size=9, shuffle=True)
    runs = []
    for drawn in (0, 5):
        torch.manual_seed(drawn)
        expected = torch.random.get_rng_state()
        runs.append(BASELINES[name].run(net, forget_set(), retain, config=short(name)).model)
        assert torch.equal(torch.random.get_rng_state(), expected)
    assert equal(tensors(runs[0]), tensors(runs[1]))


@pytest.mark.parametrize("name", ["retrain", "eu_k", "random_label", "salun"])
def test_another_seed_gives_others(name: str) -> None:
    runs = [
        BASELINES[name].run(normed_net(), forget_set(), retain_set(), config=short(name, seed=s)).model for s in (0, 1)
    ]
    assert not equal(tensors(runs[0]), tensors(runs[1]))


@pytest.mark.parametrize("name", TRAINED)
def test_it_asks_for_what_it_says_it_needs_and_for_nothing_else(name: str) -> None:
    method = BASELINES[name]
    given: dict[str, Loader | None] = {"forget": forget_set(), "retain": retain_set()}
    for part in given:
        one = {**given, part: None}
        if part in method.needs:
            with pytest.raises(DataError, match=f"{name} needs the {part} set"):
                method.run(normed_net(), one["forget"], one["retain"], config=short(name))
        else:
            assert method.run(normed_net(), one["forget"], one["retain"], config=short(name)).ok


@pytest.mark.parametrize(
    ("name", "setting"), [(name, setting) for name, method in BASELINES.items() for setting in method.also]
)
def test_where_a_setting_is_on_it_asks_for_what_it_says_it_then_needs(name: str, setting: str) -> None:
    method, sets, config = BASELINES[name], (forget_set(), retain_set()), short(name, **{setting: True})
    assert method.also[setting] == "val", "what this test knows how to give"
    assert method.needs_with(short(name)) == method.needs == method.needs_with(config) - {"val"}
    assert "val" in method.needs_with(config)
    with pytest.raises(DataError, match=f"{name} with {setting}=True needs the val set"):
        method.run(normed_net(), *sets, config=config)
    assert method.run(normed_net(), *sets, held_out(), config).ok


def seen(model: nn.Module, batches: Any) -> Outcomes:
    with at_rest(model):
        return observe(model, batches)


def suited(name: str) -> dict[str, Any]:
    """Settings that suit 300 points and an MLP that Adam has trained: larger steps than for CIFAR-10."""
    retrained = {"optimizer": "adam", "lr": 3e-3, "schedule": "constant", "lr_end": None, "weight_decay": 0.0}
    return {
        "retrain": {"epochs": 40, **retrained},
        "fine_tune": {"epochs": 20, "lr": 0.05},
        "eu_k": {"epochs": 30, "k": 2, **retrained},
        "cf_k": {"epochs": 10, "k": 2},
        "neg_grad": {"epochs": 6, "lr": 0.2},
        "neg_grad_plus": {"epochs": 14, "lr": 0.1, "a": 0.8},
        "random_label": {"epochs": 10, "lr": 3e-3},
        "scrub": {"epochs": 20, "lr": 0.05, "forget_epochs": 5, "schedule": "constant", "decay_epochs": ()},
        "salun": {"epochs": 10, "lr": 0.1},
        "delete": {"epochs": 20, "lr": 0.002},
    }[name]


@pytest.mark.parametrize("name", TRAINED)
def test_each_forgets_some_of_what_the_model_knew_by_heart(name: str, points: Problem) -> None:
    """The loss on the forget set rises, more than on the retain set, and that, where it is looked at, stays known.

    Fine-tuning and CF-k need not forget, and are known for it: they only get better at what they train on.
    """
    kept = torch.arange(len(points.forget), len(points.y))
    method = BASELINES[name]
    result = method.run(points.model, points.forgotten, points.samples(kept), points.val, method.config(**suited(name)))
    assert result.ok, result.stopped
    forgotten, retained = (
        [seen(m, part).loss.mean().item() for m in (points.model, result.model)]
        for part in (points.forgotten, points.samples(kept))
    )
    if name in ("fine_tune", "cf_k"):
        assert retained[1] < retained[0]
    else:
        assert forgotten[1] > 3 * forgotten[0]
        assert forgotten[1] - forgotten[0] > retained[1] - retained[0]
    if "retain" in method.needs:
        assert seen(result.model, points.samples(kept)).error < 5
    assert "val_error" in result.history[-1]
