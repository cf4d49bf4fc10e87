"""Where the next trial of a method goes: one knob of strength, searched in its logarithm.

The value v of a knob becomes a strength u = log v (or −log v where a smaller v forgets more), so that more u forgets
more. Two searches, each a plain function of the trials that were made, in their order:

- :func:`towards` looks for a forget error. Too weak: u + log F, then by 2 log F at a time; too strong: the same way
  down. Between a setting that is too weak and one that is too strong, the place where the line through both crosses
  the target, on the scale of log(error / (100 − error)): exact where the error grows as a power of v or as a logistic
  curve of u. While trials in a row move the same end, the other one counts half as much each time (the Illinois rule),
  so that a steep response is closed in on from both sides. Where an end has no error to go by: the middle. A trial
  always lies between the two ends, so that noise can mislead a search and not break it.
- :func:`lowest` looks for the least score. Past the end while the best is at an end, else into the wider of the two
  gaps beside the best.

Both end early (with the reason) at a bound, and where the ends are nearly the same value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["more", "less", "settled"]

TOLERANCE = 0.5
"""Points of error within which the target is hit, and which a rise of the validation error may cost."""
NARROW = math.log(1.05)
"""Ends nearer than this tell nothing new."""
EDGE = 0.1
"""A crossing is looked for at least this share of the way from either end."""
FLOOR = 0.2
"""Percent: errors are taken to lie this far from 0 and from 100 at least: beyond, single samples would tell."""


@dataclass(frozen=True)
class Knob:
    """What makes a method forget more or less."""

    name: str
    """A field of the method's configuration."""
    start: float
    """What the method's authors use: the first trial."""
    low: float
    high: float
    """Bounds of the value."""
    less_forgets_more: bool = False
    from_one: bool = False
    """The field is 1 − value."""
    factor: float = 6.0
    """F, of the first step away from the start."""
    along: Mapping[str, float] = field(default_factory=dict)
    """Fields that keep their ratio to the value, as the end of a schedule to its beginning."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Other settings, decided by reasoning: the same in every trial."""

    def settings(self, value: float) -> dict[str, Any]:
        """The configuration of a trial."""
        shown = 1.0 - value if self.from_one else value
        return {**self.fixed, self.name: shown, **{name: ratio * value for name, ratio in self.along.items()}}

    def described(self) -> dict[str, Any]:
        """As JSON: what a trial depends on beside the trials before it."""
        return asdict(self)

    def strength(self, value: float) -> float:
        """u of a value."""
        return -math.log(value) if self.less_forgets_more else math.log(value)

    def value(self, strength: float) -> float:
        """The value of a strength, within the bounds and to three digits, so that it can be written down."""
        exact = math.exp(-strength if self.less_forgets_more else strength)
        return min(max(float(f"{exact:.3g}"), self.low), self.high)


@dataclass(frozen=True)
class Tried:
    """A trial that was made."""

    value: float
    verdict: Verdict
    """Forget "more", forget "less", or leave it."""
    error: float | None
    """On the forget set, percent; None where the network is no network any more."""


@dataclass(frozen=True)
class Next:
    """The value to try, or None and the reason why there is nothing left to try."""

    value: float | None
    reason: str
    weak: float | None = None
    strong: float | None = None
    """Values between which the target lies, as far as they are known."""


def verdict_of(forgotten: float, rise: float, target: float, *, sound: bool) -> Verdict:
    """What a trial asks for: error on the forget set, rise of the validation error and target in percent.

    A network that hits the target at a cost asks for less: a weaker setting may hit it at a lower one.
    """
    if not sound or forgotten > target + TOLERANCE:
        return "less"
    if forgotten < target - TOLERANCE:
        return "more"
    return "less" if rise > TOLERANCE else "settled"


def towards(knob: Knob, tried: Sequence[Tried], target: float) -> Next:
    """The next value on the way to a forget error of ``target`` percent."""
    weak = next((one for one in reversed(tried) if one.verdict == "more"), None)
    strong = next((one for one in reversed(tried) if one.verdict == "less"), None)
    ends = (weak.value if weak else None, strong.value if strong else None)
    if not tried:
        return Next(knob.start, "the authors' value")
    if tried[-1].verdict == "settled":
        return Next(None, "settled", *ends)
    if weak is not None and strong is not None:
        below, above = knob.strength(weak.value), knob.strength(strong.value)
        if abs(above - below) < NARROW:
            return Next(None, "narrow", *ends)
        in_a_row = next(i for i, one in enumerate(reversed(tried)) if one.verdict != tried[-1].verdict)
        share = _crossing(weak, strong, target, 0.5 ** (in_a_row - 1), strong_stays=strong is not tried[-1])
        return Next(knob.value(below + share * (above - below)), "between", *ends)
    step = math.log(knob.factor) * (1 if len(tried) == 1 else 2)
    return Next(*_past(knob, tried[-1].value, step if strong is None else -step), *ends)


def _past(knob: Knob, value: float, step: float) -> tuple[float | None, str]:
    """A step of strength away from the outermost value that was tried."""
    following = knob.value(knob.strength(value) + step)
    return (None, "bound") if following == value else (following, "stronger" if step > 0 else "weaker")


def _crossing(weak: Tried, strong: Tried, target: float, weight: float, *, strong_stays: bool) -> float:
    """Where between two trials (0: the weak one, 1: the strong one) the error should be the target's.

    ``weight`` is what the distance of that end counts which stays where it was.
    """
    if weak.error is None or strong.error is None or strong.error <= target + TOLERANCE:
        return 0.5  # the strong end is there for its cost or its ruin: its error tells no place
    aim = _log_odds(target)
    below, above = aim - _log_odds(weak.error), _log_odds(strong.error) - aim
    below, above = (below, above * weight) if strong_stays else (below * weight, above)
    return min(max(below / (below + above), EDGE), 1 - EDGE) if below + above > 0 else 0.5


def _log_odds(error: float) -> float:
    kept = min(max(error, FLOOR), 100.0 - FLOOR)
    return math.log(kept / (100.0 - kept))


def lowest(knob: Knob, tried: Sequence[tuple[float, float]]) -> Next:
    """The next value on the way to the least score; ``tried`` are values with their scores, infinite where ruined."""
    if not tried:
        return Next(knob.start, "the authors' value")
    ordered = sorted(tried, key=lambda one: knob.strength(one[0]))
    best = min(range(len(ordered)), key=lambda i: (ordered[i][1], i))  # of equal ones the weakest
    value, step = ordered[best][0], math.log(knob.factor)
    ends = (ordered[best - 1][0] if best > 0 else None, ordered[best + 1][0] if best + 1 < len(ordered) else None)
    for outermost, sign in ((best == len(ordered) - 1, 1), (best == 0, -1)):
        if outermost and (sign < 0 or ordered[best][1] < math.inf):
            following, reason = _past(knob, value, sign * step)
            if following is not None:
                return Next(following, reason, *ends)
    at = knob.strength(value)
    gaps = [knob.strength(end) - at for end in ends if end is not None]
    gap = max(gaps, key=abs, default=0.0)
    if abs(gap) < NARROW:
        return Next(None, "narrow" if gaps else "bound", *ends)
    return Next(knob.value(at + gap / 2), "between", *ends)
