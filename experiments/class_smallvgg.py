"""Section 4.3 and figure 4: SmallVGG on CIFAR-10 forgets all airplanes; what are they taken for afterwards?

    unweave reproduce class-smallvgg --data FOLDER [--seeds 5]

The share of airplanes that each network takes for each other class, with the airplanes' own output left out (the paper
removes its row). Retrained and unlearned networks should agree; the distance is half the sum of absolute differences.

The authors' repository has no settings for this experiment: ``pgu`` takes those of SmallVGG's samples with the stop
rule of their class removal (all epochs, unless the error of the others rises by 5 points; here on the validation half).
"""

from __future__ import annotations

from typing import Any

from experiments.jobs import Job
from experiments.methods import CLASSES
from experiments.requests import method_job, original_job, retrained_job
from experiments.settings import Case, first_classes
from experiments.sources import class_name
from experiments.summary import entropies, forget_outputs, head, method_rows
from experiments.work import Work
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
    taken = _destinations(work, case)
    aim = taken.get("retrained", {})
    distance = {name: round(sum(abs(shares[c] - aim[c]) for c in aim) / 2, 4) for name, shares in taken.items() if aim}
    return {
        **head(work, NAME, [case], [f"{case.setting.name}/{case.name}"]),
        "request": {"network": case.setting.name, "classes": list(case.classes), "task": case.task},
        "methods": method_rows(work, case, METHODS),
        "entropy": entropies(work, case, METHODS),
        "taken for": taken,
        "distance to retrained": distance,
    }


def _destinations(work: Work, case: Case) -> dict[str, dict[str, float]]:
    """For each method the share of forgotten samples that goes to every class that stays."""
    stays = [c for c in range(case.setting.classes) if c not in case.classes]
    named = [class_name(case.setting, c) for c in range(case.setting.classes)]
    found = {name: forget_outputs(work, case, name) for name in METHODS}
    return {
        name: {c: round(s, 4) for c, s in destinations(o, case.classes[0], named, kept=stays).items()}
        for name, o in found.items()
        if o is not None
    }


if __name__ == "__main__":
    from experiments.reproduce import main

    main(NAME)
