"""Strangers: samples of a request that were never fitted as they are here, found by counting margins.

The Grams count how many of the fitted samples D have a margin in each bin, class by class (:mod:`unweave.spread`). For
a request F that is part of D, read by the network that D was read by, n_F[c, b] ≤ n_D[c, b] in every class c and bin b.
So of any request

    Σ max(0, n_F[c, b] − n_D[c, b])        at least are strangers:

never fitted, or with other labels, or under another transform. Others may hide where many were fitted. Reading a sample
once more moves its margin by rounding, so that one near the edge of a bin may count in either: what is said is the
least over all choices. Those in whose bins nothing is left to be taken out are strangers for certain.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unweave.errors import MismatchError
from unweave.outcomes import Outcomes
from unweave.samples import listed
from unweave.spread import BINS, MarginCounts, bins

EDGES = {"float64": 0.001, "float32": 0.05}
"""How near to the edge of a bin, as a share of it, rounding may move a margin across, by the model's type. Coarser
types move margins by several bins: nothing is said of those."""
BY_CHANCE = 0.01
"""A share of a request that is not refused for strangers, but told of: so many may be read otherwise by accident."""


@dataclass(frozen=True)
class Strangers:
    """Of the samples of a request, how many are strangers at least, and the positions of some that certainly are."""

    least: int
    certain: tuple[int, ...]
    of: int

    def require_few(self) -> None:
        """
        Raises:
            MismatchError: more than a hundredth of the request.
        """
        if self.least > BY_CHANCE * self.of:
            raise MismatchError(
                f"{self} Pass samples of the training set as they were fitted: with the labels they were trained on "
                "(also where those are wrong), under the same transform, padded to the same length."
            )

    def __str__(self) -> str:
        which = f" ({len(self.certain)} for certain, {listed(self.certain)})" if self.certain else ""
        return (
            f"At least {self.least} of these {self.of} samples were not fitted as they are here{which}: no fitted "
            "sample of their class that is still in the Grams has their margin."
        )


def strangers(fitted: MarginCounts, outcomes: Outcomes, dtype: str) -> Strangers | None:
    """Count them; None where margins are too coarse to tell, or of other classes.

    Args:
        fitted: of the samples that are in the Grams, by the same network as ``outcomes``.
        outcomes: of the request.
        dtype: the network's least precise type.
    """
    edge = EDGES.get(dtype)
    if edge is None or len(fitted.counts) != outcomes.classes:
        return None
    place = bins(outcomes.margin)
    low, high = ((place + off).floor().long().clamp(0, BINS - 1) for off in (-edge, edge))
    counts = fitted.counts.clamp(min=0)
    there = counts[outcomes.labels, low] + torch.where(high > low, counts[outcomes.labels, high], 0)
    certain = (there == 0).nonzero().squeeze(1)
    return Strangers(_left_over(counts, outcomes.labels, low, high), tuple(certain.tolist()), len(outcomes))


def _left_over(counts: Tensor, labels: Tensor, low: Tensor, high: Tensor) -> int:
    """How many samples find no place, each in one of its bins, if as many as possible do.

    From the lowest bin up, those that fit there alone come first, and who may wait for the next bin waits: no other
    order finds a place for more.
    """
    own, either = torch.zeros_like(counts), torch.zeros_like(counts)
    for where, chosen in ((own, low == high), (either, low < high)):
        ones = torch.ones_like(labels[chosen])
        where.index_put_((labels[chosen], low[chosen]), ones, accumulate=True)
    waiting, over = torch.zeros_like(counts[:, 0]), 0
    for b in range(BINS):
        room = counts[:, b] - own[:, b] - waiting
        over += int((-room).clamp(min=0).sum())
        waiting = (either[:, b] - room.clamp(min=0)).clamp(min=0)
    return over
