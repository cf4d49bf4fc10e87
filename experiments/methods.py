"""The ways to forget that the tables compare, each called on the same request.

| name  | what                                                                                                     |
|-------|----------------------------------------------------------------------------------------------------------|
| pgu   | the authors' settings as their code has them (``ForgetConfig.paper``), strided layers read at every pixel |
| paper | the paper's loss with this project's step, target and landing                                            |
| match | this project's default for samples                                                                       |
| ours  | this project's default for classes                                                                       |
| …     | every other name is one of ``unweave.baselines.BASELINES``, with the settings that tuning chose           |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import unweave
from experiments.loaders import Shuffled
from experiments.settings import Case
from experiments.sources import recipe_of, train
from experiments.work import Work
from unweave.baselines import BASELINES

TITLES = {
    "original": "original",
    "retrained": "retrained",
    "pgu": "PGU, the authors' settings",
    "paper": "unweave, the paper's loss",
    "match": "unweave, `match`",
    "ours": "unweave",
}
SAMPLES = ("pgu", "paper", "match")
CLASSES = ("pgu", "ours")


@dataclass(frozen=True)
class Outcome:
    """A network that was made to forget, and how that went."""

    net: nn.Module
    seconds: float
    """Of the request; what was prepared at training time is in ``story``."""
    story: dict[str, Any]


def title_of(name: str) -> str:
    """As it stands in a table."""
    return TITLES.get(name) or BASELINES[name].title


def pgu_config(name: str, case: Case) -> tuple[unweave.ForgetConfig, str]:
    """The settings of one of this project's ways, and the stride its Grams are made with."""
    if name == "pgu":
        return unweave.ForgetConfig.paper(case.setting.preset), "one"
    if name == "paper":
        return unweave.ForgetConfig(task=case.task, objective="paper"), "layer"
    return unweave.ForgetConfig(task=case.task), "layer"


def forget_by(work: Work, case: Case, name: str, seed: int, settings: dict[str, Any] | None = None) -> Outcome:
    """Let the original network of a seed forget.

    Args:
        work: where the network comes from.
        case: what is to be forgotten.
        name: of the way, see the module.
        seed: of the original network.
        settings: in place of some of the way's own.
    """
    if name in TITLES:
        config, stride = pgu_config(name, case)
        return by_projection(work, case, seed, replace(config, **settings or {}), stride)
    return by_baseline(work, case, name, seed, settings or {})


def by_projection(work: Work, case: Case, seed: int, config: unweave.ForgetConfig, stride: str = "layer") -> Outcome:
    """PGU with these settings; the Grams were made at training time, so their seconds are told apart."""
    config = capped(work, config)
    grams, fitted = work.grams(case.setting, seed, stride=stride)
    net, parts = work.network(case.setting, *original(seed)), work.parts(case)
    loaders = parts.forget.batches(), parts.val.batches()
    result, seconds = work.timed(lambda: unweave.forget(net, loaders[0], grams, loaders[1], config))
    return Outcome(result.model, seconds, {**pgu_story(result), "fit seconds": fitted})


def capped(work: Work, config: unweave.ForgetConfig) -> unweave.ForgetConfig:
    """No more epochs than the scale allows."""
    most = work.scale.pgu_epochs
    return config if most is None else replace(config, epochs=min(config.epochs, most))


def pgu_story(result: unweave.ForgetResult) -> dict[str, Any]:
    """How a request of this project went, for JSON."""
    settings = {key: value for key, value in result.config.as_dict().items() if key != "notes"}
    return {
        "ok": result.ok,
        "stopped": result.stopped,
        "target": result.goal.error,
        "epochs": len(result.history) - 1,
        "config": settings,
    }


def by_baseline(work: Work, case: Case, name: str, seed: int, settings: dict[str, Any]) -> Outcome:
    """One of the other methods, with the data it asks for."""
    method = BASELINES[name]
    config = method.config(**settings)
    net, parts = work.network(case.setting, *original(seed)), work.parts(case)
    padding = recipe_of(case.setting).padding
    size = min(getattr(config, "batch_size", 256), len(parts.retain))
    retain = Shuffled(parts.retain, size, seed=seed, padding=padding)
    wanted = _extras(work, case, method.needs, seed)
    result, seconds = work.timed(
        lambda: method.run(net, parts.forget.batches(size), retain, val=parts.val.batches(), config=config, **wanted)
    )
    story = {"ok": result.ok, "stopped": result.stopped, "config": settings, "needs": sorted(method.needs)}
    return Outcome(result.model, seconds, story)


def _extras(work: Work, case: Case, needs: frozenset[str], seed: int) -> dict[str, Any]:
    """What some methods need beside the retained data."""
    setting, found = case.setting, dict[str, Any]()
    if "first weights" in needs:
        found["first_weights"] = first_weights(work, case, seed)
    if "trainer" in needs:
        found["trainer"] = trainer(work, case)
    if "training" in needs:
        found["training"] = work.data(setting).train.batches(256)
    return found


def first_weights(work: Work, case: Case, seed: int) -> dict[str, torch.Tensor]:
    """The weights that the network of this seed began with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = case.setting.build(case.setting.classes)
    return {name: value.to(work.device) for name, value in net.state_dict().items()}


def trainer(work: Work, case: Case) -> Callable[..., nn.Module]:
    """From a labelled data set and a seed to a trained network."""
    return lambda data, seed=0: train(case.setting, data, [seed])[0]


def original(seed: int) -> tuple[Any, int]:
    """The training set and the seed of an original network, as ``Work.network`` takes them."""
    from experiments.training_sets import FULL

    return FULL, seed
