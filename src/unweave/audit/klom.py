"""KLoM (Georgiev 2025): how far the margins of unlearned models are from those of retrained ones, sample by sample.

Shapes: margins [s, n] of s models in each group on n samples, clipped to ±CLIP. For each sample both groups are counted
into BINS equal bins over their joint range, the largest margin in the last bin, and with the shares p and q of the bins

    KL(p ‖ q) = Σ_b p_b log(p_b / max(q_b, FLOOR))        over bins with p_b > 0, in nats; at most log(1 / FLOOR) = 11.5

The direction is KL(retrained ‖ unlearned) unless told otherwise. That is what the authors' code computes (its signature
names the other one): it punishes an unlearned model that never answers as a retrained one can.

A KL of a few models in 20 bins is large even between equals (with 5 and 5 models more than a twentieth of the samples
share no bin at all: P95 is at its ceiling for every group, and only the mean still tells), so a number means nothing
without its floor. The floor is retrained against other retrained models, with exactly as many in each group, and so are
the unlearned and the original:

    s = min(unlearned, original, ⌊retrained / 2⌋)    reference: retrained [0, s)    floor: retrained [s, 2s)

Over samples, P95 and mean are reported, with a bootstrap interval over samples (of these very models).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unweave.audit.attack import Distance, DistanceResult
from unweave.audit.measure import CONFIDENCE, DRAWS
from unweave.audit.outputs import Ensemble, Floats, same_samples
from unweave.errors import ConfigError, DataError

CLIP = 100.0
BINS = 20
FLOOR = 1e-5
FEWEST = 2
"""Models a group: with one, every two groups are as far apart as can be."""

Direction = Literal["retrained||unlearned", "unlearned||retrained"]
Summary = Callable[..., NDArray[Any]]


def klom(
    unlearned: Ensemble,
    retrained: Ensemble,
    full: Ensemble | None = None,
    *,
    direction: Direction = "retrained||unlearned",
    seed: int = 0,
) -> tuple[DistanceResult, DistanceResult]:
    """The 95th percentile and the mean over samples, each beside the original's and the floor.

    Args:
        unlearned: on the forget set.
        retrained: on the same samples, at least four.
        full: the original models on the same samples.
        direction: of the divergence; see the module.
        seed: of the bootstrap.

    Raises:
        DataError: too few models, or other samples. ConfigError: an unknown direction.
    """
    if direction not in get_args(Direction):
        raise ConfigError(f"Invalid direction: {direction!r}. Supported: {', '.join(get_args(Direction))}.")
    groups = {"unlearned": unlearned, "original": full} if full is not None else {"unlearned": unlearned}
    same_samples(retrained=retrained, **groups)
    models = _matched([len(group) for group in groups.values() if group is not None], len(retrained))
    reference = retrained.take(slice(models)).margins()
    others = {name: group.take(slice(models)) for name, group in groups.items() if group is not None}
    others["retrained"] = retrained.take(slice(models, 2 * models))
    found = {name: divergences(reference, group.margins(), direction) for name, group in others.items()}
    return _result("klom-p95", "95th percentile", _p95, found, models, seed), _result(
        "klom-mean", "mean", np.mean, found, models, seed
    )


def divergences(retrained: Floats, other: Floats, direction: Direction = "retrained||unlearned") -> Floats:
    """KL of binned margins of each sample, [n], for margins [R, n] and [S, n]."""
    groups = [np.clip(group, -CLIP, CLIP) for group in (retrained, other)]
    low = np.minimum(groups[0].min(0), groups[1].min(0))
    width = np.maximum(groups[0].max(0), groups[1].max(0)) - low
    p, q = (_shares(group, low, width) for group in groups)
    if direction == "unlearned||retrained":
        p, q = q, p
    ratio = np.where(p > 0, p, 1) / np.where(p > 0, np.maximum(q, FLOOR), 1)
    return np.asarray((p * np.log(ratio)).sum(1))


def _shares(margins: Floats, low: Floats, width: Floats) -> Floats:
    """The share of models in each bin, [n, BINS], for margins [N, n]."""
    scaled = (margins - low) / np.where(width > 0, width, 1) * BINS
    bins = np.minimum(scaled.astype(np.int64), BINS - 1)  # the joint maximum belongs to the last bin
    samples = margins.shape[1]
    counts = np.bincount((bins + BINS * np.arange(samples)).ravel(), minlength=samples * BINS)
    return np.asarray(counts.reshape(samples, BINS) / len(margins))


def _matched(groups: list[int], retrained: int) -> int:
    models = min(*groups, retrained // 2) if len(groups) > 1 else min(groups[0], retrained // 2)
    if models < FEWEST:
        raise DataError(
            f"KLoM got {min(groups)} models to compare and {retrained} retrained ones. It needs at least {FEWEST} to "
            f"compare and {2 * FEWEST} retrained: half of these to compare with, half for the floor."
        )
    return models


def _p95(values: Floats, axis: int | None = None) -> NDArray[Any]:
    return np.asarray(np.quantile(values, 0.95, axis=axis))


def _result(
    name: str, words: str, summary: Summary, found: dict[str, Floats], models: int, seed: int
) -> DistanceResult:
    return DistanceResult(
        name,
        f"KLoM, {words} over samples",
        f"How differently {models} unlearned and {models} retrained networks answer each sample, against how "
        f"differently {models} and {models} retrained networks do. Good is: no more than the floor.",
        details={"per_sample": found},
        **{which: _distance(summary, values, models, seed) for which, values in found.items()},
    )


def _distance(summary: Summary, values: Floats, models: int, seed: int) -> Distance:
    rng = np.random.default_rng(seed)
    drawn = summary(values[rng.integers(len(values), size=(DRAWS, len(values)))], axis=1)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Distance(float(summary(values)), float(low), float(high), models=models, samples=len(values))
