"""How far methods are from retraining, in words, from the rows of a table; and the paper's PGU from its own."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.documents.cells import typical

Document = Mapping[str, Any]
DISTANCE = (
    "Error less that of retraining, ± its standard error (the rise over its own originals, and all originals' mean)"
)
"""What stands before the lines."""
NOTHING = "Not run yet: the original or the retrained networks."


def distances(rows: Document, known: Document, methods: Sequence[str], sets: Sequence[str]) -> str:
    """How far from retraining, and how much faster: those methods of a table that were run, and the paper's PGU."""
    if not {"original", "retrained"} <= set(rows):
        return NOTHING
    return "\n".join([f"{DISTANCE}:", "", *(f"- {line}" for line in each_distance(rows, known, methods, sets))])


def each_distance(rows: Document, known: Document, methods: Sequence[str], sets: Sequence[str]) -> list[str]:
    """A line for each of them; rows by their method, with those of originals and retrained networks.

    A method has none where the originals of its networks have no row.
    """
    lines = []
    for method in methods:
        if method in rows and set(rows[method]["seeds"]) <= set(rows["original"]["seeds"]):
            gaps = ", ".join(f"{key} {_shown(*gap(rows, method, key))}" for key in sets)
            faster = times(rows["retrained"]["seconds"], rows[method]["seconds"])
            lines.append(f"{rows[method]['title']}: {gaps} points{faster and f'; {faster}'}")
    if "pgu" in known and all(key in known["pgu"] for key in sets):
        gaps = ", ".join(f"{key} {known['pgu'][key][0] - known['retrained'][key][0]:+.2f}" for key in sets)
        faster = known["retrained"]["seconds"][0] / known["pgu"]["seconds"][0]
        lines.append(f"the paper's PGU: {gaps} points; retraining takes {faster:.1f} times as long")
    return lines


def times(long: Document | None, short: Document | None) -> str:
    """How many times as long retraining takes; nothing where one of them was not timed."""
    if long is None or short is None:
        return ""
    return f"retraining takes {typical(long) / typical(short):.0f} times as long"


def gap(rows: Mapping[str, Any], method: str, key: str) -> tuple[float, float | None]:
    """How far a method's error is from retraining's, and the standard error of that; None with one network of a kind.

    Methods are applied to some of the originals, which may happen to be better than the others. So what counts is by
    how much each network's error rises over its own original's, plus what all originals have on average.
    """
    own, original = (
        dict(zip(rows[m]["seeds"], rows[m]["errors"][key]["values"], strict=True)) for m in (method, "original")
    )
    rise = [error - original[seed] for seed, error in own.items()]
    kinds = [rise, list(original.values()), rows["retrained"]["errors"][key]["values"]]
    risen, before, retrained = (statistics.fmean(values) for values in kinds)
    if min(len(values) for values in kinds) < 2:
        return risen + before - retrained, None
    return risen + before - retrained, math.sqrt(sum(statistics.variance(v) / len(v) for v in kinds))


def _shown(value: float, deviation: float | None) -> str:
    return f"{value:+.2f}" if deviation is None else f"{value:+.2f} ± {deviation:.2f}"


def rise(row: Document, before: Document, key: str) -> float | None:
    """By how much an error is above another row's, in points: the mean over seeds of which there are both networks."""
    if key not in before.get("errors", {}):
        return None
    first = dict(zip(before["seeds"], before["errors"][key]["values"], strict=True))
    own = zip(row["seeds"], row["errors"][key]["values"], strict=True)
    rises = [value - first[seed] for seed, value in own if seed in first]
    return sum(rises) / len(rises) if rises else None


def retained_and_test(row: Document) -> tuple[str, str]:
    """The sets on which accuracy should not be lost; where classes go, those of the others."""
    return "retained", "retained test" if "retained test" in row["errors"] else "test"
