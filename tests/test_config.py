from __future__ import annotations

import json
from typing import Any

import pytest

from unweave import ForgetConfig
from unweave.config import HELD_ODDS, OWN_STOP, STOPS
from unweave.errors import ConfigError
from unweave.presets import PRESETS

nan, inf = float("nan"), float("inf")

INVALID: list[tuple[str, Any]] = [
    *[("gamma", value) for value in (0, 1.5, -0.1, nan, inf, None, "0.9", True, {"default": 0.9, "head": 0.0})],
    *[("lr", value) for value in (0, -0.1, nan, inf, "0.1", True)],
    ("lr_end", 0.0),
    ("lr_end", nan),
    *[("eps", value) for value in (0, -1, nan, inf)],
    *[("lam", value) for value in (nan, inf, "0.2")],
    *[("odds", value) for value in (-0.1, nan, inf, "1")],
    *[("epochs", value) for value in (0, -1, 2.5, True, None)],
    ("batch_size", 0),
    ("seed", "x"),
    ("seed", None),
    ("trust", -1),
    *[("max_damage", value) for value in (0, -1, nan)],
    ("task", "sample"),
    ("task", None),
    ("objective", "push"),
    ("stop", "never"),
    ("energy", "sigma3"),
    ("rank_rule", "ge"),
    ("negative", "ignore"),
    *[("strangers", value) for value in ("ignore", None)],
]


@pytest.mark.parametrize("name, value", INVALID)
def test_an_invalid_value_is_refused_by_the_field_s_name(name: str, value: Any) -> None:
    settings = {"lr": 0.1} if name == "lr_end" else {}
    with pytest.raises(ConfigError, match=rf"Invalid {name}\b.*Supported: "):
        ForgetConfig(**{**settings, name: value})


def test_an_invalid_gamma_names_the_layer_it_was_given_for() -> None:
    with pytest.raises(ConfigError, match=r"'head': 1\.5"):
        ForgetConfig(gamma={"default": 0.9, "head": 1.5})


@pytest.mark.parametrize("gamma", [1, 1.0, 1e-9, 0.5, {"default": 0.9, "a": 1.0}])
def test_gamma_may_be_anything_above_0_up_to_1(gamma: Any) -> None:
    assert ForgetConfig(gamma=gamma).gamma == gamma


def test_the_guard_can_be_switched_off_with_infinity() -> None:
    assert ForgetConfig(max_damage=inf).max_damage == inf


@pytest.mark.parametrize("other", [{}, {"task": "poison"}, {"task": "classes", "objective": "paper"}], ids=str)
def test_odds_are_for_classes_that_are_matched(other: dict[str, Any]) -> None:
    assert ForgetConfig(task="classes").resolved().odds == HELD_ODDS
    assert ForgetConfig(task="classes", odds=0).resolved().odds == 0
    assert ForgetConfig(**other).resolved().odds is None
    with pytest.raises(ConfigError, match="odds are held where classes are matched"):
        ForgetConfig(**other, odds=0.5)


def test_lr_end_without_lr_is_refused() -> None:
    with pytest.raises(ConfigError, match="lr_end without lr"):
        ForgetConfig(lr_end=0.01)


@pytest.mark.parametrize(
    "task, stop", [(task, stop) for task, own in OWN_STOP.items() for stop in STOPS if stop != own]
)
def test_match_has_one_place_to_stop(task: str, stop: str) -> None:
    with pytest.raises(ConfigError, match=f"match.*{task}.*{stop}"):
        ForgetConfig(task=task, objective="match", stop=stop)


@pytest.mark.parametrize("task", OWN_STOP)
@pytest.mark.parametrize("setting", [{"lam": 0.0}, {"eps": 0.1}], ids=str)
def test_a_setting_of_the_paper_s_loss_means_the_paper_s_loss(task: str, setting: dict[str, float]) -> None:
    config = ForgetConfig(task=task, **setting).resolved()
    assert config.objective == "paper"
    assert setting.items() <= config.as_dict().items()
    with pytest.raises(ConfigError, match=r"lam and eps.*objective='paper'"):
        ForgetConfig(task=task, objective="match", **setting)


@pytest.mark.parametrize("task, stop", [("samples", "epochs"), ("classes", "held-out"), ("poison", "epochs")])
def test_another_stop_means_the_paper_s_loss(task: str, stop: str) -> None:
    assert ForgetConfig(task=task, stop=stop).resolved().objective == "paper"


@pytest.mark.parametrize(
    "task, objective, lam, eps, stop",
    [
        ("samples", "match", None, None, "held-out"),
        ("classes", "match", None, None, "chance"),
        ("poison", "match", None, None, "poison"),
        ("samples", "paper", 0.2, 0.05, "held-out"),
        ("classes", "paper", 0.2, 0.05, "chance"),
        ("poison", "paper", -0.2, 0.1, "poison"),
    ],
)
def test_each_task_has_its_defaults(task: str, objective: str, lam: float | None, eps: float | None, stop: str) -> None:
    config = ForgetConfig(task=task, objective=None if objective == "match" else objective).resolved()
    assert config.resolved() == config
    assert (config.objective, config.lam, config.eps, config.stop) == (objective, lam, eps, stop)
    assert config.lr is None


@pytest.mark.parametrize("task", ["samples", "classes", "poison"])
def test_what_was_given_is_kept(task: str) -> None:
    config = ForgetConfig(task=task, objective="paper", lam=0.0, eps=0.3, stop="epochs", lr=0.7).resolved()
    assert (config.objective, config.lam, config.eps, config.stop, config.lr) == ("paper", 0.0, 0.3, "epochs", 0.7)


def test_another_place_to_stop_implies_the_paper_s_objective() -> None:
    assert ForgetConfig(stop="paper").resolved().objective == "paper"
    assert ForgetConfig(stop="held-out").resolved().objective == "match"


def test_a_config_resolves_once() -> None:
    config = ForgetConfig(task="poison").resolved()
    assert config.resolved() == config


def test_a_config_as_plain_values_is_json_and_makes_the_same_config() -> None:
    config = ForgetConfig(gamma={"default": 0.9, "a": 0.5}, layers=("a", "b"), lr=0.1)
    plain = json.loads(json.dumps(config.as_dict()))
    again = ForgetConfig(**{**plain, "layers": tuple(plain["layers"]), "notes": tuple(plain["notes"])})
    assert again == config


# ------------------------------------------------------------------------------------------------ the paper's settings

COLUMNS = ("task", "gamma", "lr", "lr_end", "eps", "lam", "batch_size", "shuffle", "dropout", "rank_rule", "stop")
RESNET_GAMMA = {"default": 0.9, "conv1": 0.95, "layer2.0.conv1": 0.95}
PAPER = {
    "allcnn-cifar10": ("samples", 0.9, 0.1, 0.01, 0.05, 0.2, 128, False, False, "le", "paper"),
    "smallvgg-cifar10": ("samples", 0.95, 0.05, 0.01, 0.05, 0.2, 128, False, True, "le", "paper"),
    "resnet18-tinyimagenet": (
        "classes", RESNET_GAMMA, 0.05, 0.01, 0.05, 0.2, 100, True, False, "paper", "epochs",
    ),
    "smallvgg-cifar10-poison": ("poison", 0.95, 0.1, 0.05, 0.1, -0.2, 128, False, True, "lt", "epochs"),
}  # fmt: skip


@pytest.mark.parametrize("experiment", PAPER)
def test_a_preset_holds_the_authors_settings(experiment: str) -> None:
    config = ForgetConfig.paper(experiment)
    assert dict(zip(COLUMNS, PAPER[experiment], strict=True)) == {name: getattr(config, name) for name in COLUMNS}
    assert config.resolved() == config


@pytest.mark.parametrize("experiment", PRESETS)
def test_every_preset_follows_the_authors_code_and_says_where_it_departs(experiment: str) -> None:
    config = ForgetConfig.paper(experiment)
    shared = (config.objective, config.epochs, config.negative, config.freeze_at_one, config.idle_first_epoch)
    assert shared == ("paper", 100, "abs", True, True)
    assert config.energy == "sigma"
    assert config.notes
    assert all(note.strip() and "\n" not in note for note in config.notes)
    assert len(set(config.notes)) == len(config.notes)


def test_every_experiment_of_the_paper_has_a_preset() -> None:
    assert set(PRESETS) == set(PAPER)


def test_the_poison_preset_scales_400_directions() -> None:
    config = ForgetConfig.paper("smallvgg-cifar10-poison")
    assert config.trust == 400


def test_an_unknown_preset_lists_the_known() -> None:
    with pytest.raises(ConfigError) as caught:
        ForgetConfig.paper("allcnn")
    assert all(name in str(caught.value) for name in PRESETS)
