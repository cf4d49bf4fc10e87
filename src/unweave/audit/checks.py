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
FAR_MORE = 100
"""Where it would take more than so many times the samples, their number is not named: the value is at the border."""


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

    def summary(self) -> str:
        """One line for a person: what came out, in words and in numbers."""
        return f"{self.outcome}: {self.name}. {self.sentence}{self._numbers()}"

    def _numbers(self) -> str:
        """What was measured and what is allowed, in brackets; nothing where a check has no numbers."""
        unit = {"percent": " %", "points": " points"}.get(self.unit or "", "")

        def number(value: float) -> str:
            return f"{value:z.1f}" if unit else f"{value:z.3f}"

        facts = []
        if self.measured is not None:
            value, low, high = map(number, (self.measured.value, self.measured.low, self.measured.high))
            facts.append(f"measured {'AUC ' if self.unit == 'auc' else ''}{value} ({low} to {high}){unit}")
        if self.allowed is not None:
            least, most = ("" if bound is None else number(bound) for bound in self.allowed)
            between = f"{least} to {most}" if least and most else f"at most {most}" if most else f"at least {least}"
            facts.append(f"allowed {between}{unit}")
        return f" [{'; '.join(facts)}]" if facts else ""

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


def across(fact: str, question: str, at: IntervalAt, most: float, unit: str, samples: int, alone: bool) -> str:
    """What to say where an interval reaches over the highest value that passes.

    Args:
        fact: what was measured, with ``{}`` in the place of the value.
        question: what cannot be told: "whether …".
        at: the interval at a confidence.
        most: what is allowed.
        unit: of the value, "points" or "%".
        samples: that were measured.
        alone: one network was; where several were, more samples alone need not help, and none are asked for.
    """
    if samples < FEW:
        return f"{samples} samples are too few to tell {question}."
    found = at(FAIL_CONFIDENCE)
    measured = fact.format(f"{found.value:z.1f} {unit} ({found.low:z.1f} to {found.high:z.1f})")
    limit = (
        f"{most:g} are allowed" if found.value <= most else f"more than the {most:g} allowed, but that may be chance"
    )
    enough = needed(at, most, samples) if alone else None
    more = "" if enough is None else f" About {enough:,} samples in place of {samples:,} would tell, if it stays so."
    return f"{measured}, {limit}: it cannot be told {question}.{more}"


def needed(at: IntervalAt, most: float, samples: int) -> int | None:
    """About how many samples would tell, were the measured value the true one; None where it is too near the border.

    An interval shrinks with the root of their number, and has to until it fits between the value and the border.
    """
    inside, outside = at(PASS_CONFIDENCE), at(FAIL_CONFIDENCE)
    value = inside.value
    reach = inside.high - value if value <= most else value - outside.low
    times = (reach / abs(most - value)) ** 2 if most != value else np.inf
    return int(float(f"{samples * times:.1e}")) if times <= FAR_MORE else None  # two digits: it is a guess


def from_draws(value: float, draws: np.typing.NDArray[np.float64]) -> IntervalAt:
    """The interval of a value by its bootstrap draws."""

    def at(confidence: float) -> Interval:
        tail = (1 - confidence) / 2
        low, high = np.quantile(draws, [tail, 1 - tail])
        return Interval(value, float(min(low, value)), float(max(high, value)))

    return at
