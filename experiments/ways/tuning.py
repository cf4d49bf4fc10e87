"""Fair tuning: every baseline gets the same number of trials at most, judged on the validation half alone.

A trial lets the original network of one seed (TUNING_SEED, not one of the table's) forget with one set of settings.
The lowest score is taken for all seeds, the earlier trial where two are equal:

    score = |error on the forget set − target| + max(0, validation error − validation error of the original)

The target is what the original says of held-out samples of the forgotten samples' own classes (where whole classes are
forgotten: 100 %, as every network says that never saw them). No retrained network is looked at, since nobody who
has to forget has one. PGU and this project's ways are not tuned: they run with the settings they come with.

The first trial has the value that the method's authors use for the knob of strength in ``trials``; every
other one goes where the trials before it send it (``search``). So a trial's settings are decided when it
runs, from the rows of the trials before it: a run that goes on makes the same trials as one that was not interrupted.
A method whose target is hit within half a point at a cost of half a point at most is settled, and makes no more trials.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from experiments.running.jobs import Job
from experiments.running.readout import glance
from experiments.running.sources import recipe_of
from experiments.running.training_sets import FULL
from experiments.running.work import Work
from experiments.search import Next, Tried, towards, verdict_of
from experiments.settings import Case
from experiments.trials import KNOBS, SCHEME
from experiments.ways.methods import forget_by
from experiments.ways.outcome import all_finite
from unweave.errors import ConfigError

TUNING_SEED = 900


def tuning_jobs(work: Work, case: Case, methods: list[str]) -> list[Job]:
    """The trials of some baselines, trial by trial, so that an interrupted run has tried all methods equally often."""
    trials = [_trial(work, case, method, number) for number in range(work.scale.trials) for method in methods]
    return [_reference(work, case), *trials]


def trial_names(work: Work, case: Case, method: str) -> tuple[str, ...]:
    """Of all trials that a baseline's settings are chosen by; none of a method without a knob."""
    return tuple(_name(case, f"{method}-{number}") for number in range(work.scale.trials)) if method in KNOBS else ()


def _reference(work: Work, case: Case) -> Job:
    return Job(_name(case, "original"), lambda: {"errors": _before(work, case)}, _settings(case))


def _before(work: Work, case: Case) -> dict[str, float]:
    """How the original stands: as it was kept, or looked at now."""
    name = _name(case, "original")
    if work.has(name):
        kept: dict[str, float] = work.row(name)["errors"]
        return kept
    return glance(work.network(case.setting, FULL, TUNING_SEED), case, work.parts(case))


def _trial(work: Work, case: Case, method: str, number: int) -> Job:
    settings = {**_settings(case), "method": method, "trial": number, "knob": KNOBS[method].described()}
    return Job(_name(case, f"{method}-{number}"), partial(_run, work, case, method, number), settings)


def _run(work: Work, case: Case, method: str, number: int) -> dict[str, Any]:
    """One trial, where the ones before it send it."""
    before = _before(work, case)
    target = target_of(case, before)
    following = next_trial(method, earlier_trials(work, partial(_name, case), method, number), target)
    if following.value is None:
        return skipped(following)
    settings = KNOBS[method].settings(following.value)
    outcome = forget_by(work, case, method, TUNING_SEED, settings)
    errors = glance(outcome.net, case, work.parts(case))
    sound = bool(outcome.story["ok"]) and all_finite(outcome.net)
    rise = max(0.0, errors["val"] - before["val"])
    return {
        **described(method, following),
        "forgotten": errors["forgotten"],
        "val": errors["val"],
        "target": target,
        "score": score(case, errors, before),
        "asks for": verdict_of(errors["forgotten"], rise, target, sound=sound),
        "ok": sound,
        "seconds": outcome.seconds,
    }


def next_trial(method: str, earlier: list[dict[str, Any]], target: float) -> Next:
    """Where the rows of the trials before send the next one."""
    tried = [Tried(row["value"], row["asks for"], row["forgotten"] if row["ok"] else None) for row in earlier]
    return towards(KNOBS[method], tried, target)


def earlier_trials(work: Work, name: partial[str], method: str, number: int) -> list[dict[str, Any]]:
    """The trials before this one that were made.

    Raises:
        ConfigError: one of them was not run.
    """
    names = [name(f"{method}-{one}") for one in range(number)]
    absent = [one for one in names if not work.has(one)]
    if absent:
        raise ConfigError(
            f"Invalid order: trial {number} of {method} goes where the trials before it send it, and {absent[0]} is "
            "not there. Remedy: run that one first; a pattern of --jobs has to match it as well."
        )
    return [row for row in map(work.row, names) if "skipped" not in row]


def described(method: str, following: Next) -> dict[str, Any]:
    """The part of a trial's row that is known before it runs."""
    assert following.value is not None
    found = {"settings": KNOBS[method].settings(following.value), "knob": KNOBS[method].name, "value": following.value}
    return {**found, "why": following.reason, "bracket": [following.weak, following.strong]}


def skipped(following: Next) -> dict[str, Any]:
    """The row of a trial that was not needed."""
    return {"skipped": following.reason, "bracket": [following.weak, following.strong]}


def target_of(case: Case, before: dict[str, float]) -> float:
    """The forget error that is looked for, percent. See the module."""
    return 100.0 if case.task == "classes" else before["val own"]


def score(case: Case, errors: dict[str, float], before: dict[str, float]) -> float:
    """Lower is better; points of error. See the module."""
    return abs(errors["forgotten"] - target_of(case, before)) + max(0.0, errors["val"] - before["val"])


def rows_of(work: Work, case: Case, method: str) -> list[dict[str, Any]]:
    """The rows of a method's trials, in order, up to the first that is not there; none of a method without a knob."""
    return kept_rows(work, partial(_name, case), method)


def kept_rows(work: Work, name: partial[str], method: str) -> list[dict[str, Any]]:
    """As :func:`rows_of`, for any naming of trials."""
    rows = list[dict[str, Any]]()
    while method in KNOBS and work.has(name(f"{method}-{len(rows)}")):
        rows.append(work.row(name(f"{method}-{len(rows)}")))
    return rows


def trials_of(work: Work, case: Case, method: str) -> list[dict[str, Any]]:
    """The trials that were made, in order."""
    return [row for row in rows_of(work, case, method) if "skipped" not in row]


def chosen_settings(work: Work, case: Case, method: str) -> dict[str, Any]:
    """What the trials of a baseline favour; where none was run, its authors' value with what is fixed for it."""
    best = best_of(trials_of(work, case, method))
    if best is not None:
        settings: dict[str, Any] = best["settings"]
        return settings
    return KNOBS[method].settings(KNOBS[method].start) if method in KNOBS else {}


def best_of(trials: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The trial with the lowest score, of those that left a network if there are any; None of none."""
    sound = [trial for trial in trials if trial["ok"]] or trials
    return min(sound, key=lambda trial: float(trial["score"]), default=None)


def _name(case: Case, what: str) -> str:
    return f"{case.setting.name}/{case.name}/{SCHEME}/{what}"


def _settings(case: Case) -> dict[str, Any]:
    recipe = recipe_of(case.setting).settings()
    return {"recipe": recipe, "case": case.name, "seed": TUNING_SEED, "tuning": SCHEME}
