"""Cells and tables of Markdown: ours, with the paper's number below it where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "–"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    if not rows:
        return "not run yet"
    lines = [f"| {' | '.join(columns)} |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def beside(ours: str, paper: str | None) -> str:
    """Ours, and the paper's below it."""
    return ours if paper is None else f"{ours}<br><sub>paper {paper}</sub>"


def mean(found: Mapping[str, Any] | None, digits: int = 2) -> str:
    """Mean ± standard deviation; the mean alone where there is one value."""
    if found is None:
        return MISSING
    text = f"{found['mean']:.{digits}f}"
    return f"{text} ± {found['std']:.{digits}f}" if len(found["values"]) > 1 else text


def papers(value: Any, digits: int = 2) -> str | None:
    """The paper's number: (mean, deviation), a plain one, or none."""
    if value is None:
        return None
    if isinstance(value, (tuple, list)):
        return f"{value[0]:,.{digits}f} ± {value[1]:.{digits}f}"
    return f"{value:.{digits}f}"


def typical(found: Mapping[str, Any]) -> float:
    """Seconds: the median, where there is one: the first request of a process also loads kernels."""
    return float(found.get("median", found["mean"]))


def seconds(found: Mapping[str, Any] | None) -> str:
    """The typical ones. None: nothing was timed."""
    if found is None:
        return MISSING
    value = typical(found)
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def with_seconds(methods: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows that :func:`request_seconds` shows seconds of."""
    return [row for method, row in methods.items() if method != "original"]


def request_seconds(method: str, row: Mapping[str, Any]) -> str:
    """How long forgetting took, or retraining in its place; the original did not have to be made for it."""
    return MISSING if method == "original" else seconds(row["seconds"])


def auc(found: Mapping[str, Any] | None) -> str:
    """An AUC with its interval."""
    if found is None:
        return MISSING
    return f"{found['auc']['value']:.3f} ({found['auc']['low']:.2f}–{found['auc']['high']:.2f})"


def attack_of(document: Mapping[str, Any], method: str, name: str) -> Any:
    """What one attack found of one method, or None."""
    return document.get("attacks", {}).get("methods", {}).get(method, {}).get(name)


def origin(document: Mapping[str, Any]) -> str:
    """One line: what the numbers were made by, and which parts of them are not from these outcomes (``--keep``)."""
    made = document["made_by"]
    if not made:
        return "*Nothing was run yet.*"
    where = sorted({str(one["gpu"] or f"{one['processors']} processors") for one in made})
    commits = sorted({str(one["commit"])[:9] for one in made})
    dates = sorted({str(one["date"]) for one in made})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    kept = f"; kept from an earlier run, not in this sum: {'; '.join(document['kept'])}" if "kept" in document else ""
    return (
        f"*Scale: {document['scale']}. Made on {', '.join(where)}; commit {', '.join(commits)}; {when}; "
        f"{document['seconds']:.0f} s of jobs{kept}.*"
    )
