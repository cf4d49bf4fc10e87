"""Section 4.3 and figure 4: SmallVGG on CIFAR-10 forgets all airplanes; what are they taken for afterwards?

    unweave reproduce class-smallvgg --data FOLDER [--seeds 5]

The share of airplanes that each network takes for each other class, with the airplanes' own output left out (the paper
removes its row). Retrained and unlearned networks should agree; the distance is half the sum of absolute differences,
of mean shares as in the figure, and of single networks.

The paper attacks nobody here. With as few networks of each kind as there are seeds an attacker learns little: the
classifier has three to learn from, one to choose by and one to be asked about, and asks in turns about all the others.

The authors' repository has no settings for this experiment: ``pgu`` takes those of SmallVGG's samples with the stop
rule of their class removal (all epochs, unless the error of the others rises by 5 points; here on the validation half).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.documents.many import rounded
from experiments.documents.summary import attacks, entropies, forget_outputs, head, method_rows
from experiments.running.jobs import Job
from experiments.running.sources import class_name
from experiments.running.work import Work
from experiments.settings import Case, first_classes
from experiments.ways.methods import CLASSES
from experiments.ways.requests import method_job, original_job, retrained_job
from unweave.audit.readouts import destinations

NAME = "class-smallvgg"
METHODS = ("original", "retrained", *CLASSES)


def case_of(work: Work) -> Case:
    """All of class 0."""
    return first_classes(work.scale.smallvgg, 1)


def jobs(work: Work) -> list[Job]:
    """Seed by seed."""
    case, made = case_of(work), list[Job]()
    for seed in range(work.scale.seeds):
        made += [original_job(work, case, seed), *(method_job(work, case, name, seed) for name in CLASSES)]
        made.append(retrained_job(work, case, seed))
    return made


def assemble(work: Work) -> dict[str, Any]:
    """Errors, entropies and destinations."""
    case = case_of(work)
    stays = [c for c in range(case.setting.classes) if c not in case.classes]
    shares = _shares(work, case, stays)
    named = [class_name(case.setting, c) for c in stays]
    return {
        **head(work, NAME, [case], [f"{case.setting.name}/{case.name}"]),
        "request": {"network": case.setting.name, "classes": list(case.classes), "task": case.task},
        "methods": method_rows(work, case, METHODS),
        "entropy": entropies(work, case, METHODS),
        "taken for": {
            name: dict(zip(named, rounded(own.mean(0).tolist()), strict=True)) for name, own in shares.items()
        },
        **distances(shares),
        "attacks": attacks(work, case, METHODS),
        "attacks in turns": attacks(work, case, METHODS, ("xgboost",), every=True),
    }


def _shares(work: Work, case: Case, stays: Sequence[int]) -> dict[str, np.ndarray]:
    """For each method [networks, classes that stay]: the share of forgotten samples that goes to every class."""
    numbers = [str(c) for c in range(case.setting.classes)]
    found = {name: forget_outputs(work, case, name) for name in METHODS}
    return {
        name: np.array([list(destinations(one, case.classes[0], numbers, kept=stays).values()) for one in networks])
        for name, networks in found.items()
        if networks is not None
    }


def distances(shares: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """How far each method's shares [networks, classes] are from retraining's: their mean, and single networks.

    Networks that are off in different ways may have a mean that is not. Single networks, mean over them, are compared
    with the mean of the retrained ones, a retrained one with that of the others.
    """
    if "retrained" not in shares:
        return {"distance to retrained": {}, "distance of single networks": {}}
    aim = shares["retrained"].mean(0)
    single = {name: _apart(own, aim) for name, own in shares.items() if name != "retrained"}
    count = len(shares["retrained"])
    if count > 1:
        others = (count * aim - shares["retrained"]) / (count - 1)
        single["retrained"] = _apart(shares["retrained"], others)
    return {
        "distance to retrained": rounded({name: float(_apart(own.mean(0), aim)) for name, own in shares.items()}),
        "distance of single networks": rounded({name: float(found.mean()) for name, found in single.items()}),
    }


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Half the sum of absolute differences: the share that would have to go elsewhere."""
    apart: np.ndarray = np.abs(one - other).sum(-1) / 2
    return apart


if __name__ == "__main__":
    from experiments.reproduce import main

    main(NAME)
