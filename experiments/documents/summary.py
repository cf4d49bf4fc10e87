"""From outcomes to a document: mean ± deviation over seeds, entropies, attacks, and what it was made by."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import ks_2samp

from experiments.documents.many import TRAINED, Attackers, rounded
from experiments.documents.paper_numbers import PAPER
from experiments.running.sources import recipe_of
from experiments.running.work import Work
from experiments.settings import Case
from experiments.trials import KNOBS
from experiments.ways.methods import title_of
from experiments.ways.tuning import TUNING_SEED, best_of, chosen_settings, rows_of, trials_of
from unweave.audit import Ensemble
from unweave.audit.readouts import entropy_histograms, log_entropy

STORY = ("ok", "stopped", "epochs", "target", "config", "needs", "trials")


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation (of a sample; 0 for one value) with the values themselves."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    shown: dict[str, Any] = rounded({"mean": statistics.fmean(values), "std": deviation, "values": list(values)})
    return shown


def timing(seconds: Sequence[float | None]) -> dict[str, Any] | None:
    """As :func:`spread`, over what was timed (None: other work ran on the device); None where nothing was."""
    timed = [one for one in seconds if one is not None]
    return spread(timed) if timed else None


def head(work: Work, name: str, cases: Sequence[Case], prefixes: Sequence[str]) -> dict[str, Any]:
    """What every document begins with; ``prefixes`` name the outcomes it rests on."""
    found = {str(sorted(made.items())): made for made in _origins(work, prefixes)}
    settings = {case.setting.name: case.setting for case in cases}
    return {
        "experiment": name,
        "scale": work.scale.name,
        "made_by": list(found.values()),
        "seconds": round(sum(_seconds(work, prefixes)), 1),
        "recipes": {key: recipe_of(setting).settings() for key, setting in settings.items()},
        "paper": PAPER.get(name),
    }


def rests_on(case: Case, methods: Sequence[str]) -> list[str]:
    """The outcomes of these methods alone: experiments share requests."""
    return [f"{case.setting.name}/{case.name}/{method}" for method in methods]


def _files(work: Work, prefixes: Sequence[str]) -> list[dict[str, Any]]:
    found = [work.document(name) for prefix in prefixes for name in work.names(prefix)]
    return [document for document in found if document is not None]


def _origins(work: Work, prefixes: Sequence[str]) -> list[dict[str, Any]]:
    return [row["made_by"] for row in _files(work, prefixes)]


def _seconds(work: Work, prefixes: Sequence[str]) -> list[float]:
    return [row["seconds"] for row in _files(work, prefixes)]


def method_rows(work: Work, case: Case, methods: Sequence[str], *, every: bool = False) -> dict[str, Any]:
    """For each method with an outcome: errors and seconds over the table's seeds, and its story with the first seed.

    ``every``: errors over all seeds there are.

    Of networks that were only trained, all there are count, those of the attacks too: every method is measured by its
    distance to retraining, which should not rest on a few of them. Their seconds are those of the table's seeds, which
    were not trained several at once.
    """
    own = work.scale.seeds
    table = dict[str, Any]()
    for method in methods:
        prefix = f"{case.setting.name}/{case.name}/{method}"
        seeds = [seed for seed in work.seeds_of(prefix) if seed < own or every or method in TRAINED]
        rows = [work.row(f"{prefix}/{seed}") for seed in seeds]
        if not rows:
            continue
        errors = {key: spread([row["errors"][key] for row in rows]) for key in rows[0]["errors"]}
        its_own = [row for seed, row in zip(seeds, rows, strict=True) if seed < own]
        seconds = timing([row["seconds"] for row in its_own])
        if seconds is not None:
            seconds["median"] = round(statistics.median(seconds["values"]), 4)
        first = {key: rows[0][key] for key in STORY if key in rows[0]}
        table[method] = {"title": _title(method), "seeds": seeds, "errors": errors, "seconds": seconds, **first}
        if any(row.get("config") != rows[0].get("config") for row in rows):
            table[method]["config by seed"] = [row.get("config") for row in rows]
        if len(its_own) < len(rows):
            table[method]["timed of"] = len(its_own)
        if "fit seconds" in rows[0]:
            table[method]["fit seconds"] = timing([row["fit seconds"] for row in its_own])
        if "ok" in rows[0]:
            table[method]["ok"] = [row["ok"] for row in rows]
    return table


def _title(method: str) -> str:
    try:
        return title_of(method)
    except KeyError:
        return method


def entropies(work: Work, case: Case, methods: Sequence[str]) -> dict[str, Any]:
    """The figure of confidence for the table's seeds; see :func:`entropies_of`."""
    named = {method: forget_outputs(work, case, method) for method in methods}
    there = {method: outputs for method, outputs in named.items() if outputs is not None}
    labels = next((outputs.labels for outputs in there.values()), None)
    return entropies_of({method: outputs.logits for method, outputs in there.items()}, labels, case.classes)


def entropies_of(
    logits: Mapping[str, np.ndarray], labels: np.ndarray | None, removed: Sequence[int] = ()
) -> dict[str, Any]:
    """Histograms of log10 entropy on the forget set, and each one's distance to retrained, for logits [seeds, n, C].

    The distance is the Kolmogorov–Smirnov statistic between all outputs of the two kinds, 0 to 1.
    """
    if "retrained" not in logits or labels is None:
        return {}
    there = {name: Ensemble.of(values, labels.astype(np.int64), name) for name, values in logits.items()}
    aim = log_entropy(there["retrained"], removed).ravel()
    histograms = entropy_histograms({m: {"forget": o} for m, o in there.items()}, removed)
    distance = {m: float(ks_2samp(log_entropy(o, removed).ravel(), aim).statistic) for m, o in there.items()}
    return {
        "edges": rounded(histograms[0]["edges"]),
        "shares": rounded({one["model"]: one["shares"] for one in histograms}),
        "median log10": rounded({one["model"]: one["median"] for one in histograms}),
        "distance to retrained": rounded(distance),
    }


def forget_outputs(work: Work, case: Case, method: str) -> Ensemble | None:
    """The outputs of a method's networks of the table's seeds on the forget set; None where there are none."""
    prefix = f"{case.setting.name}/{case.name}/{method}"
    names = [f"{prefix}/{seed}" for seed in work.seeds_of(prefix) if seed < work.scale.seeds]
    found = [work.arrays(name) for name in names if work.has_arrays(name)]
    if not found:
        return None
    return Ensemble.of(np.stack([a["forget"] for a in found]), found[0]["forget_labels"].astype(np.int64), method)


def attacks(
    work: Work, case: Case, methods: Sequence[str], only: Sequence[str] | None = None, *, every: bool = False
) -> dict[str, Any]:
    """Every method's AUCs, with how many networks they rest on; empty where there are too few.

    ``every``: about all unlearned networks there are, not those of the table's seeds alone.
    """
    return attacks_by(Attackers(work, case, methods, every=every), only)


def attacks_by(attackers: Attackers, only: Sequence[str] | None = None) -> dict[str, Any]:
    """The same by attackers that are there already, about the methods they were given."""
    table = {method: attackers.about(method, only) for method in attackers.methods}
    counts = {"full": len(attackers.full_seeds), "retrained": len(attackers.retrained_seeds)}
    found = {method: about for method, about in table.items() if about}
    return {"models": counts, "methods": found} if found else {}


def tuned(work: Work, case: Case, methods: Sequence[str]) -> dict[str, Any]:
    """What was tried for every baseline, and which settings were taken."""
    table = {method: _search(work, case, method) for method in methods if trials_of(work, case, method)}
    criterion = "|forget error − target| + rise of the validation error, in points; target: the original's held-out"
    return {"criterion": criterion, "seed": TUNING_SEED, "trials at most": work.scale.trials, "methods": table}


def _search(work: Work, case: Case, method: str) -> dict[str, Any]:
    rows, trials = rows_of(work, case, method), trials_of(work, case, method)
    ended = next((row["skipped"] for row in rows if "skipped" in row), None)
    if ended is None and trials[-1]["asks for"] == "settled":
        ended = "settled"
    errors = ("forgotten", "val", "target", "score", "seconds")
    shown = [{**trial, **rounded({key: trial[key] for key in errors})} for trial in trials]
    best = best_of(trials)
    return {
        "knob": KNOBS[method].name,
        "trials": shown,
        "ended": ended or "no more trials",
        "chosen": chosen_settings(work, case, method),
        "chosen trial": None if best is None else trials.index(best) + 1,
    }
