"""LiSSA: an inverse Hessian applied to a vector, by products with Hessians of batches alone.

    u ← v + (1 − δ) u − H_b u / s,   x = u / s

A fixed point has (H_b / s + δ) u = v, so x = (H_b + s δ I)⁻¹ v: δ is a damping of s δ, not of δ. It is reached where
every eigenvalue h of H_b has |1 − δ − h / s| < 1: s must exceed half the largest h, and no h may be below −s δ.
Directions with h near zero take about 1/δ steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Change = dict[str, Tensor]
Product = Callable[[int, Change], Change]
"""(iteration, u) → H_b u."""

SETTLED = 1e-3
"""Updates that have shrunk by this factor are taken for the fixed point."""


@dataclass(frozen=True)
class Estimate:
    """x, and how the iteration went."""

    x: Change
    iterations: int
    settled: bool
    """The last update is below a thousandth of the first. False where the limit came first, or where the updates of
    different batches no longer shrink; the estimate is then the authors' all the same."""
    diverged: bool
    updates: tuple[float, float]
    """The L1 norms of the first and of the last update."""


def lissa(product: Product, v: Change, scale: float, damping: float, iterations: int, patience: int) -> Estimate:
    """Iterate from u = v until no update has been a new smallest one for ``patience`` iterations, or to the limit."""
    u = dict(v)
    first = last = least = math.inf
    since = 0
    done = 0
    for done in range(1, iterations + 1):
        along = product(done - 1, u)
        new = {name: v[name] + (1 - damping) * u[name] - along[name] / scale for name in v}
        last = float(sum((new[name] - u[name]).abs().sum() for name in v))
        first = last if done == 1 else first
        u = new
        if not math.isfinite(last) or last == 0:
            break
        since = 0 if last < least else since + 1
        least = min(least, last)
        if since >= patience:
            break
    diverged = not math.isfinite(last) or (last > first and done > 1)
    settled = not diverged and last <= SETTLED * first
    return Estimate({name: part / scale for name, part in u.items()}, done, settled, diverged, (first, last))


def mean_of(parts: list[Change]) -> Change:
    """The average of several estimates."""
    return {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}
