"""Strangers: samples of a request that were never fitted as they are here, found by counting margins.

The Grams count how many of the fitted samples D have a margin in each bin, class by class
(:mod:`unweave.behaviour.spread`). For a request F that is part of D, read by the network that D was read by, n_F[c, b]
≤ n_D[c, b] in every class c and bin b. So of any request

    Σ max(0, n_F[c, b] − n_D[c, b])        at least are strangers:

never fitted, or with other labels, or under another transform. Others may hide where many were fitted. Reading a sample
once more moves its margin, by rounding or, in a network that computes more coarsely than its weights are, by more than
a bin; and earlier requests took out of n_D what they read. So a sample may count in any bin within NEAR of its own:
what is said is the least over all choices. Those near whom nothing is left to be taken out are strangers for certain.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from unweave.behaviour.outcomes import Outcomes
from unweave.behaviour.spread import MarginCounts, binned
from unweave.errors import MismatchError
from unweave.reading.samples import listed

SAID_OF = ("float64", "float32")
"""The types of models of which anything is said: coarser ones move margins by many bins."""
NEAR = 2
"""How many bins away from its own a sample may be counted. Autocast inside a model, with other kernels for a batch of
another size, has moved margins by 1.4."""
BY_CHANCE = 0.01
"""A share of a request that is not refused for strangers, but told of: so many may be read otherwise by accident."""


@dataclass(frozen=True)
class Strangers:
    """Of the samples of a request, how many are strangers at least, and the positions of some that certainly are."""

    least: int
    certain: tuple[int, ...]
    of: int

    def require_few(self, copies: int, unsteady: bool) -> None:
        """Refuse the request, with the likeliest reason first, where more than a hundredth are strangers.

        Args:
            copies: how many samples of the request are copies of others in it.
            unsteady: whether its samples change each time they are read.

        Raises:
            MismatchError: there are more.
        """
        if not self._many(self.least):
            return
        if copies and not self._many(self.least - copies):
            why = (
                f"{copies} of these {self.of} samples are copies of others in the request, and at least {self.least} "
                "find no fitted sample of their class with their margin that is still in the Grams. Pass each sample "
                "once, or as often as the training set holds it."
            )
        elif unsteady:
            why = (
                f"A sample of the request is another each time it is read (random augmentation?). {self} Pass samples "
                "as they were fitted, with nothing random about them."
            )
        else:
            why = (
                f"{self} Pass samples of the training set as they were fitted: with the labels they were trained on "
                "(also where those are wrong), under the same transform, padded to the same length."
            )
        raise MismatchError(f"{why} To take them out all the same, and only be told: strangers='tell'.")

    def _many(self, count: int) -> bool:
        return count > BY_CHANCE * self.of

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
    asked = MarginCounts.of(outcomes)
    if dtype not in SAID_OF or asked is None or asked.counts.shape != fitted.counts.shape:
        return None
    counts = fitted.counts.clamp(min=0)
    near = pad(counts, (NEAR, NEAR)).unfold(1, 2 * NEAR + 1, 1).sum(2)
    certain = (near[outcomes.labels, binned(outcomes.margin)] == 0).nonzero().squeeze(1)
    return Strangers(_left_over(counts, asked.counts), tuple(certain.tolist()), len(outcomes))


def _left_over(counts: Tensor, asked: Tensor) -> int:
    """How many samples find no place, each within NEAR bins of its own, if as many as possible do; both are [C, BINS].

    Going up the bins, a place goes to the one who may wait least long: nobody else could make better use of it. All may
    wait equally long, so that is who came first, in the order of their own bins. Then it is enough to know how many of
    a class have come, how many of those are done (have a place, or wait no more), and how many are due: wait no longer
    than for this bin.
    """
    room = pad(counts, (NEAR, NEAR))
    come, due = pad(asked, (0, 2 * NEAR)).cumsum(1), pad(asked, (2 * NEAR, 0)).cumsum(1)
    done = over = torch.zeros_like(counts[:, 0])
    for b in range(room.shape[1]):
        done = torch.minimum(done + room[:, b], come[:, b])
        over = over + (due[:, b] - done).clamp(min=0)
        done = torch.maximum(done, due[:, b])
    return int(over.sum())
