"""The paper's attack in turns, so that it is about every network there is and not about the five that come last.

A classifier that is fitted once is asked about five unlearned networks and five retrained ones, and which those are
moves its AUC by a hundredth. In turns every five unlearned networks are asked about against every five retrained ones:
both are moved to the end, where :class:`ShadowClassifier` takes its test networks from, and it is fitted anew on the
others. The AUC is the mean over all pairs of an unlearned and a retrained network that met.

Its interval is by a bootstrap over samples and over networks: a network counts as often as it was drawn in every turn
that it is part of. That the classifiers were fitted to some networks and not to others is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from unweave.audit.outputs import Floats
from unweave.audit.roc import Curve
from unweave.audit.shadow_classifier import Split

Weights = dict[int, float]
"""By the seed of a network: how often it counts."""
TAIL = 0.025
"""Of the draws, left out on either side."""


@dataclass(frozen=True)
class Turn:
    """Seeds in the order in which the classifier is given its networks; those it is tested with come last."""

    full: list[int]
    retrained: list[int]


@dataclass(frozen=True)
class Asked:
    """The scores of one turn, [networks, n] each, and the seeds of the networks."""

    unlearned: Floats
    unlearned_seeds: Sequence[int]
    retrained: Floats
    retrained_seeds: Sequence[int]


def turns(full: Sequence[int], tried: Sequence[int], retrained: Sequence[int]) -> list[Turn]:
    """Every block of tried networks with every block of retrained ones; a last block that is short begins anew.

    Args:
        full: seeds of the networks trained on everything …
        tried: … of which methods were applied to these.
        retrained: seeds of those that never saw the forget set.
    """
    held = Split.of(len(full), "full").tested, Split.of(len(retrained), "retrained").tested
    blocks = _blocks(tried, held[0]), _blocks(retrained, held[1])
    return [Turn(_last(full, *one), _last(retrained, *other)) for one, other in product(*map(enumerate, blocks))]


def _blocks(seeds: Sequence[int], size: int) -> list[list[int]]:
    size = min(size, len(seeds))
    return [[seeds[(start + k) % len(seeds)] for k in range(size)] for start in range(0, len(seeds), size)]


def _last(seeds: Sequence[int], turn: int, block: Sequence[int]) -> list[int]:
    """All seeds, a block last; the others are turned too, for some of them choose the classifier's settings."""
    others = [seed for seed in seeds if seed not in block]
    first = turn * len(block) % len(others)
    return [*others[first:], *others[:first], *block]


def mean_auc(asked: Sequence[Asked], draws: int, seed: int = 0) -> dict[str, float]:
    """The mean over all pairs of networks that met, with its 95 % interval."""
    unlearned = sorted({seed for turn in asked for seed in turn.unlearned_seeds})
    retrained = sorted({seed for turn in asked for seed in turn.retrained_seeds})
    samples, rng = asked[0].unlearned.shape[1], np.random.default_rng(seed)
    curves = [Curve.of(turn.unlearned.ravel(), turn.retrained.ravel()) for turn in asked]

    def mean(up: Weights, down: Weights, own: Floats) -> float:
        """With weights of all unlearned and all retrained networks, and of the samples."""
        total = pairs = 0.0
        for turn, curve in zip(asked, curves, strict=True):
            ups, downs = ([w[s] for s in of] for w, of in ((up, turn.unlearned_seeds), (down, turn.retrained_seeds)))
            met = sum(ups) * sum(downs)
            if met:
                total += met * curve.read(np.outer(ups, own).ravel(), np.outer(downs, own).ravel())[0]
                pairs += met
        return total / pairs if pairs else np.nan

    value = mean(dict.fromkeys(unlearned, 1.0), dict.fromkeys(retrained, 1.0), np.ones(samples))
    drawn = [mean(_drawn(unlearned, rng), _drawn(retrained, rng), _often(samples, rng)) for _ in range(draws)]
    low, high = np.nanquantile(drawn, [TAIL, 1 - TAIL])
    return {"value": value, "low": float(min(low, value)), "high": float(max(high, value))}


def _drawn(seeds: Sequence[int], rng: np.random.Generator) -> Weights:
    return dict(zip(seeds, _often(len(seeds), rng).tolist(), strict=True))


def _often(count: int, rng: np.random.Generator) -> Floats:
    """How often each of so many is drawn; one fewer is drawn than there are, whose variance is that of a mean."""
    return np.bincount(rng.integers(count, size=max(count - 1, 1)), minlength=count).astype(np.float64)
