"""The paper's attack in turns, so that it is about every network there is and not about the five that come last.

A classifier that is fitted once is asked about five unlearned networks and five retrained ones, and which those are
moves its AUC by a hundredth. In turns each retrained network is compared with, and each unlearned one on trial,
equally often: the next ones are moved to the end, where :class:`ShadowClassifier` takes its test networks from, and it
is fitted anew without them. The AUC is the mean over the turns.

Its interval is that of the mean of bootstrap draws, of which all turns share the draw of samples. Draws of networks are
shared by place, and at one place stand other networks in other turns, so that their accidents average out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unweave.audit import Separation
from unweave.audit.shadow_classifier import Split

MOST = 40
"""Turns at most; fifty retrained networks and twenty unlearned ones, five at a time, take twenty."""
TAIL = 0.025
"""Of the draws, left out on either side."""


@dataclass(frozen=True)
class Turn:
    """Seeds in the order in which the classifier is given its networks; those it is tested with come last."""

    full: list[int]
    retrained: list[int]


def turns(full: Sequence[int], tried: Sequence[int], retrained: Sequence[int]) -> list[Turn]:
    """As many as it takes until each of the tried and of the retrained networks was last equally often.

    Args:
        full: seeds of the networks trained on everything …
        tried: … of which methods were applied to these.
        retrained: seeds of those that never saw the forget set.
    """
    held = _held(len(full), "full"), _held(len(retrained), "retrained")
    rounds = math.lcm(*(len(s) // math.gcd(len(s), h) for s, h in zip((tried, retrained), held, strict=True)))
    kinds = (full, tried, held[0]), (retrained, retrained, held[1])
    return [Turn(*(_turned(*kind, turn) for kind in kinds)) for turn in range(min(rounds, MOST))]


def _held(models: int, what: str) -> int:
    """How many of so many networks the classifier is tested with."""
    test = Split.of(models, what).test
    return int(test.stop - test.start)


def _turned(seeds: Sequence[int], tested: Sequence[int], size: int, turn: int) -> list[int]:
    """All seeds, the next so many of the tested last; the others are turned too, for some of them choose settings."""
    last = [tested[(turn * size + place) % len(tested)] for place in range(min(size, len(tested)))]
    others = [seed for seed in seeds if seed not in last]
    first = turn * size % len(others)
    return others[first:] + others[:first] + last


def mean_auc(found: Sequence[Separation]) -> dict[str, float]:
    """The mean over turns, with its 95 % interval; ``found`` share their draws of samples."""
    value = float(np.mean([one.auc.value for one in found]))
    low, high = np.quantile(np.mean([one.draws[:, 0] for one in found], axis=0), [TAIL, 1 - TAIL])
    return {"value": value, "low": float(min(low, value)), "high": float(max(high, value))}
