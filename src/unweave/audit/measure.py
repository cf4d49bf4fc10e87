"""How well scores tell two groups apart, and how sure that is.

Convention: a score is high where a sample looks like a *member* (seen in training). Positives are what the attacker
looks for, negatives what they should look like after forgetting. Scores are [n] for one model or [N, n] for N models on
the same n samples.

    AUC = P(positive > negative) + P(equal) / 2        0.5: cannot be told apart; below: *less* like a member

Uncertainty comes from a bootstrap over what was drawn at random: samples (negatives always matched to the classes of
the positives, where classes are given), and models where there are several. Positives and negatives on the same samples
(two groups of models on one forget set) share the draw of samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from unweave.audit.outputs import Floats, Ints
from unweave.audit.roc import Curve, best_threshold
from unweave.errors import DataError

CONFIDENCE = 0.95
DRAWS = 2000
BINS = 40
POWER = 0.8


@dataclass(frozen=True)
class Interval:
    """A value and the bounds of its confidence interval."""

    value: float
    low: float
    high: float

    def document(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, repr=False)
class Separation:
    """How far positives and negatives can be told apart by one score."""

    positives: Floats
    negatives: Floats
    positive_weights: Floats
    negative_weights: Floats
    """Of every score; a class that is rarer among the negatives weighs more there. Each group adds up to 1."""
    draws: Floats
    """Bootstrap draws of (AUC, TPR at 1 % FPR, TPR at 0.1 % FPR), [DRAWS, 3]."""
    models: tuple[int, int]
    samples: tuple[int, int]

    def __repr__(self) -> str:
        auc, (positives, negatives) = self.auc, self.samples
        found = f"AUC {auc.value:.3f} ({auc.low:.3f} to {auc.high:.3f})"
        return f"Separation({found}, {positives} against {negatives} samples)"

    @cached_property
    def _curve(self) -> Curve:
        return Curve.of(self.positives, self.negatives)

    @property
    def _values(self) -> tuple[float, float, float]:
        return self._curve.read(self.positive_weights, self.negative_weights)

    @property
    def auc(self) -> Interval:
        return self.auc_at(CONFIDENCE)

    def auc_at(self, confidence: float) -> Interval:
        """The AUC with an interval of another confidence than 95 %."""
        return _interval(self._values[0], self.draws[:, 0], confidence)

    def tpr_at(self, fpr: float) -> Interval | None:
        """Share of positives found when this share of negatives is accused; None where too few negatives can tell.

        Args:
            fpr: 0.01 or 0.001.
        """
        column = {0.01: 1, 0.001: 2}[fpr]
        if self.samples[1] * self.models[1] * fpr < 1:
            return None
        return _interval(self._values[column], self.draws[:, column], CONFIDENCE)

    @property
    def standard_error(self) -> float:
        return float(self.draws[:, 0].std(ddof=1))

    @property
    def detectable_auc(self) -> float:
        """The smallest AUC above 0.5 that a two-sided test at 5 % would have noticed four times in five."""
        steps = norm.ppf(1 - (1 - CONFIDENCE) / 2) + norm.ppf(POWER)
        return min(1.0, 0.5 + float(steps) * self.standard_error)

    @property
    def balanced_accuracy(self) -> float:
        """Of the best threshold, chosen on one half of the scores and judged on the other, both ways round."""
        up, down = _halves(self.positives, self.positive_weights), _halves(self.negatives, self.negative_weights)
        found = []
        for here, there in ((0, 1), (1, 0)):
            threshold = best_threshold(*up[here], *down[here])
            hit = np.average(up[there][0] >= threshold, weights=up[there][1])
            spared = np.average(down[there][0] < threshold, weights=down[there][1])
            found.append((hit + spared) / 2)
        return float(np.mean(found))

    def document(self) -> dict[str, Any]:
        """As the report's schema wants it."""
        one, tenth = self.tpr_at(0.01), self.tpr_at(0.001)
        return {
            "auc": self.auc.document(),
            "tpr_at_1_percent": one and one.document(),
            "tpr_at_01_percent": tenth and tenth.document(),
            "balanced_accuracy": self.balanced_accuracy,
            "detectable_auc": self.detectable_auc,
            "models": list(self.models),
            "samples": list(self.samples),
            "roc": self._curve.points(self.positive_weights, self.negative_weights),
            "scores": self._histogram(),
        }

    def _histogram(self) -> dict[str, list[float]]:
        pooled = np.concatenate([self.positives, self.negatives])
        low, high = np.quantile(pooled, [0.002, 0.998])
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
        sides = ((self.positives, self.positive_weights), (self.negatives, self.negative_weights))
        shares = [np.histogram(np.clip(s, edges[0], edges[-1]), edges, weights=w)[0] for s, w in sides]
        return {"edges": edges.tolist(), "positives": shares[0].tolist(), "negatives": shares[1].tolist()}


def separate(
    positives: ArrayLike,
    negatives: ArrayLike,
    *,
    classes: tuple[Ints, Ints] | None = None,
    same_samples: bool = False,
    same_models: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
) -> Separation:
    """Measure how far two groups of scores are apart.

    Args:
        positives: [n] or [N, n]; high means "member".
        negatives: [m] or [M, m].
        classes: the class of each sample of both groups; negatives are then weighted to the positives' proportions,
            so that a class cannot be mistaken for membership; negatives of other classes are left out.
        same_samples: both groups are about the same samples, n = m.
        same_models: both groups come from the same models in the same order, N = M.
        draws: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        DataError: fewer than two scores in a group, scores that are not finite, a class without negatives, or groups
            of other sizes than was said.
    """
    grid = [_grid(positives, "positive"), _grid(negatives, "negative")]
    for same, axis, what in ((same_models, 0, "models"), (same_samples, 1, "samples")):
        if same and grid[0].shape[axis] != grid[1].shape[axis]:
            raise DataError(f"{grid[0].shape[axis]} and {grid[1].shape[axis]} {what} are not the same {what}.")
    strata = _strata(classes, grid)
    weights = [np.full(grid[0].shape[1], 1 / grid[0].shape[1]), class_weights(strata[0], strata[1])]
    if not same_samples:
        counted = weights[1] > 0
        grid[1], strata[1], weights[1] = grid[1][:, counted], strata[1][counted], weights[1][counted]
        _grid(grid[1], "class-matched negative")
    curve = Curve.of(grid[0].ravel(), grid[1].ravel())
    draw = _resampling(strata, (len(grid[0]), len(grid[1])), same_samples, same_models, np.random.default_rng(seed))
    found = np.array([curve.read(*draw()) for _ in range(draws)])
    full = [np.tile(w, len(g)) / len(g) for g, w in zip(grid, weights, strict=True)]
    return Separation(
        grid[0].ravel(), grid[1].ravel(), full[0], full[1], found,
        models=(len(grid[0]), len(grid[1])), samples=(grid[0].shape[1], grid[1].shape[1]),
    )  # fmt: skip


def class_weights(wanted: Ints, there: Ints) -> Floats:
    """Weights [m] that add up to 1 and give the samples ``there`` the class proportions of ``wanted``.

    Raises:
        DataError: a wanted class is not there.
    """
    share = np.bincount(wanted, minlength=1 + max(wanted.max(), there.max())) / len(wanted)
    count = np.bincount(there, minlength=len(share))
    missing = np.flatnonzero((share > 0) & (count == 0))
    if len(missing):
        raise DataError(
            f"No sample of class {', '.join(map(str, missing))} to compare with. Give held-out samples of every class "
            "of the forget set."
        )
    return np.asarray(share[there] / count[there])


def _grid(scores: ArrayLike, what: str) -> Floats:
    grid = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    if grid.ndim != 2 or grid.size < 2:
        raise DataError(f"Invalid {what} scores: shape {list(grid.shape)}. Expected [n] or [models, n], at least two.")
    if not np.isfinite(grid).all():
        raise DataError(f"Invalid {what} scores: NaN or infinite values.")
    return grid


def _strata(classes: tuple[Ints, Ints] | None, grid: list[Floats]) -> list[Ints]:
    """The class of every sample of both groups; one class where none are given."""
    if classes is None:
        return [np.zeros(g.shape[1], dtype=np.int64) for g in grid]
    strata = [np.asarray(group) for group in classes]
    for group, scores in zip(strata, grid, strict=True):
        if group.shape != scores.shape[1:]:
            raise DataError(f"Classes of shape {list(group.shape)} for the scores of {scores.shape[1]} samples.")
    return strata


def _resampling(
    strata: list[Ints], models: tuple[int, int], same_samples: bool, same_models: bool, rng: np.random.Generator
) -> Callable[[], tuple[Floats, Floats]]:
    """A function that draws the weights of all positives and all negatives, [N · n] and [M · m].

    Positives are drawn whatever their class (within classes, one with a single sample would never vary), and the
    negatives are matched to the classes that were drawn.
    """
    count = len(strata[0])
    # Apart, so that groups with other numbers of models still share the draw of samples, for the same seed.
    rng, models_rng = rng.spawn(2)
    strangers = _strangers(strata[1], rng)

    def draw() -> tuple[Floats, Floats]:
        up = np.bincount(rng.integers(count, size=count), minlength=count) / count
        shares = np.asarray(np.bincount(strata[0], up, 1 + strata[0].max()), dtype=np.float64)
        down = up if same_samples else strangers(shares)
        first = _draw_models(models[0], models_rng)
        second = first if same_models else _draw_models(models[1], models_rng)
        return np.outer(first, up).ravel(), np.outer(second, down).ravel()

    return draw


def _strangers(strata: Ints, rng: np.random.Generator) -> Callable[[Floats], Floats]:
    """A function from wanted class shares to weights [m]: samples drawn with replacement within each class."""
    classes, sizes = np.unique(strata, return_counts=True)
    order, starts = np.argsort(strata, kind="stable"), np.cumsum(sizes) - sizes
    drawn = np.maximum(sizes - 1, 1)  # m − 1 of m, as for the models
    start, size, which = (np.repeat(x, drawn) for x in (starts, sizes, np.arange(len(classes))))

    def draw(shares: Floats) -> Floats:
        chosen = order[start + (rng.random(len(start)) * size).astype(np.int64)]
        return np.asarray(np.bincount(chosen, (shares[classes] / drawn)[which], len(strata)), dtype=np.float64)

    return draw


def _draw_models(models: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How often each model counts; a single one always counts once.

    N − 1 of N are drawn: the variance of N draws is too small by (N − 1) / N, which matters for a handful of models.
    """
    return np.bincount(rng.integers(models, size=max(1, models - 1)), minlength=models)


def _halves(scores: Floats, weights: Floats) -> list[tuple[Floats, Floats]]:
    """Two halves of both. Shuffled, because samples often come sorted or in turns by class."""
    order = np.random.default_rng(0).permutation(len(scores))
    return [(scores[half], weights[half]) for half in (order[::2], order[1::2])]


def _interval(value: float, draws: Floats, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(value, float(min(low, value)), float(max(high, value)))
