"""The ways to forget that the tables compare, each called on the same request.

| name        | what                                                                                                   |
|-------------|--------------------------------------------------------------------------------------------------------|
| pgu         | the authors' settings as their code has them (``ForgetConfig.paper``), strides read as 1               |
| paper       | the paper's loss with this project's step, target and landing                                          |
| match       | this project's default for samples and for wrong labels                                                |
| match first | the same in a chain of requests that is told the original network (``chains``)                         |
| match soft  | match with soft protection                                                                             |
| solved      | samples matched in a few solved steps                                                                  |
| ours        | what the network says where classes are no choice is matched; the odds among the others are not held   |
| soft        | the same with soft protection                                                                          |
| odds        | the odds held too: this project's default for classes                                                  |
| both        | that with soft protection                                                                              |
| …           | every other name is a baseline (``trials.baseline_of``) with the settings that tuning chose            |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import unweave
from experiments.running.sources import recipe_of
from experiments.running.training_sets import FULL
from experiments.running.work import Work, in_all
from experiments.settings import Case, Setting
from experiments.training.loaders import Shuffled
from experiments.trials import baseline_of
from experiments.ways.last_layers import by_last_layers
from experiments.ways.outcome import Outcome
from experiments.ways.sharded import by_shards
from unweave.baselines.importances import importances
from unweave.baselines.ntk import linearise

TITLES = {
    "original": "original",
    "retrained": "retrained",
    "pgu": "PGU, the authors' settings",
    "paper": "unweave, the paper's loss",
    "match": "unweave, `match`",
    "match first": "unweave, `match`, `first=`",
    "match soft": "unweave, `match`, soft protection",
    "solved": "unweave, `match` solved",
    "ours": "unweave, odds not held",
    "soft": "unweave, soft protection, odds not held",
    "odds": "unweave",
    "both": "unweave, soft protection",
}
OTHERWISE = {
    "scrub frozen": "SCRUB, frozen norm",
    "scrub of classes": "SCRUB, as for classes",
    "salun frozen": "SalUn, frozen norm",
}
"""Titles of baselines with other fixed settings than their own."""
SAMPLES = ("pgu", "paper", "match")
CLASSES = ("pgu", "paper", "ours", "soft", "odds", "both")
FORGET_BATCH, RETAIN_BATCH = 128, 256
SAMPLES_AT_ONCE = 256
"""Of methods that ask for every sample's own gradient, on a GPU: with fewer it waits for the host."""


def title_of(name: str) -> str:
    """As it stands in a table."""
    return TITLES.get(name) or OTHERWISE.get(name) or baseline_of(name).title


def pgu_config(name: str, case: Case) -> tuple[unweave.ForgetConfig, str]:
    """The settings of one of this project's ways, and the stride its Grams are made with."""
    if name == "pgu":
        preset = unweave.ForgetConfig.paper(case.setting.preset)
        if case.task == "classes" and preset.task == "samples":  # no settings shipped: see experiments.class_smallvgg
            preset = replace(preset, task="classes", stop="epochs", max_damage=5.0)
        return preset, "one" if case.setting.strided else "layer"
    if name == "paper":
        return unweave.ForgetConfig(task=case.task, objective="paper"), "layer"
    changes: dict[str, Any] = {"protect": "soft"} if name in ("match soft", "soft", "both") else {}
    changes |= {"way": "solve"} if name == "solved" else {}
    changes |= {"odds": 0.0} if name in ("ours", "soft") else {}
    return unweave.ForgetConfig(task=case.task, **changes), "layer"


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
    if name == "sisa":
        return by_shards(work, case, seed)
    if name == "eu_k":
        return by_last_layers(work, case, seed, settings or {})
    return by_baseline(work, case, name, seed, settings or {})


def by_projection(work: Work, case: Case, seed: int, config: unweave.ForgetConfig, stride: str = "layer") -> Outcome:
    """PGU with these settings; the Grams were made at training time, so their seconds are told apart."""
    config = capped(work, config)
    grams, fitted = work.grams(case.setting, seed, stride=stride)
    net, parts = work.network(case.setting, FULL, seed), work.parts(case)
    loaders = parts.forget.batches(), parts.val.batches()
    ask = partial(unweave.forget, net, loaders[0], grams, loaders[1])
    result, seconds = timed_request(work, case.setting, config, ask)
    return Outcome(result.model, seconds, {**pgu_story(result), "fit seconds": fitted})


def timed_request(
    work: Work,
    setting: Setting,
    config: unweave.ForgetConfig,
    ask: Callable[[unweave.ForgetConfig], unweave.ForgetResult],
) -> tuple[unweave.ForgetResult, float | None]:
    """A request and its seconds. The first of its kind in a process also loads kernels: a short one goes before it."""
    of_a_kind = f"request of {setting.name}, {config.task}, {config.objective}, {config.protect}, {config.way}"
    if not work.crowded and work.first_time(of_a_kind):
        ask(replace(config, epochs=2))
    return work.timed(lambda: ask(config))


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
    """One of the other methods, with the data it asks for; those that train do it in bfloat16 on a GPU."""
    method = baseline_of(name)
    config = fitted_to(work, method.config(**settings))
    net, parts = work.network(case.setting, FULL, seed), work.parts(case)
    forget = Shuffled(parts.forget, FORGET_BATCH, seed=seed)
    padding = recipe_of(case.setting).padding if hasattr(config, "epochs") else None  # only training augments
    retain = Shuffled(parts.retain, RETAIN_BATCH, seed=seed, padding=padding)
    needs = method.needs_with(config)
    val = parts.val.batches() if "val" in needs else None
    extras = dict[str, Any]()
    before: float | None = 0.0
    story: dict[str, Any] = {"config": settings, "needs": sorted(needs)}
    if "first weights" in needs:
        extras["first"] = first_weights(work, case, seed)
    if "importances" in needs:  # kept from training time, as this project's Grams are: not part of the request
        mixed = Shuffled(work.data(case.setting).train, RETAIN_BATCH, seed=seed)  # a batch of one class weighs more
        extras["importances"], story["fit seconds"] = work.timed(
            lambda: importances(net, mixed, batch_size=config.batch_size)
        )
    if name == "ntk":  # part of the request, and the same for all trials of one network
        key = case.setting.name, case.name, seed
        extras["around"], before = work.linearised(key, lambda: linearise(net, forget, retain, config))
    result, seconds = work.timed(lambda: method.run(net, forget, retain, val=val, config=config, **extras))
    return Outcome(result.model, in_all([before, seconds]), {"ok": result.ok, "stopped": result.stopped, **story})


def fitted_to(work: Work, config: Any) -> Any:
    """A baseline's settings on this device and scale: bfloat16 on a GPU, few epochs and samples if quick.

    Blocks of a Jacobian may take half of what a GPU has free, a fifth where others work: the more, the fewer passes.
    """
    changes, gpu = dict[str, Any](), work.device.type == "cuda"
    if hasattr(config, "bf16"):
        changes["bf16"] = gpu
    if hasattr(config, "chunk") and gpu:
        changes["chunk"] = SAMPLES_AT_ONCE
    if hasattr(config, "max_bytes") and gpu:
        changes["max_bytes"] = torch.cuda.mem_get_info(work.device)[0] // (5 if work.crowded else 2)
    most = work.scale.baseline_epochs
    if most is not None:
        changes |= {name: min(getattr(config, name), most) for name in ("epochs", "steps") if hasattr(config, name)}
    if work.scale.baseline_samples is not None and hasattr(config, "samples"):
        changes["samples"] = work.scale.baseline_samples
    if work.scale.baseline_samples is not None and hasattr(config, "iterations"):
        changes["iterations"] = work.scale.baseline_samples
    return replace(config, **changes)


def first_weights(work: Work, case: Case, seed: int) -> dict[str, torch.Tensor]:
    """The weights that the network of this seed began with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = case.setting.build(case.setting.classes)
    return {name: value.to(work.device) for name, value in net.state_dict().items()}
