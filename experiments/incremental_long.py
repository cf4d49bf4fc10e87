"""The supplement's stress test: forgetting step after step until test accuracy drops.

    unweave reproduce incremental-long --data FOLDER [--seeds 5]

AllCNN in steps of 25, 50 and 100 samples of every class, SmallVGG in steps of 100. The curve is the accuracy on the
test half after every step; it has dropped where it is more than DROP points below the original's, and a chain ends
where it is more than END points below. The paper's figures have no numbers; its text says AllCNN fails after 400 a
class whatever the steps, SmallVGG after 1,100. ``pgu`` has the authors' settings, ``match`` is this project's default,
``match first`` the same told the original network at every step, as the README advises.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from experiments.documents.many import rounded
from experiments.documents.summary import head, timing
from experiments.running.jobs import Job
from experiments.running.readout import logits_of, percent_wrong
from experiments.running.sources import recipe_of
from experiments.running.training_sets import FULL
from experiments.running.work import Work, in_all
from experiments.settings import Case, Setting, step_alone
from experiments.ways.chains import WITH_FIRST, chain

NAME = "incremental-long"
METHODS = ("pgu", "match", WITH_FIRST)
DROP, END = 2.0, 20.0


def runs(work: Work) -> list[tuple[Setting, int, int]]:
    """Setting, samples a class and step, steps at most."""
    settings = {"allcnn": work.scale.allcnn, "smallvgg": work.scale.smallvgg}
    return [
        (settings[key], per_class, steps) for key, plan in work.scale.long_runs.items() for per_class, steps in plan
    ]


def name_of(setting: Setting, per_class: int, method: str, seed: int) -> str:
    """Where a chain is kept."""
    return f"{setting.name}/long-run-of-{per_class}-a-class/{method}/{seed}"


def jobs(work: Work) -> list[Job]:
    """One chain a job, all of one seed first."""
    return [
        Job(
            name_of(setting, per_class, method, seed),
            partial(_run, work, setting, per_class, steps, method, seed),
            {
                "recipe": recipe_of(setting).settings(),
                "per class": per_class,
                "steps": steps,
                "method": method,
                "seed": seed,
            },
        )
        for seed in range(work.scale.seeds)
        for setting, per_class, steps in runs(work)
        for method in METHODS
    ]


def _run(work: Work, setting: Setting, per_class: int, steps: int, method: str, seed: int) -> dict[str, Any]:
    test = work.data(setting).test

    def accuracy(net: Any) -> float:
        return 100 - percent_wrong(logits_of(net, test), test.y)

    curve = [accuracy(work.network(setting, FULL, seed))]
    seconds, reached = list[float | None](), list[bool]()
    for step in chain(work, setting, per_class, steps, method, seed):
        curve.append(accuracy(step.net))
        seconds.append(step.seconds)
        reached.append(step.story["ok"])
        if curve[0] - curve[-1] > END:
            break
    made = {"seconds": in_all(seconds), "config": step.story["config"]}
    return {"per class": per_class, "test accuracy": curve, "step seconds": seconds, "ok": reached, **made}


def dropped_after(curve: list[float], per_class: int) -> int | None:
    """Samples a class after which accuracy first was more than DROP points down; None where it never was."""
    down = [step for step, value in enumerate(curve) if curve[0] - value > DROP]
    return down[0] * per_class if down else None


def assemble(work: Work) -> dict[str, Any]:
    """The curves, and where they drop."""
    table = dict[str, Any]()
    for setting, per_class, _ in runs(work):
        for method in METHODS:
            prefix = name_of(setting, per_class, method, 0).rpartition("/")[0]
            found = {seed: work.row(f"{prefix}/{seed}") for seed in work.seeds_of(prefix)}
            if found:
                table[f"{setting.name}, {per_class} a class, {method}"] = _summary(found, per_class)
    cases = [step_alone(setting, per_class, 1) for setting, per_class, _ in runs(work)]
    prefixes = [name_of(s, p, method, 0).rpartition("/")[0] for s, p, _ in runs(work) for method in METHODS]
    return {**head(work, NAME, _once(cases), prefixes), "drop": DROP, "runs": table}


def _summary(by_seed: dict[int, dict[str, Any]], per_class: int) -> dict[str, Any]:
    found = list(by_seed.values())
    return {
        "per class": per_class,
        "seeds": list(by_seed),
        "config": found[0]["config"],
        "curves": rounded([row["test accuracy"] for row in found]),
        "targets reached": [sum(row["ok"]) for row in found],
        "dropped after": [dropped_after(row["test accuracy"], per_class) for row in found],
        "step seconds": timing([value for row in found for value in row["step seconds"]]),
    }


def _once(cases: list[Case]) -> list[Case]:
    return list({case.setting.name: case for case in cases}.values())


if __name__ == "__main__":
    from experiments.reproduce import main

    main(NAME)
