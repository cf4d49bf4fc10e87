"""Wrong labels taken back: what tables 4 and its TinyImageNet sister share.

For each budget: a network trained with wrong labels in pairs of classes ("poisoned"), one trained without those samples
("clean"), and the poisoned one after each method. Accuracies in percent:

    test            on the test half
    poisoned right  on the poisoned samples, judged by their true labels, which the request never saw
    clean train     on the training samples whose labels were right
    val             on the validation half

Beside them "whole", the test accuracy of networks trained by the same recipe on everything with its right labels, which
the captions of the paper's tables name: they are the originals of another experiment's request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import unweave
from experiments.documents.summary import head, method_rows, rests_on, spread, timing
from experiments.running.jobs import Job
from experiments.running.readout import logits_of, percent_wrong
from experiments.running.sources import recipe_of
from experiments.running.training_sets import clean_part, poisoned_by, with_poison
from experiments.running.work import Work
from experiments.search import lowest
from experiments.settings import Case, Setting
from experiments.training.loaders import Shuffled
from experiments.trials import KNOBS, SCHEME
from experiments.ways.methods import capped, fitted_to, pgu_story, timed_request, title_of
from experiments.ways.outcome import Outcome, all_finite
from experiments.ways.requests import original_job
from experiments.ways.tuning import best_of, described, earlier_trials, kept_rows, skipped
from unweave.baselines import BASELINES

OURS = ("pgu", "paper", "match")
SOFT = "match soft"
WARNECKE = ("first_order", "second_order")
NETWORKS = ("poisoned", "clean")


def name_of(setting: Setting, budget: int, method: str, seed: int) -> str:
    """Where an outcome is kept."""
    return f"{setting.name}/poison-{budget}/{method}/{seed}"


def poison_jobs(
    work: Work, whole: Case, budgets: Sequence[int], others: Sequence[str] = (), ours: Sequence[str] = OURS
) -> list[Job]:
    """Seed by seed and budget by budget; the others are tuned once, on the middle budget's first network.

    The others take long: after the first seed's own networks, and for the other seeds at the end. ``whole``: a request
    whose originals are the networks trained on everything.
    """
    setting = whole.setting

    def of_seed(seed: int, methods: Sequence[str]) -> list[Job]:
        return [_job(work, setting, budget, method, seed) for budget in budgets for method in methods]

    middle, more = budgets[len(budgets) // 2], range(1, work.scale.seeds)
    own = ("poisoned", *ours, "clean")
    tuning = [job for name in others for job in _trials(work, setting, middle, name)]
    first = [*of_seed(0, own), original_job(work, whole, 0), *tuning, *of_seed(0, others)]
    return [
        *first,
        *(job for seed in more for job in [*of_seed(seed, own), original_job(work, whole, seed)]),
        *(j for s in more for j in of_seed(s, others)),
    ]


def _job(work: Work, setting: Setting, budget: int, method: str, seed: int) -> Job:
    settings = {"recipe": recipe_of(setting).settings(), "budget": budget, "method": method, "seed": seed}
    settings |= {"tuning": SCHEME} if method in KNOBS else {}
    trials = range(work.scale.trials) if method in KNOBS else ()
    after = tuple(_trial_name(setting, f"{method}-{number}") for number in trials)
    run = partial(_run, work, setting, budget, method, seed)
    return Job(name_of(setting, budget, method, seed), run, settings, after)


def _run(work: Work, setting: Setting, budget: int, method: str, seed: int) -> dict[str, Any]:
    training = clean_part(budget) if method == "clean" else with_poison(budget)
    net = work.network(setting, training, seed)
    outcome = Outcome(net, work.seconds_to_train(setting, training, seed), {})
    if method not in NETWORKS:
        settings = chosen(work, setting, method) if method in WARNECKE else {}
        outcome = repair(work, setting, budget, method, seed, settings)
    accuracies = accuracies_of(work, setting, budget, outcome)
    return {"accuracy": accuracies, "seconds": outcome.seconds, **outcome.story}


def repair(
    work: Work, setting: Setting, budget: int, method: str, seed: int, settings: dict[str, Any] | None = None
) -> Outcome:
    """The poisoned network of a seed after one method; the methods of Warnecke et al. are told the true labels."""
    net, data = work.network(setting, with_poison(budget), seed), work.data(setting)
    sections = poisoned_by(data, budget)
    wrong, right, val = sections.poison.batches(), sections.poison_clean.batches(), data.val.batches()
    if method in (*OURS, SOFT):
        config = capped(work, _config(setting, method))
        stride = "one" if method == "pgu" and setting.strided else "layer"
        grams, fitted = work.grams(setting, seed, with_poison(budget), stride)
        result, seconds = timed_request(work, setting, config, partial(unweave.forget, net, wrong, grams, val))
        return Outcome(result.model, seconds, {**pgu_story(result), "fit seconds": fitted})
    baseline = BASELINES[method]
    config = fitted_to(work, baseline.config(**settings or {}))
    retain = Shuffled(sections.clean, 1000, seed=seed)
    done, seconds = work.timed(lambda: baseline.run(net, wrong, retain, config=config, true_labels=right))
    return Outcome(done.model, seconds, {"ok": done.ok, "stopped": done.stopped, "config": settings or {}})


def _config(setting: Setting, method: str) -> unweave.ForgetConfig:
    """The authors' settings, or this project's with either loss; by default wrong labels are unlearned hard."""
    if method == "pgu":
        return unweave.ForgetConfig.paper(setting.poison_preset)
    if method == SOFT:
        return unweave.ForgetConfig(task="poison", protect="soft")
    return unweave.ForgetConfig(task="poison", objective=method)


def accuracies_of(work: Work, setting: Setting, budget: int, outcome: Outcome) -> dict[str, float]:
    """In percent; see the module."""
    data = work.data(setting)
    sections = poisoned_by(data, budget)
    sets = {"test": data.test, "val": data.val, "poisoned right": sections.poison_clean, "clean train": sections.clean}
    return {name: 100 - percent_wrong(logits_of(outcome.net, part), part.y) for name, part in sets.items()}


# ------------------------------------------------------------------------------------------------------ tuning


def _trials(work: Work, setting: Setting, budget: int, method: str) -> list[Job]:
    """Judged by the validation half: the accuracy that comes back. See ``experiments.search.lowest``."""
    same = {"recipe": recipe_of(setting).settings(), "budget": budget, "method": method, "tuning": SCHEME}
    return [
        Job(
            _trial_name(setting, f"{method}-{number}"),
            partial(_trial, work, setting, budget, method, number),
            {**same, "trial": number, "knob": KNOBS[method].described()},
        )
        for number in range(work.scale.trials)
    ]


def _trial(work: Work, setting: Setting, budget: int, method: str, number: int) -> dict[str, Any]:
    earlier = earlier_trials(work, partial(_trial_name, setting), method, number)
    following = lowest(KNOBS[method], [(row["value"], row["score"] if row["ok"] else math.inf) for row in earlier])
    if following.value is None:
        return skipped(following)
    outcome = repair(work, setting, budget, method, 0, KNOBS[method].settings(following.value))
    val = work.data(setting).val
    error = percent_wrong(logits_of(outcome.net, val), val.y)
    sound = bool(outcome.story["ok"]) and all_finite(outcome.net)
    return {**described(method, following), "val": error, "score": error, "ok": sound, "seconds": outcome.seconds}


def chosen(work: Work, setting: Setting, method: str) -> dict[str, Any]:
    """The settings with the lowest validation error; the authors' value where nothing was tried."""
    best = best_of(tried_for(work, setting, method))
    found: dict[str, Any] = KNOBS[method].settings(KNOBS[method].start) if best is None else best["settings"]
    return found


def tried_for(work: Work, setting: Setting, method: str) -> list[dict[str, Any]]:
    """The trials that were made."""
    return [row for row in kept_rows(work, partial(_trial_name, setting), method) if "skipped" not in row]


def _trial_name(setting: Setting, what: str) -> str:
    return f"{setting.name}/poison-{SCHEME}/{what}"


# ---------------------------------------------------------------------------------------------------- assembling


def poison_rows(work: Work, setting: Setting, budgets: Sequence[int], methods: Sequence[str]) -> dict[str, Any]:
    """For each budget and method: accuracies and seconds over seeds."""
    table = dict[str, Any]()
    for budget in budgets:
        rows = {method: _rows(work, setting, budget, method) for method in (*NETWORKS, *methods)}
        table[str(budget)] = {method: _summary(method, found) for method, found in rows.items() if found}
    return table


def _rows(work: Work, setting: Setting, budget: int, method: str) -> dict[int, dict[str, Any]]:
    """By seed."""
    prefix = f"{setting.name}/poison-{budget}/{method}"
    return {seed: work.row(f"{prefix}/{seed}") for seed in work.seeds_of(prefix)}


def _summary(method: str, by_seed: dict[int, dict[str, Any]]) -> dict[str, Any]:
    rows = list(by_seed.values())
    accuracy = {key: spread([row["accuracy"][key] for row in rows]) for key in rows[0]["accuracy"]}
    found: dict[str, Any] = {
        "title": method if method in NETWORKS else title_of(method),
        "seeds": list(by_seed),
        "accuracy": accuracy,
        "seconds": timing([row["seconds"] for row in rows]),
    }
    if "ok" in rows[0]:
        found |= {"ok": [row["ok"] for row in rows], "stopped": [row["stopped"] for row in rows]}
        found["config"] = rows[0]["config"]
    return found


def _of_right_labels(work: Work, whole: Case) -> dict[str, Any]:
    """Test accuracy of the networks trained on everything; empty where there are none."""
    row = method_rows(work, whole, ["original"]).get("original")
    if row is None:
        return {}
    return {"seeds": row["seeds"], "accuracy": {"test": spread([100 - e for e in row["errors"]["test"]["values"]])}}


def poison_document(
    work: Work,
    name: str,
    whole: Case,
    budgets: Sequence[int],
    others: Sequence[str] = (),
    ours: Sequence[str] = OURS,
) -> dict[str, Any]:
    """Accuracies by budget; the paper's beside them."""
    setting = whole.setting
    case = Case("poison", setting, "poison", lambda labels: labels)
    networks = poison_rows(work, setting, budgets, (*ours, *others))
    prefixes = [f"{setting.name}/poison-{budget}" for budget in budgets]
    if any(networks.values()):  # the other networks alone, of another experiment, are no table
        prefixes += rests_on(whole, ["original"])
    tuning = {method: tried_for(work, setting, method) for method in others}
    return {
        **head(work, name, [case], prefixes),
        "request": {"task": "poison", "budgets": list(budgets)},
        "whole": _of_right_labels(work, whole),
        "networks": {setting.name: networks},
        "tuning": {"criterion": "validation error", "methods": {m: trials for m, trials in tuning.items() if trials}},
    }
