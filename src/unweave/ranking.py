"""Where each sample of a request stands in its class by how hard it was to learn: its rank, from 0 (hardest) to 1.

Of n samples drawn from a class at random the i-th by margin stands at (i + ½) / n, whatever the class is like: ranks
among the request itself. Not so where

- there are few: among themselves they are ranked by chance, and a single one is always in the middle;
- they were not drawn at random: the doubtful labels of one person, the photographs of one bad camera, or twenty that
  everybody knows. Ranked among themselves, the better half of what is hard would be aimed at what is easy.

Those are ranked among all training samples of their class, whose margins the Grams count (:mod:`unweave.spread`). There
the ranks of a random draw are spread evenly over [0, 1], and how far they are from that tells whether it is one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unweave.outcomes import Outcomes
from unweave.spread import MarginCounts

FEW = 20
"""With fewer samples of a class, each is ranked among all that the model was trained on, where that is known."""
ODD = 2.2
"""Of n samples whose ranks are farther than this / √n from an even spread (the Kolmogorov–Smirnov distance) it is not
believed that they were drawn at random; to random ones that happens once in 8,000 times. All classes together are asked
first, then each by itself."""


def within(outcomes: Outcomes) -> Tensor:
    """Ranks [N] among the request's own samples of each class: (position + ½) / n."""
    ranks = torch.empty(len(outcomes), dtype=torch.float64)
    for c in outcomes.labels.unique():
        own = (outcomes.labels == c).nonzero().squeeze(1)
        order = outcomes.margin[own].argsort(stable=True).argsort(stable=True)
        ranks[own] = (order.double() + 0.5) / len(own)
    return ranks


def by_training(outcomes: Outcomes, learnt: Outcomes, trained: MarginCounts, same_model: bool) -> Tensor:
    """Which samples are ranked among the training samples of their class, bool [N].

    Args:
        outcomes: of the request.
        learnt: what the first model that is there makes of it.
        trained: how the margins of training samples were spread.
        same_model: whether that was by the model that ``learnt`` is of; if not, nobody knows who is odd.
    """
    known = trained.known(outcomes.labels)
    few = known & (outcomes.labels.bincount(minlength=outcomes.classes)[outcomes.labels] < FEW)
    if not same_model or not bool(known.any()):
        return few
    ranks = trained.ranks(outcomes.labels[known], learnt.margin[known])
    if odd(ranks):
        return known
    among_odd = [c for c in outcomes.labels[known].unique() if odd(ranks[outcomes.labels[known] == c])]
    return few | (known & torch.isin(outcomes.labels, torch.tensor(among_odd, dtype=outcomes.labels.dtype)))


def odd(ranks: Tensor) -> bool:
    """Whether these ranks among the training samples [n] are not those of a random draw."""
    n, ranks = len(ranks), ranks.sort().values
    steps = torch.arange(n + 1, dtype=ranks.dtype) / n
    distance = torch.maximum((steps[1:] - ranks).max(), (ranks - steps[:-1]).max())
    return distance.item() * math.sqrt(n) > ODD
