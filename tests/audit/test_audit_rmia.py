"""RMIA against hand-computed shares and a slow matrix."""

from __future__ import annotations

import numpy as np
import pytest

from unweave.audit.outputs import Ensemble, Floats, Outputs
from unweave.audit.rmia import RMIA
from unweave.errors import ConfigError, DataError


def one(probabilities: list[float] | Floats) -> Outputs:
    """Two classes, label 0 with these probabilities."""
    p = np.asarray(probabilities)
    return Outputs.of(np.log(np.stack([p, 1 - p], -1)), np.zeros(len(p), dtype=np.int64))


def several(probabilities: list[list[float]] | Floats) -> Ensemble:
    p = np.asarray(probabilities)
    return Ensemble.of(np.log(np.stack([p, 1 - p], -1)), np.zeros(p.shape[1], dtype=np.int64))


def slow(p_x: Floats, bar_x: Floats, p_z: Floats, bar_z: Floats) -> Floats:
    ratio = (p_x / bar_x)[:, None] / (p_z / bar_z)[None, :]
    return np.asarray((ratio > 1).mean(1) + (ratio == 1).mean(1) / 2)


def test_three_strangers_by_hand() -> None:
    # a = 0.5: p̄ = 0.75 p_out + 0.25. References give every z 0.5, so p̄_z = 0.625, ratios 0.32, 0.8, 1.28.
    attack = RMIA().fit(one([0.2, 0.5, 0.8]), several([[0.5, 0.5, 0.5]]), a=0.5)
    # x: 0.9/(0.75·0.8+0.25) = 1.06 beats two; 0.9/(0.75·0.2+0.25) = 2.25 beats all; 0.1/0.625 = 0.16 beats none; and
    # 0.5/0.625 ties with the second.
    scores = attack.score(one([0.9, 0.9, 0.1, 0.5]), several([[0.8, 0.2, 0.5, 0.5]]))
    np.testing.assert_allclose(scores, [2 / 3, 1, 0, 0.5])


def test_sorting_equals_the_whole_matrix() -> None:
    rng = np.random.default_rng(0)
    p_x, p_z = rng.uniform(0.01, 0.99, 40), rng.uniform(0.01, 0.99, 60)
    r_x, r_z = rng.uniform(0.01, 0.99, (3, 40)), rng.uniform(0.01, 0.99, (3, 60))
    out = rng.uniform(size=(3, 40)) < 0.5
    out[0] |= ~out.any(0)
    bar_x = 0.65 * np.where(out, r_x, 0).sum(0) / out.sum(0) + 0.35
    found = RMIA().fit(one(p_z), several(r_z)).score(one(p_x), several(r_x), out)
    np.testing.assert_allclose(found, slow(p_x, bar_x, p_z, 0.65 * r_z.mean(0) + 0.35), atol=1e-12)


def test_only_references_that_did_not_see_a_sample_count() -> None:
    # Complementary halves: one OUT reference a sample, two for the population; the IN reference may say anything.
    attack = RMIA().fit(one([0.3, 0.6]), several([[0.4, 0.4], [0.6, 0.6]]))
    out = np.array([[True, False], [False, True]])
    scores = [attack.score(one([0.5, 0.5]), several([[0.2, seen], [seen, 0.2]]), out) for seen in (0.01, 0.99)]
    np.testing.assert_allclose(scores[0], scores[1])
    population = RMIA().fit(one([0.5]), several([[0.4], [0.6]]))._population
    assert population[0] == pytest.approx(np.log(0.5 / (0.65 * 0.5 + 0.35)))


def test_equals_are_at_one_half_and_members_above() -> None:
    rng = np.random.default_rng(1)

    def margins(n: int, memory: float = 0.0) -> tuple[Outputs, Ensemble]:
        difficulty = rng.normal(1, 2, n)
        labels = np.zeros(n, dtype=np.int64)
        target = np.stack([difficulty + memory + rng.normal(size=n), np.zeros(n)], -1)
        reference = difficulty + rng.normal(size=(2, n))
        return Outputs.of(target, labels), Ensemble.of(np.stack([reference, np.zeros((2, n))], -1), labels)

    attack = RMIA().fit(*margins(2000))
    # Uniform scores have a standard deviation of 0.29: 0.0065 over 2,000 samples.
    assert attack.score(*margins(2000)).mean() == pytest.approx(0.5, abs=0.03)
    assert attack.score(*margins(2000, memory=1)).mean() > 0.6
    assert attack.score(*margins(2000, memory=-1)).mean() < 0.4


def test_saturated_probabilities_are_told_apart() -> None:
    labels = np.zeros(1, dtype=np.int64)
    sure = [Outputs.of(np.array([[m, 0.0]]), labels) for m in (40.0, 60.0)]  # both have p = 1 in float64
    references = Ensemble.of(np.array([[[60.0, 0.0]]]), labels)
    attack = RMIA().fit(sure[0], references, a=0.0)
    assert attack.score(sure[1], references) == pytest.approx(1)
    assert attack.score(sure[0], references) == pytest.approx(0.5)


@pytest.mark.parametrize("a", [0.0, 1.0])
def test_the_bounds_of_a_are_allowed(a: float) -> None:
    scores = RMIA().fit(one([0.2, 0.8]), several([[0.5, 0.5]]), a=a).score(one([0.5]), several([[0.5]]))
    np.testing.assert_allclose(scores, [0.5])


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match="from 0 to 1"):
        RMIA().fit(one([0.5]), several([[0.5]]), a=1.5)
    attack = RMIA().fit(one([0.2, 0.8]), several([[0.5, 0.5], [0.5, 0.5]]))
    with pytest.raises(DataError, match="same models"):
        attack.score(one([0.5]), several([[0.5]]))
    pair = several([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(DataError, match="1 samples were seen by every reference"):
        attack.score(one([0.5, 0.5]), pair, np.array([[True, False], [True, False]]))
    with pytest.raises(DataError, match="Invalid out"):
        attack.score(one([0.5, 0.5]), pair, np.ones((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="samples"):
        attack.score(one([0.5]), pair)
