"""The supplement's figures by epoch: accuracy lost, AUC of the attack, the attacker's scores at and beyond the stop.

    unweave reproduce epochs --data FOLDER [--seeds 5] [--models 12]

The authors' settings without their stop rule, for so many epochs of their schedule, of which the first takes no step:
documents count the others. Their learning rate falls over 100 epochs whether or not the request ends earlier, so a
request of E epochs ends at lr · (end / lr)^(E / 100). SmallVGG forgets 100 samples of every class, ResNet-18 the first
classes. "Accuracy lost" is the rise of the error over the original's. Beside them the same walk where the authors' rule
ends it: that request is the experiment ``layers``' with all layers moved. For classes their rule runs all epochs.
"""

from __future__ import annotations

from typing import Any

import unweave
from experiments.documents.many import Attackers, rounded
from experiments.documents.summary import attacks, head, method_rows, rests_on
from experiments.layers import cases, ends_of, variants
from experiments.running.jobs import Job
from experiments.running.work import Work
from experiments.settings import Case
from experiments.ways.methods import pgu_config
from experiments.ways.requests import attack_networks, both_kinds, variant_job

NAME = "epochs"
SCHEDULED = 100
"""Epochs over which the authors' learning rate falls."""


def watched(work: Work, key: str) -> tuple[int, ...]:
    """After how many epochs of the schedule to look; 0 is the original network."""
    return work.scale.epochs_watched if key == "smallvgg" else work.scale.epochs_watched_classes


def variant(epochs: int) -> str:
    """The name its outcomes are kept under."""
    return "original" if epochs == 0 else f"pgu epochs={epochs}"


def stopped(work: Work, key: str) -> list[str]:
    """The name of the request that the authors' rule ends; none for classes."""
    case = cases(work)[key]
    return [f"pgu last={len(ends_of(case.setting, blocks=False))}"] if case.task == "samples" else []


def settings_for(config: unweave.ForgetConfig, epochs: int) -> dict[str, Any]:
    """So many epochs of the authors' schedule, and no stop."""
    assert config.lr is not None
    assert config.lr_end is not None
    end = config.lr * (config.lr_end / config.lr) ** (epochs / SCHEDULED)
    return {"epochs": epochs, "lr_end": end, "stop": "epochs", "max_damage": None}


def jobs(work: Work) -> list[Job]:
    """The networks, then seed by seed all epochs of one original."""
    made = list[Job]()
    for key, case in cases(work).items():
        seeds, config = range(work.scale.seeds), pgu_config("pgu", case)[0]
        made += both_kinds(work, case, seeds)
        for seed in seeds:
            made += [
                variant_job(work, case, variant(e), "pgu", seed, settings_for(config, e))
                for e in watched(work, key)
                if e > 0
            ]
            made += [variant_job(work, case, n, m, seed, s) for n, (m, s) in _stopped_variants(work, key)]
        made += attack_networks(work, case)
    return made


def _stopped_variants(work: Work, key: str) -> list[tuple[str, tuple[str, dict[str, Any]]]]:
    return [(name, variants(work, key)[name]) for name in stopped(work, key)]


def assemble(work: Work) -> dict[str, Any]:
    """Curves over epochs."""
    every = cases(work)
    prefixes = [prefix for key, case in every.items() for prefix in rests_on(case, _names(work, key))]
    networks = {key: _curves(work, key, case) for key, case in every.items()}
    return {**head(work, NAME, list(every.values()), prefixes), "networks": networks}


def _names(work: Work, key: str) -> list[str]:
    return [*_walked(work, key), "retrained"]


def _walked(work: Work, key: str) -> list[str]:
    """The looks at the walk, in its order as far as it is known beforehand: where the rule ends it is not."""
    return [*(variant(e) for e in watched(work, key)), *stopped(work, key)]


def _curves(work: Work, key: str, case: Case) -> dict[str, Any]:
    every = _names(work, key)
    rows, attackers = method_rows(work, case, every), Attackers(work, case, every)
    taken = {name: rows[name].get("epochs", 0) for name in _walked(work, key) if name in rows}
    names = sorted(taken, key=lambda name: taken[name])
    scores = {name: _scores(attackers, name) for name in names} if attackers.ready() else {}
    return {
        "request": {"network": case.setting.name, "case": case.name, "task": case.task},
        "epochs": {name: taken[name] for name in names},
        "stopped by the rule": [name for name in stopped(work, key) if name in rows],
        "methods": rows,
        "attacks": attacks(work, case, every, only=("xgboost",)),
        "attacker's scores": {name: found for name, found in scores.items() if found},
    }


def _scores(attackers: Attackers, name: str) -> dict[str, Any] | None:
    """Histogram of the classifier's log-odds: unlearned networks against retrained ones."""
    tested = [s for s in attackers.tested() if s in attackers.seeds(name)]
    if not tested:
        return None
    found: dict[str, Any] = rounded(attackers.scored(attackers.outputs(name, tested)).document()["scores"])
    return found


if __name__ == "__main__":
    from experiments.reproduce import main

    main(NAME)
