"""How something grows: y = factor · x^exponent, fitted by least squares to the logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Power:
    """A power law, and how far the worst point is from it, as a factor (1: on the line)."""

    exponent: float
    factor: float
    off_by: float

    def __call__(self, x: float) -> float:
        return self.factor * math.pow(x, self.exponent)

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def power_law(xs: Sequence[float], ys: Sequence[float]) -> Power:
    """The line through (log x, log y) with the least squared distances in log y.

    Raises:
        ValueError: fewer than two different x, or a value that has no logarithm.
    """
    if len(set(xs)) < 2 or len(xs) != len(ys) or min(*xs, *ys) <= 0:
        raise ValueError(f"Invalid points: x {list(xs)}, y {list(ys)}. Supported: positive, two or more different x.")
    a, b = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    covered = sum((one - mean_a) * (other - mean_b) for one, other in zip(a, b, strict=True))
    exponent = covered / sum((one - mean_a) ** 2 for one in a)
    constant = mean_b - exponent * mean_a
    worst = max(abs(other - constant - exponent * one) for one, other in zip(a, b, strict=True))
    return Power(exponent, math.exp(constant), math.exp(worst))
