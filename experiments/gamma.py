"""The supplement's table by γ: SmallVGG on CIFAR-10 forgets 100 samples of every class, with more or less protected.

    unweave reproduce gamma --data FOLDER [--seeds 5]

``pgu`` (the authors' settings) and ``match`` (this project's default) with every γ of the paper's table, which has no
deviations. The authors' stop rule keeps the network from before the request where the target is never crossed, which
is what the small forget errors at γ near 1 may be.
"""

from __future__ import annotations

from typing import Any

from experiments.documents.summary import head, method_rows
from experiments.running.jobs import Job
from experiments.running.work import Work
from experiments.settings import Case, steps_of
from experiments.ways.requests import original_job, retrained_job, variant_job

NAME = "gamma"
METHODS = ("pgu", "match")
HARD = {"protect": "hard"}
"""At every γ, where the default would go over to soft in layers that a small one leaves free."""


def case_of(work: Work) -> Case:
    """Table 3's first step."""
    return steps_of(work.scale.smallvgg, work.scale.per_class, 1)[0]


def variant(method: str, gamma: float) -> str:
    """The name its outcomes are kept under."""
    return f"{method} gamma={gamma:g}"


def jobs(work: Work) -> list[Job]:
    """Seed by seed, method by method (each has its own Grams), γ by γ."""
    case, made = case_of(work), list[Job]()
    for seed in range(work.scale.seeds):
        made.append(original_job(work, case, seed))
        for method in METHODS:
            for g in work.scale.gammas:
                made.append(variant_job(work, case, variant(method, g), method, seed, {"gamma": g}, HARD))
        made.append(retrained_job(work, case, seed))
    return made


def assemble(work: Work) -> dict[str, Any]:
    """Errors by γ with the paper's beside them."""
    case = case_of(work)
    names = ["original", "retrained", *(variant(method, g) for method in METHODS for g in work.scale.gammas)]
    rows = method_rows(work, case, names)
    return {
        **head(work, NAME, [case], [f"{case.setting.name}/{case.name}/{name}" for name in names]),
        "request": {"network": case.setting.name, "per class": work.scale.per_class, "task": case.task},
        "references": {name: rows[name] for name in ("original", "retrained") if name in rows},
        "methods": {
            method: {f"{g:g}": rows[variant(method, g)] for g in work.scale.gammas if variant(method, g) in rows}
            for method in METHODS
        },
    }


if __name__ == "__main__":
    from experiments.reproduce import main

    main(NAME)
