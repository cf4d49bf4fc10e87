"""MarginCounts: how the margins of training samples are spread, class by class, in counts that add and subtract.

Margins are counted in BINS bins of asinh(margin), as wide everywhere, from −REACH to REACH; what lies beyond is counted
in the outermost bin. Like Grams, the counts of two sets of samples that share none are added, and those of samples
that are taken out are subtracted.

They tell how hard a sample was to learn for its class: its rank among the others, which no other sample of a request
need be there for. And they tell of samples that cannot be among those that were counted
(:mod:`unweave.behaviour.strangers`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unweave.behaviour.outcomes import Outcomes

BINS = 256
REACH = 8.0
"""In asinh(margin); as a margin some 1,500."""
MOST_CLASSES = 4096
"""With more of them the counts, 1 KiB a class in a file, would be larger than many a Gram: then none are kept."""


@dataclass(frozen=True)
class Standing:
    """Where samples stand among those of their class that were counted, as shares in [0, 1]; NaN where nobody knows."""

    rank: Tensor
    """The share whose margin is lower, [N]; within a bin they count as evenly spread."""
    low: Tensor
    """The share in lower bins, [N]: the rank is no less …"""
    high: Tensor
    """… and no more than the share in lower bins and the sample's own, [N]."""

    def __getitem__(self, chosen: Tensor) -> Standing:
        return Standing(self.rank[chosen], self.low[chosen], self.high[chosen])

    def __len__(self) -> int:
        return len(self.rank)

    @staticmethod
    def unknown(count: int) -> Standing:
        """Of samples of which nobody knows."""
        return Standing(*torch.full((3, count), torch.nan, dtype=torch.float64))


@dataclass(frozen=True)
class MarginCounts:
    """How many training samples of each class have a margin in each bin: int64 [C, BINS] on the CPU.

    A count may fall below zero where samples were taken out as a changed model sees them; it is read as none.
    """

    counts: Tensor

    @staticmethod
    def of(outcomes: Outcomes) -> MarginCounts | None:
        """Of samples that a model was run on; None where it has too many classes."""
        if outcomes.classes > MOST_CLASSES:
            return None
        cells = outcomes.labels * BINS + binned(outcomes.margin)
        return MarginCounts(cells.bincount(minlength=outcomes.classes * BINS).view(-1, BINS))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MarginCounts) and torch.equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]

    def combined(self, other: MarginCounts, sign: int) -> MarginCounts | None:
        """With the other's samples added (+1) or taken out (−1); None where they are of other classes."""
        if self.counts.shape != other.counts.shape:
            return None
        return MarginCounts(self.counts + sign * other.counts)

    def known(self, labels: Tensor) -> Tensor:
        """Which of these labels' classes have samples here, bool [N]."""
        there = self.counts.clamp(min=0).sum(1) > 0
        return there[labels.clamp(max=len(there) - 1)] & (labels < len(there))

    def standing(self, labels: Tensor, margins: Tensor) -> Standing:
        """Where samples with these labels and margins [N] stand among those of their class."""
        known = self.known(labels)
        counts = self.counts.clamp(min=0).double()[labels.where(known, 0)]
        position, whole = bins(margins), binned(margins)
        own = counts.gather(1, whole[:, None]).squeeze(1)
        below = counts.cumsum(1).gather(1, whole[:, None]).squeeze(1) - own
        shares = torch.stack([below + (position - whole).clamp(max=1) * own, below, below + own]) / counts.sum(1)
        return Standing(*shares.where(known, torch.nan))


def bins(margins: Tensor) -> Tensor:
    """Where margins stand on the scale of the bins, in [0, BINS]: the bin, and how far within it."""
    return ((margins.double().asinh() + REACH) * (BINS / (2 * REACH))).clamp(0, BINS)


def binned(margins: Tensor) -> Tensor:
    """The bin that each margin is in, int64 [N]."""
    return bins(margins).floor().long().clamp(max=BINS - 1)
