"""Fair tuning: every baseline gets the same small number of trials, judged on the validation half alone.

A trial lets the original network of one seed (TUNING_SEED, not one of the table's) forget with one set of settings.
The lowest score is taken for all seeds, the earlier trial where two are equal:

    score = |error on the forget set − target| + max(0, validation error − validation error of the original)

The target is what the original says of held-out samples of the forgotten samples' own classes (where whole classes are
forgotten: 100 %, as every network says that never saw them). No retrained network is looked at, since nobody who
has to forget has one. PGU and this project's ways are not tuned: they run with the settings they come with.

The first trial is always what the method's authors use; the others vary what their papers say matters most.
"""

from __future__ import annotations

from typing import Any

from experiments.jobs import Job
from experiments.methods import TITLES, forget_by
from experiments.readout import glance
from experiments.settings import Case
from experiments.sources import recipe_of
from experiments.training_sets import FULL
from experiments.trials import TRIALS
from experiments.work import Work

TUNING_SEED = 900


def tuning_jobs(work: Work, case: Case, methods: list[str]) -> list[Job]:
    """The trials of some baselines, trial by trial, so that an interrupted run has tried all methods equally often."""
    jobs = [_reference(work, case)]
    for number in range(work.scale.trials):
        tried = [(method, TRIALS.get(method, [{}])) for method in methods]
        jobs += [
            _trial(work, case, method, number, options[number]) for method, options in tried if number < len(options)
        ]
    return jobs


def _reference(work: Work, case: Case) -> Job:
    return Job(_name(case, "original"), lambda: {"errors": _before(work, case)}, _settings(case))


def _before(work: Work, case: Case) -> dict[str, float]:
    """How the original stands: as it was kept, or looked at now."""
    name = _name(case, "original")
    if work.has(name):
        kept: dict[str, float] = work.row(name)["errors"]
        return kept
    return glance(work.network(case.setting, FULL, TUNING_SEED), case, work.parts(case))


def _trial(work: Work, case: Case, method: str, number: int, settings: dict[str, Any]) -> Job:
    def run() -> dict[str, Any]:
        outcome = forget_by(work, case, method, TUNING_SEED, settings)
        errors = glance(outcome.net, case, work.parts(case))
        before = _before(work, case)
        found = {"settings": settings, "score": score(case, errors, before), "seconds": outcome.seconds}
        return {**found, "forgotten": errors["forgotten"], "val": errors["val"], "ok": outcome.story["ok"]}

    return Job(_name(case, f"{method}-{number}"), run, {**_settings(case), "method": method, "trial": settings})


def score(case: Case, errors: dict[str, float], before: dict[str, float]) -> float:
    """Lower is better; points of error. See the module."""
    target = 100.0 if case.task == "classes" else before["val own"]
    return abs(errors["forgotten"] - target) + max(0.0, errors["val"] - before["val"])


def trials_of(work: Work, case: Case, method: str) -> list[dict[str, Any]]:
    """The trials that were run, in order."""
    names = [_name(case, f"{method}-{number}") for number in range(len(TRIALS.get(method, [{}])))]
    return [work.row(name) for name in names if work.has(name)]


def chosen_settings(work: Work, case: Case, method: str) -> dict[str, Any]:
    """What the trials of a baseline favour; its authors' settings where none was run."""
    trials = [] if method in TITLES else trials_of(work, case, method)
    finite = [trial for trial in trials if trial["ok"]] or trials
    if not finite:
        return {}
    best: dict[str, Any] = min(finite, key=lambda trial: trial["score"])["settings"]
    return best


def _name(case: Case, what: str) -> str:
    return f"{case.setting.name}/{case.name}/tuning/{what}"


def _settings(case: Case) -> dict[str, Any]:
    return {"recipe": recipe_of(case.setting).settings(), "case": case.name, "seed": TUNING_SEED}
