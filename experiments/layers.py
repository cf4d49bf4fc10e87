"""The supplement's tables by layers: how much of a network has to move? PGU and EU-k, SmallVGG and ResNet-18.

    unweave reproduce layers --data FOLDER [--seeds 5] [--models 12]

SmallVGG forgets 100 samples of every class with its last 1, 2 … 5 layers; ResNet-18 forgets the first classes with its
last 1, 2 … 6 blocks (the classifier, layer4 … layer1, the first convolution). The AUC is that of the paper's attack,
with fewer networks than its 50 + 50 and the interval stated. EU-k trains its layers as the network was trained.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from experiments.documents.summary import attacks, head, method_rows, rests_on
from experiments.running.jobs import Job
from experiments.running.work import Work
from experiments.settings import Case, Setting, first_classes, steps_of
from experiments.ways.requests import attack_networks, both_kinds, variant_job

NAME = "layers"
METHODS = ("pgu", "eu_k")


def cases(work: Work) -> dict[str, Case]:
    """The two requests of the supplement."""
    scale = work.scale
    return {
        "smallvgg": steps_of(scale.smallvgg, scale.per_class, 1)[0],
        "resnet18": first_classes(scale.resnet18, scale.removed[0]),
    }


def ends_of(setting: Setting, blocks: bool) -> list[list[str]]:
    """The names of the layers that move when 1, 2 … of the last layers or blocks do."""
    net = setting.build(setting.classes)
    names = [name for name, layer in net.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    groups = list(dict.fromkeys(name.split(".")[0] for name in names)) if blocks else names
    return [
        [name for name in names if (name.split(".")[0] if blocks else name) in groups[-k:]]
        for k in range(1, len(groups) + 1)
    ]


def variants(work: Work, key: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name of an outcome → method and settings."""
    setting = cases(work)[key].setting
    found = dict[str, tuple[str, dict[str, Any]]]()
    for k, names in enumerate(ends_of(setting, blocks=key == "resnet18"), start=1):
        found[f"pgu last={k}"] = "pgu", {"layers": names}
        found[f"eu_k last={k}"] = "eu_k", {"k": len(names)}
    return found


def jobs(work: Work) -> list[Job]:
    """SmallVGG first: its networks are there from table 3."""
    made = list[Job]()
    for key, case in cases(work).items():
        seeds = range(work.scale.seeds)
        made += both_kinds(work, case, seeds)
        every = variants(work, key).items()
        for kind in METHODS:
            chosen = [(name, method, settings) for name, (method, settings) in every if method == kind]
            made += [variant_job(work, case, n, m, seed, s) for seed in seeds for n, m, s in chosen]
        made += attack_networks(work, case)
    return made


def assemble(work: Work) -> dict[str, Any]:
    """Errors and AUC by how much moves."""
    every = cases(work)
    prefixes = [prefix for key, case in every.items() for prefix in rests_on(case, _names(work, key))]
    return {
        **head(work, NAME, list(every.values()), prefixes),
        "networks": {key: _table(work, key, case) for key, case in every.items()},
    }


def _names(work: Work, key: str) -> list[str]:
    return ["original", "retrained", *variants(work, key)]


def _table(work: Work, key: str, case: Case) -> dict[str, Any]:
    names = _names(work, key)
    return {
        "request": {"network": case.setting.name, "case": case.name, "task": case.task},
        "moved": [len(layers) for layers in ends_of(case.setting, blocks=key == "resnet18")],
        "methods": method_rows(work, case, names),
        "attacks": attacks(work, case, names, only=("xgboost", "u-lira")),
    }


if __name__ == "__main__":
    from experiments.reproduce import main

    main(NAME)
