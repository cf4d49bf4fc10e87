"""Kolmogorov–Smirnov tests: do outputs on the forget set follow the distribution of strangers of the same classes?

For a score s (high: like a member), forget samples F [n] and strangers H [m], the latter weighted to the class
proportions of F:

    D = max over t of |F_F(t) − F_H(t)|          of several models: the mean of their D

It is two-sided: a forget set that looks *less* like a member than strangers do is marked just as well (the Streisand
effect). Under the null hypothesis samples of one class are exchangeable, so the p-value comes from swapping forget and
stranger within each class: p = (1 + #{D* ≥ D}) / (1 + permutations). With one class D is ``scipy.stats.ks_2samp``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from unweave.audit.attack import Distance, DistanceResult
from unweave.audit.evidence import Evidence
from unweave.audit.measure import class_weights
from unweave.audit.outputs import Ensemble, Floats, Ints
from unweave.audit.thresholds import EntropyAttack, LossAttack, ThresholdAttack
from unweave.errors import DataError

PERMUTATIONS = 1999
CELLS = 4_000_000
"""Numbers held at once while permuting."""

Direction = Literal["more", "less"]


@dataclass(frozen=True)
class KolmogorovSmirnov:
    """The distance, its p-value, and on which side the forget samples are."""

    statistic: float
    above: float
    """How far forget samples are ahead, at most: max of F_H − F_F, mean over models."""
    below: float
    """How far they lag behind, at most: max of F_F − F_H."""
    p_value: float

    @property
    def direction(self) -> Direction:
        """Whether forget samples look more or less like members than strangers do."""
        return "more" if self.above >= self.below else "less"


def kolmogorov_smirnov(
    forget: ArrayLike,
    held_out: ArrayLike,
    classes: tuple[Ints, Ints] | None = None,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> KolmogorovSmirnov:
    """Compare two groups of scores, class by class.

    Args:
        forget: [n], or [N, n] for N models; high means "member".
        held_out: [m], or [N, m] for the same models.
        classes: of the samples of both groups; None if they are all alike.
        permutations: for the p-value.
        seed: of the permutations.

    Raises:
        DataError: shapes that do not fit, scores that are not finite, or a class without strangers.
    """
    groups = [np.atleast_2d(np.asarray(scores, dtype=np.float64)) for scores in (forget, held_out)]
    if any(g.ndim != 2 or g.size == 0 for g in groups) or len(groups[0]) != len(groups[1]):
        shapes = " and ".join(str(list(g.shape)) for g in groups)
        raise DataError(f"Invalid scores: shapes {shapes}. Expected [n] and [m], or [N, n] and [N, m].")
    values = np.concatenate(groups, axis=1)
    if not np.isfinite(values).all():
        raise DataError("Invalid scores: NaN or infinite values.")
    n, m = groups[0].shape[1], groups[1].shape[1]
    labels = classes or (np.zeros(n, dtype=np.int64), np.zeros(m, dtype=np.int64))
    steps = np.concatenate([np.full(n, -1 / n), class_weights(*labels)])  # of F_H − F_F at each sample
    curves = [_Steps.of(own) for own in values]
    above, below = (float(np.mean(side)) for side in zip(*(c.extremes(steps[None])[:, 0] for c in curves), strict=True))
    observed = float(np.mean([c.extremes(steps[None]).max() for c in curves]))
    strata, rng = np.concatenate(labels), np.random.default_rng(seed)
    beyond, left = 0, permutations
    while left:
        count = min(left, max(1, CELLS // len(steps)))
        drawn = _shuffled(steps, strata, count, rng)
        beyond += int((_mean_distance(curves, drawn) >= observed - 1e-12).sum())
        left -= count
    return KolmogorovSmirnov(observed, above, below, (1 + beyond) / (1 + permutations))


def two_sample(evidence: Evidence, *, permutations: int = PERMUTATIONS, seed: int = 0) -> list[DistanceResult]:
    """Both tests, on the margin and on the entropy, of every group of models that has held-out outputs.

    ``details`` holds each group's :class:`KolmogorovSmirnov`.

    Raises:
        DataError: the unlearned model has no held-out outputs, or a class has none.
    """
    if evidence.unlearned.held_out is None:
        raise DataError("Two-sample tests need outputs on held-out samples of the forgotten classes.")
    return [_result(kind(), evidence, permutations, seed) for kind in (LossAttack, EntropyAttack)]


def _result(attack: ThresholdAttack, evidence: Evidence, permutations: int, seed: int) -> DistanceResult:
    found: dict[str, KolmogorovSmirnov] = {}
    distances: dict[str, Distance] = {}
    for group, answers in evidence.groups():
        if answers.held_out is not None:
            test = found[group] = _test(attack, answers.forget, answers.held_out, permutations, seed)
            models, samples = answers.forget.logits.shape[:2]
            distances[group] = Distance(test.statistic, p_value=test.p_value, models=models, samples=samples)
    what = attack.title.lower()
    return DistanceResult(
        name=f"ks-{attack.name}",
        title=f"Kolmogorov–Smirnov, {what}",
        explanation=(
            f"The largest gap between how the {what} is distributed on the forget set and on strangers of the same "
            "classes, in either direction. 0: no difference, 1: no overlap."
        ),
        unlearned=distances["unlearned"],
        original=distances.get("original"),
        retrained=distances.get("retrained"),
        details=dict(found),
    )


def _test(
    attack: ThresholdAttack, forget: Ensemble, held_out: Ensemble, permutations: int, seed: int
) -> KolmogorovSmirnov:
    strangers = held_out.of_classes(np.unique(forget.labels).tolist())
    positives, negatives = (np.stack([attack.read(own) for own in side]) for side in (forget, strangers))
    classes = (forget.labels, strangers.labels)
    return kolmogorov_smirnov(positives, negatives, classes, permutations=permutations, seed=seed)


@dataclass(frozen=True)
class _Steps:
    """The order of one model's scores, so that each permutation costs one pass."""

    order: Ints
    last: Ints
    """Where in that order a run of equal scores ends: only there has a distribution function taken its value."""

    @classmethod
    def of(cls, values: Floats) -> _Steps:
        order = np.argsort(values, kind="stable")
        ends = np.append(np.diff(values[order]) > 0, True)
        return cls(order, np.flatnonzero(ends))

    def extremes(self, steps: Floats) -> Floats:
        """The largest F_H − F_F and the largest F_F − F_H for each row of steps [B, T], as [2, B]."""
        gaps = steps[:, self.order].cumsum(axis=1)[:, self.last]
        return np.asarray(np.maximum(np.stack([gaps.max(axis=1), (-gaps).max(axis=1)]), 0))


def _mean_distance(curves: list[_Steps], steps: Floats) -> Floats:
    return np.asarray(np.mean([c.extremes(steps).max(axis=0) for c in curves], axis=0))


def _shuffled(steps: Floats, strata: Ints, count: int, rng: np.random.Generator) -> Floats:
    """The steps with forget and stranger swapped at random within each class, [count, T]."""
    drawn = np.tile(steps, (count, 1))
    for c in np.unique(strata):
        own = np.flatnonzero(strata == c)
        drawn[:, own] = rng.permuted(drawn[:, own], axis=1)
    return drawn
