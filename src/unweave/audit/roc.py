"""ROC curves of weighted scores.

Positives and negatives are pooled and sorted once; each set of weights then costs one pass over the distinct scores:

    AUC = Σ over scores s of up(s) · (down(below s) + down(s) / 2)        up, down: the weight of both groups at s
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unweave.audit.outputs import Floats, Ints

POINTS = 200
"""Kept of a curve, at most."""


@dataclass(frozen=True)
class Curve:
    """Where the positives and the negatives stand among the distinct scores, from the lowest to the highest."""

    positive_bins: Ints
    negative_bins: Ints
    bins: int

    @classmethod
    def of(cls, positives: Floats, negatives: Floats) -> Curve:
        values, place = np.unique(np.concatenate([positives, negatives]), return_inverse=True)
        return cls(place[: len(positives)], place[len(positives) :], len(values))

    def masses(self, positive: Floats, negative: Floats) -> tuple[Floats, Floats]:
        """The weight of both groups on each distinct score, from the lowest to the highest; each adds up to 1."""
        up = np.bincount(self.positive_bins, positive, self.bins)
        down = np.bincount(self.negative_bins, negative, self.bins)
        return up / up.sum(), down / down.sum()

    def read(self, positive: Floats, negative: Floats) -> tuple[float, float, float]:
        """AUC, and TPR at FPR of at most 1 % and 0.1 %."""
        up, down = self.masses(positive, negative)
        auc = float(up @ (down.cumsum() - down / 2))
        fpr, tpr = down[::-1].cumsum(), up[::-1].cumsum()
        at = [int(np.searchsorted(fpr, limit + 1e-12, side="right")) for limit in (0.01, 0.001)]
        return (auc, *(float(tpr[i - 1]) if i else 0.0 for i in at))  # type: ignore[return-value]

    def points(self, positive: Floats, negative: Floats) -> dict[str, list[float]]:
        """A ROC curve of at most POINTS points, denser where few negatives are accused."""
        up, down = self.masses(positive, negative)
        fpr = np.concatenate([[0.0], np.minimum(down[::-1].cumsum(), 1)])
        tpr = np.concatenate([[0.0], np.minimum(up[::-1].cumsum(), 1)])
        if len(fpr) > POINTS:
            wanted = np.concatenate([[0], np.geomspace(1e-4, 0.1, POINTS // 4), np.linspace(0.1, 1, POINTS * 3 // 4)])
            chosen = np.unique(np.append(np.searchsorted(fpr, wanted, side="right") - 1, [0, len(fpr) - 1]))
            fpr, tpr = fpr[chosen], tpr[chosen]
        return {"fpr": fpr.tolist(), "tpr": tpr.tolist()}


def best_threshold(positives: Floats, up: Floats, negatives: Floats, down: Floats) -> float:
    """The score at and above which to say "member", for the best balanced accuracy; halfway to the next lower score."""
    values = np.unique(np.concatenate([positives, negatives]))
    curve = Curve.of(positives, negatives)
    mass_up, mass_down = curve.masses(up, down)
    gain = (mass_up - mass_down)[::-1].cumsum()[::-1]  # TPR − FPR when all from this value on are accused
    best = int(gain.argmax())
    return float((values[best] + values[max(best - 1, 0)]) / 2)
