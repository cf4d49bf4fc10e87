"""The record of a request, for JSON and for the table. It holds no sample and no id: only what was done and found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import unweave
from unweave.cli.configfile import Values
from unweave.cli.words import as_flags, as_ids, without_positions
from unweave.result import ForgetResult, Look
from unweave.stopping import Goal


def record_of(
    values: Values, before: str, classes: Sequence[int], result: ForgetResult, written: Sequence[str]
) -> dict[str, Any]:
    """Everything there is to say about a request; ``before`` is the fingerprint of the weights it began with."""
    return {
        "command": "forget",
        "ok": result.ok,
        "stopped": as_flags(result.stopped),
        "samples": result.samples,
        "classes": list(classes),
        "left": result.left,
        "left of all": result.left_of_all,
        "goal": _goal(result.goal),
        "final": asdict(result.final),
        "history": [asdict(look) for look in result.history],
        "ranks": result.ranks,
        "warnings": [without_positions(as_flags(warning)) for warning in result.warnings],
        "seconds": result.seconds,
        "config": result.config.as_dict(),
        "settings": values.as_dict(),
        "fingerprints": {"before": before, "after": result.grams.origin.model},
        "drifted": result.grams.origin.drifted,
        "versions": {"unweave": unweave.__version__, "torch": torch.__version__},
        "written": list(written),
    }


def began_with(folder: Path, weights: str) -> list[Path]:
    """The records in a folder of requests that began with the weights of this fingerprint, and changed them."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text("utf-8"))
            prints = record["fingerprints"] if record["command"] == "forget" else {}
        except (OSError, ValueError, KeyError, TypeError):  # somebody else's file
            continue
        if prints.get("before") == weights != prints.get("after"):
            found.append(path)
    return found


def _goal(goal: Goal) -> dict[str, Any]:
    """The goal without the margins of single samples, which would say something about each of them."""
    return {
        "error": goal.error,
        "tolerance": goal.tolerance,
        "at_least": goal.at_least,
        "mean_margin": goal.mean_margin,
        "words": goal.words,
    }


def rows_of(result: ForgetResult, written: Sequence[str], ids: Sequence[str] = ()) -> dict[str, str]:
    """The same in a few lines for a person, who asked for the samples by these ids, in the order of the request."""
    first, last, goal = result.history[0], result.final, result.goal
    bound = "at least " if goal.at_least else ""
    rows = {
        "stopped": as_flags(result.stopped),
        "samples": str(result.samples),
        "forget error": f"{first.forget_error:.2f} % → {last.forget_error:.2f} %",
        "target": f"{bound}{goal.error:.2f} % ({goal.words})",
        "validation error": _val(first, last),
    }
    worst = result.worst_class()
    if worst is not None:
        change = f"{worst[0]}: {worst[1]:.2f} % → {worst[2]:.2f} % held out"
        rows["most affected class"] = change if worst[2] > worst[1] else "none: no held-out error rose"
    rows["took"] = f"{result.way_gone()}, {result.seconds:.2f} s"
    if result.warnings:
        several = "- " if len(result.warnings) > 1 else ""  # each on lines of its own
        rows["warnings"] = as_ids(as_flags("\n".join(several + warning for warning in result.warnings)), ids)
    rows["written"] = ", ".join(written) or "nothing"
    return rows


def _val(first: Look, last: Look) -> str:
    if first.val_error is None or last.val_error is None:
        return "not watched: no [data] val"
    return f"{first.val_error:.2f} % → {last.val_error:.2f} %"
