"""How margins of unlearned networks differ from those of retrained ones, against slow loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments.documents.margins import agreement, differences

NETWORKS, SAMPLES = 7, 80


def group(seed: int, hard: np.ndarray, noise: float = 1.0, networks: int = NETWORKS) -> np.ndarray:
    """Networks that see the same samples as hard, but for noise of their own; margins with ties."""
    own = noise * np.random.default_rng(seed).normal(size=(networks, len(hard)))
    return np.round(hard + own, 1)


@pytest.fixture
def hard() -> np.ndarray:
    return np.random.default_rng(0).normal(size=SAMPLES) * 2


def test_agreement_is_the_mean_over_pairs(hard: np.ndarray) -> None:
    margins = group(1, hard)
    pairs = [spearmanr(one, other)[0] for one, other in itertools.combinations(margins, 2)]
    assert agreement(margins) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_a_network_s_own_margins_are_no_part_of_the_truth_it_is_asked_about(hard: np.ndarray) -> None:
    retrained, unlearned, every = group(1, hard), group(2, hard), np.arange(SAMPLES)
    others = [np.delete(retrained, i, axis=0).mean(0) for i in range(NETWORKS)]
    expected = np.mean([spearmanr(one, rest)[0] for one, rest in zip(retrained, others, strict=True)])
    assert differences(retrained, retrained, every)["truth"] == pytest.approx(expected, abs=1e-12)
    expected = np.mean([spearmanr(one, retrained.mean(0))[0] for one in unlearned])
    assert differences(unlearned, retrained, every)["truth"] == pytest.approx(expected, abs=1e-12)


def test_what_is_higher_where_and_how_much_it_changes(hard: np.ndarray) -> None:
    retrained = group(1, hard)
    hardest = np.argsort(retrained.mean(0))[: SAMPLES // 4]
    known = retrained.copy()
    known[:, hardest] += 2
    found = differences(known, retrained, hardest)
    assert found["higher"] == pytest.approx(0.5)
    assert found["higher, hardest quarter"] == pytest.approx(2.0)
    assert found["spread"] == pytest.approx(1.0)
    wild = group(3, hard, noise=2.0, networks=60)
    assert differences(wild, group(4, hard, networks=60), hardest)["spread"] == pytest.approx(2.0, rel=0.1)
    assert agreement(wild) < agreement(retrained)
