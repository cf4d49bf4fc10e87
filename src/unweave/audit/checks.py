"""A question that a verdict rests on: a measured interval against what is allowed, and how it came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from unweave.audit.measure import Interval

Outcome = Literal["pass", "fail", "inconclusive"]
Allowed = tuple[float | None, float | None]
"""Lowest and highest value that passes; None for no border."""
IntervalAt = Callable[[float], Interval]
"""The interval of a measured value at any confidence."""

PASS_CONFIDENCE = 0.90
"""Two one-sided tests at 5 %: the interval that has to lie inside to pass."""
FAIL_CONFIDENCE = 0.95
"""The interval that has to lie outside to fail; wider where several checks each have a chance of a false alarm."""
FEW = 20
"""With fewer samples on either side no check passes: the intervals themselves are not to be trusted."""


@dataclass(frozen=True)
class Check:
    """One question and its answer."""

    name: str
    outcome: Outcome
    sentence: str
    measured: Interval | None = None
    allowed: Allowed | None = None
    unit: Literal["auc", "percent", "points", "share"] | None = None
    power: str | None = None
    blind: bool = False
    """An attack that could not see the original either: it neither speaks for nor against."""

    def document(self) -> dict[str, Any]:
        """As the report's schema wants it."""
        plain = {"name": self.name, "outcome": self.outcome, "sentence": self.sentence}
        more = {
            "measured": self.measured and self.measured.document(),
            "allowed": self.allowed and list(self.allowed),
            "unit": self.unit,
            "power": self.power,
        }
        return plain | {key: value for key, value in more.items() if value is not None}


def place(at: IntervalAt, allowed: Allowed, samples: float, tries: int = 1) -> Outcome:
    """Where an interval lies: inside (pass), outside (fail), or across the border (inconclusive).

    Args:
        at: the interval at a confidence.
        allowed: what passes.
        samples: on the smaller side.
        tries: how many checks of this kind there are; each gets its share of the 5 % of false alarms.
    """
    low, high = (-np.inf if allowed[0] is None else allowed[0], np.inf if allowed[1] is None else allowed[1])
    outside = at(1 - (1 - FAIL_CONFIDENCE) / tries)
    if outside.low > high or outside.high < low:
        return "fail"
    inside = at(PASS_CONFIDENCE)
    return "pass" if samples >= FEW and low <= inside.low and inside.high <= high else "inconclusive"


def from_draws(value: float, draws: np.typing.NDArray[np.float64]) -> IntervalAt:
    """The interval of a value by its bootstrap draws."""

    def at(confidence: float) -> Interval:
        tail = (1 - confidence) / 2
        low, high = np.quantile(draws, [tail, 1 - tail])
        return Interval(value, float(min(low, value)), float(max(high, value)))

    return at
