"""What the paper does not show, on table 1's request: attackers who know the method, and what each part is worth.

    unweave reproduce attacks --data FOLDER [--seeds 5] [--models 50]

Every method of table 1 under U-LiRA, RMIA, KLoM and the paper's own attack, for as many networks each; this project's
ways once more for all that table 1 has of them, each from its own original, with the paper's attack in turns, and how
their margins differ from those of retrained networks. Then
``match`` and ``paper`` with one thing changed at a time: what is the projection worth, soft or hard, the share that is
protected, which layers move, the entropy, the stop rule?
"""

from __future__ import annotations

from typing import Any

from experiments import table1
from experiments.documents.many import Attackers
from experiments.documents.margins import beside_retraining
from experiments.documents.summary import attacks, head, method_rows, rests_on
from experiments.running.jobs import Job
from experiments.running.work import Work
from experiments.settings import samples_of_class_0
from experiments.ways.requests import variant_job

NAME = "attacks"
NOTHING_PROTECTED = {"gamma": 1e-6, "rank_rule": "le"}
"""By the paper's own rule one direction would be left."""
HARD = {"protect": "hard"}
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "match without projection": ("match", NOTHING_PROTECTED),
    "match as held out": ("match", {"label_shift": False}),
    "match soft protection": ("match", {"protect": "soft"}),
    "match gamma=0.8": ("match", {"gamma": 0.8}),
    "match gamma=0.95": ("match", {"gamma": 0.95}),
    "match gamma=0.99": ("match", {"gamma": 0.99}),
    "match energy of squares": ("match", {"energy": "sigma2"}),
    "match last 3 layers": ("match", {"layers": 3}),
    "match 20 epochs": ("match", {"epochs": 20}),
    "match batches of 32": ("match", {"batch_size": 32}),
    "solved hard protection": ("solved", HARD),
    "paper without entropy": ("paper", {"lam": 0.0}),
    "paper without projection": ("paper", NOTHING_PROTECTED),
    "paper soft protection": ("paper", {"protect": "soft"}),
    "paper stop of the paper": ("paper", {"stop": "paper"}),
}
"""Name of an outcome → method and the settings that are changed."""
STAY_HARD = ("match gamma=0.8", "match gamma=0.95", "match gamma=0.99", "match energy of squares")
"""As the default is on this network: where less is protected, it might go over to soft."""


def jobs(work: Work) -> list[Job]:
    """Table 1's jobs, and the changes."""
    case, scale = samples_of_class_0(work.scale), work.scale
    made = table1.jobs(work)
    for seed in range(scale.seeds):
        for name, (method, changed) in CHANGES.items():
            also = HARD if name in STAY_HARD else None
            made.append(variant_job(work, case, name, method, seed, changed, also))
    return made


def assemble(work: Work) -> dict[str, Any]:
    """Errors and attacks of all of them."""
    case = samples_of_class_0(work.scale)
    ours = ["original", "retrained", *table1.OURS]
    methods = [*ours, *table1.baselines()]
    return {
        **head(work, NAME, [case], rests_on(case, [*methods, *CHANGES])),
        "request": {"network": case.setting.name, "forget": work.scale.samples, "task": case.task},
        "methods": method_rows(work, case, methods),
        "changes": method_rows(work, case, list(CHANGES)),
        "attacks": attacks(work, case, [*(name for name in methods if name not in table1.UNTUNED), *CHANGES]),
        "more networks": {
            "methods": method_rows(work, case, ours, every=True),
            "attacks": attacks(work, case, ours, every=True),
            "margins": beside_retraining(Attackers(work, case, ours, every=True)),
        },
    }


if __name__ == "__main__":
    from experiments.reproduce import main

    main(NAME)
