"""What the paper does not show, on table 1's request: attackers who know the method, and what each part is worth.

    unweave reproduce attacks --data FOLDER [--seeds 5] [--models 50]

Every method of table 1 under U-LiRA, RMIA, KLoM and the paper's own attack; ``match`` and ``paper`` with more networks
(MORE), each forgetting from its own original. Then ``match`` and ``paper`` with one thing changed at a time: what is
the projection worth, soft or hard, the share that is protected, which layers move, the entropy, the stop rule?
"""

from __future__ import annotations

from typing import Any

from experiments import table1
from experiments.documents.summary import attacks, head, method_rows, rests_on
from experiments.running.jobs import Job
from experiments.running.work import Work
from experiments.settings import samples_of_class_0
from experiments.ways.methods import SAMPLES
from experiments.ways.requests import method_job, variant_job

NAME = "attacks"
MORE = 20
"""Unlearned networks of ``match`` and ``paper``, at most: as many originals are there from table 1."""
KNOWN = ("paper", "match")
NOTHING_PROTECTED = {"gamma": 1e-6, "rank_rule": "le"}
"""By the paper's own rule one direction would be left."""
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "match without projection": ("match", NOTHING_PROTECTED),
    "match soft protection": ("match", {"protect": "soft"}),
    "match gamma=0.8": ("match", {"gamma": 0.8}),
    "match gamma=0.95": ("match", {"gamma": 0.95}),
    "match gamma=0.99": ("match", {"gamma": 0.99}),
    "match energy of squares": ("match", {"energy": "sigma2"}),
    "match last 3 layers": ("match", {"layers": 3}),
    "match 20 epochs": ("match", {"epochs": 20}),
    "match batches of 32": ("match", {"batch_size": 32}),
    "paper without entropy": ("paper", {"lam": 0.0}),
    "paper without projection": ("paper", NOTHING_PROTECTED),
    "paper soft protection": ("paper", {"protect": "soft"}),
    "paper stop of the paper": ("paper", {"stop": "paper"}),
}
"""Name of an outcome → method and the settings that are changed."""


def jobs(work: Work) -> list[Job]:
    """Table 1's jobs, the changes, and the same two ways on more originals."""
    case, scale = samples_of_class_0(work.scale), work.scale
    made = table1.jobs(work)
    for seed in range(scale.seeds):
        made += [variant_job(work, case, name, method, seed, changed) for name, (method, changed) in CHANGES.items()]
    more = range(scale.seeds, min(MORE, scale.models))
    return made + [method_job(work, case, name, seed) for seed in more for name in KNOWN]


def assemble(work: Work) -> dict[str, Any]:
    """Errors and attacks of all of them."""
    case = samples_of_class_0(work.scale)
    methods = ["original", "retrained", *SAMPLES, *table1.baselines()]
    return {
        **head(work, NAME, [case], rests_on(case, [*methods, *CHANGES])),
        "request": {"network": case.setting.name, "forget": work.scale.samples, "task": case.task},
        "methods": method_rows(work, case, methods, most=max(MORE, work.scale.seeds)),
        "changes": method_rows(work, case, list(CHANGES)),
        "attacks": attacks(work, case, [*(name for name in methods if name not in table1.UNTUNED), *CHANGES]),
    }


if __name__ == "__main__":
    from experiments.reproduce import main

    main(NAME)
