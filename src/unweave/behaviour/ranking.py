"""Where each sample of a request stands in its class by how hard it was to learn: its rank, from 0 (hardest) to 1.

Of n samples drawn from a class at random the i-th by margin stands at (i + ½) / n, whatever the class is like: ranks
among the request itself. Not so where

- there are few: among themselves they are ranked by chance, and a single one is always in the middle;
- they were not drawn at random: the doubtful labels of one person, the photographs of one bad camera, or twenty that
  everybody knows. Ranked among themselves, the better half of what is hard would be aimed at what is easy.

Those are ranked among all training samples of their class, whose margins the Grams count
(:mod:`unweave.behaviour.spread`). There the ranks u of a random draw are spread evenly over [0, 1], and how far they
are from that tells whether it is one.

A network that never saw a sample would not find it exactly as hard. With z = Φ⁻¹(u), and as normal as that makes it,
its rank there is spread as

    z' = ρ z + √(1 − ρ²) ε          so that          P(rank < t) = Φ((Φ⁻¹(t) − ρ z) / √(1 − ρ²))

Of odd samples of a class the k-th by margin goes to the k-th quantile of the mean of these over the samples. For a
random draw the mean is even again, and that is ranking among themselves; with ρ = 1 it is u. A few, odd or not, of
which each stands for itself, go to u: over many of them as many are wrong as should be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.special import ndtr, ndtri

from unweave.behaviour.outcomes import Outcomes
from unweave.behaviour.spread import Standing

FEW = 20
"""With fewer samples of a class, each is ranked among all that the model was trained on, where that is known."""
ALIKE = 0.9
"""ρ. On six small problems of points it was 0.84 to 0.95, on the demonstration's network 0.64, on AllCNN 0.81."""
WIDE, STEPS, EDGE, TOGETHER = 4.0, 2001, 1e-6, 4096
"""Quantiles are looked up in so many steps of z from −WIDE to WIDE; ranks are kept off 0 and 1; samples at a time."""
RARE = 1 / 8000
"""Samples are odd where chance brings a random draw's ranks as far from an even spread (the Kolmogorov–Smirnov
distance) so rarely. All classes together are asked first, then each by itself, as many as there are."""


@dataclass(frozen=True)
class Places:
    """Where the samples of a request are aimed at."""

    ranks: Tensor
    """Among the held-out samples of their classes, [N]."""
    wrong: Tensor
    """How likely each is to be wrong there, [N]; who is wrong already stays wrong."""
    by_training: Tensor
    """Who was ranked among the training samples, bool [N]."""


def places(before: Outcomes, learnt: Standing, error: Tensor, same_model: bool) -> Places:
    """Of all samples, by their own ranks or among the training samples.

    Args:
        before: what the model makes of the request.
        learnt: where they stand among the training samples of their class.
        error: of the held-out samples of each class, [C], as a share.
        same_model: whether the training samples were seen by the same model; if not, nobody knows who is odd.
    """
    labels, known, unseen = before.labels, ~learnt.rank.isnan(), error[before.labels]
    not_drawn = torch.zeros_like(known)
    if same_model:
        not_drawn[known] = odd(labels[known], learnt[known])
    alone = few(before) & known
    not_drawn &= ~alone
    ranks = within(before).where(~alone, learnt.rank)
    wrong = unseen.maximum(_share_by_class(before)).where(~alone, ((learnt.rank < unseen) | before.wrong).double())
    for c in labels[not_drawn].unique():
        own = (not_drawn & (labels == c)).nonzero().squeeze(1)
        as_unseen = Unseen(learnt.rank[own])
        ranks[own[before.margin[own].argsort(stable=True)]] = as_unseen.quantiles()
        wrong[own] = max(as_unseen.below(error[c].item()), before.wrong[own].double().mean().item())
    by_training = alone | not_drawn
    # What would be wrong is aimed at the middle of what is, at the lowest: farther down are the oddest of many, which
    # a single one hardly is, and the way there costs the others.
    return Places(ranks.where(~by_training, ranks.maximum(unseen / 2)), wrong, by_training)


def _share_by_class(before: Outcomes) -> Tensor:
    """For each sample, what share of the request's samples of its class is wrong, [N]."""
    counts, wrong = (before.labels.bincount(w, before.classes) for w in (None, before.wrong.double()))
    return (wrong / counts)[before.labels]


def within(outcomes: Outcomes) -> Tensor:
    """Ranks [N] among the request's own samples of each class: (position + ½) / n."""
    ranks = torch.empty(len(outcomes), dtype=torch.float64)
    for c in outcomes.labels.unique():
        own = (outcomes.labels == c).nonzero().squeeze(1)
        order = outcomes.margin[own].argsort(stable=True).argsort(stable=True)
        ranks[own] = (order.double() + 0.5) / len(own)
    return ranks


def few(outcomes: Outcomes) -> Tensor:
    """Which samples have few others of their class beside them, bool [N]."""
    return outcomes.labels.bincount(minlength=outcomes.classes)[outcomes.labels] < FEW


def odd(labels: Tensor, learnt: Standing) -> Tensor:
    """Which samples were not drawn at random, bool [N], by where they stand among the training samples."""
    if unlike_a_draw(learnt):
        return torch.ones_like(labels, dtype=torch.bool)
    there = labels.unique()
    classes = [c for c in there if unlike_a_draw(learnt[labels == c], among=len(there))]
    return torch.isin(labels, torch.tensor(classes, dtype=labels.dtype))


def unlike_a_draw(learnt: Standing, among: int = 1) -> bool:
    """Whether these samples are farther from an even spread than chance brings one of so many draws.

    How margins are spread within a bin is not known, so that is not asked: where the ranks end that are below t for
    certain, and where those begin that are not, says how far from t · n their number is at least.
    """
    n = len(learnt)
    steps = torch.arange(n + 1, dtype=torch.float64) / max(n, 1)
    ends, begins = learnt.high.sort().values, learnt.low.sort().values
    distance = torch.maximum(steps[1:] - ends, begins - steps[:-1])
    return n > 0 and distance.max().item() > farthest(n, among)


def farthest(n: int, among: int = 1) -> float:
    """The distance that one of so many draws of n samples exceeds by chance with probability RARE: √n D > 2.2 for one.

    From P(√n D > x) < 2 exp(−2x²), which is exact for many samples.
    """
    return math.sqrt(math.log(2 * among / RARE) / (2 * n))


@dataclass(frozen=True)
class Unseen:
    """Samples of one class by how hard they were to learn, as networks would find them that never saw them."""

    ranks: Tensor
    """Among the training samples, [n]."""

    def below(self, share: float) -> float:
        """The share of them whose rank there is below this one."""
        return self._below(torch.tensor([share], dtype=torch.float64)).item()

    def quantiles(self) -> Tensor:
        """Their ranks there, [n], from the lowest to the highest."""
        n = len(self.ranks)
        grid: Tensor = ndtr(torch.linspace(-WIDE, WIDE, STEPS, dtype=torch.float64))
        wanted = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        above = torch.searchsorted(self._below(grid), wanted).clamp(max=STEPS - 1)
        return grid[above]

    def _below(self, shares: Tensor) -> Tensor:
        z, t = (ndtri(part.double().clamp(EDGE, 1 - EDGE)) for part in (self.ranks, shares))
        off = math.sqrt(1 - ALIKE**2)
        parts = [ndtr((t - ALIKE * own[:, None]) / off).sum(0) for own in z.split(TOGETHER)]
        return torch.stack(parts).sum(0) / len(z)
