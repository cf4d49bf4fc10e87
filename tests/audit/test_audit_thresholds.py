"""Threshold attacks on outputs whose margins are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from synthetic import with_margins

from unweave.audit.outputs import Ensemble, Outputs
from unweave.audit.thresholds import ConfidenceAttack, EntropyAttack, LossAttack, ThresholdAttack, attack_held_out
from unweave.errors import DataError

ALL = [LossAttack, EntropyAttack, ConfidenceAttack]


def draw(n: int, mean: float, seed: int, share: tuple[float, ...] = (0.25,) * 4, by_class: float = 0.0) -> Outputs:
    rng = np.random.default_rng(seed)
    labels = rng.choice(4, size=n, p=share)
    return with_margins(mean + by_class * labels + rng.normal(size=n), labels)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("shift", [-0.8, 0.0, 0.8])
def test_the_auc_is_that_of_theory(kind: type[ThresholdAttack], shift: float) -> None:
    """At margins around 8 all three numbers are monotone in the margin."""
    found = attack_held_out(kind(), draw(600, 8 + shift, 1), draw(1500, 8, 2), draws=300)
    assert found.auc.low < norm.cdf(shift / np.sqrt(2)) < found.auc.high
    assert found.auc.value == pytest.approx(norm.cdf(shift / np.sqrt(2)), abs=0.03)


@pytest.mark.parametrize("kind", ALL)
def test_saturated_outputs_can_still_be_told_apart(kind: type[ThresholdAttack]) -> None:
    """At margins of 800 all probabilities are 0 or 1 in floating point."""
    assert attack_held_out(kind(), draw(200, 803, 1), draw(200, 800, 2), draws=50).auc.value > 0.95


@pytest.mark.parametrize("kind", ALL)
def test_class_imbalance_creates_no_auc(kind: type[ThresholdAttack]) -> None:
    forget = draw(300, 5, 1, (0.05, 0.05, 0.1, 0.8), by_class=3)
    held_out = draw(900, 5, 2, (0.6, 0.2, 0.1, 0.1), by_class=3)
    assert attack_held_out(kind(), forget, held_out, draws=50).auc.value == pytest.approx(0.5, abs=0.06)


def test_classes_of_their_own_threshold_see_more() -> None:
    forget, held_out = draw(400, 6, 1, by_class=4), draw(800, 5, 2, by_class=4)
    fitted = attack_held_out(LossAttack(), forget, held_out, draws=50).auc.value
    assert fitted == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.04)
    assert norm.cdf(1 / np.sqrt(2)) - 0.04 > np.mean(LossAttack().score(forget)[:, None] > LossAttack().score(held_out))


def test_fitting_to_few_strangers_does_not_bias() -> None:
    found = [attack_held_out(LossAttack(), draw(40, 5, 3 * i), draw(60, 5, 3 * i + 1), draws=2) for i in range(150)]
    assert np.mean([f.auc.value for f in found]) == pytest.approx(0.5, abs=0.015)


def test_only_the_label_tells_a_confident_mistake_from_a_right_answer() -> None:
    wrong = with_margins(np.full(50, -9.0), np.zeros(50, int), classes=2)
    right = with_margins(np.full(50, 8.0), np.zeros(50, int), classes=2)
    assert attack_held_out(LossAttack(), wrong, right, draws=2).auc.value == pytest.approx(0)
    assert attack_held_out(EntropyAttack(), wrong, right, draws=2).auc.value == pytest.approx(1)
    assert attack_held_out(ConfidenceAttack(), wrong, right, draws=2).auc.value == pytest.approx(1)


def test_several_models_are_fitted_one_by_one() -> None:
    offset = np.array([0.0, 30.0, 60.0])  # far apart: without a centre of their own they would hide the shift
    groups = []
    for mean, seed in ((6.0, 1), (5.0, 2)):
        models = [draw(300, mean + o, seed) for o in offset]
        groups.append(Ensemble(np.stack([m.logits for m in models]), models[0].labels))
    found = attack_held_out(LossAttack(), *groups, draws=50)
    assert found.models == (3, 3)
    assert found.auc.value == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.04)
    with pytest.raises(DataError, match="3 models on the forget set and 2"):
        attack_held_out(LossAttack(), groups[0], groups[1].take(slice(2)))


def test_the_attack_passed_in_is_left_alone() -> None:
    attack, forget = LossAttack(), draw(50, 5, 1)
    attack_held_out(attack, forget, draw(50, 5, 2), draws=2)
    assert np.array_equal(attack.score(forget), forget.margins())


def test_a_class_without_strangers_is_refused() -> None:
    forget, held_out = draw(50, 5, 1), draw(50, 5, 2).without_classes([2])
    with pytest.raises(DataError, match="class 2"):
        attack_held_out(LossAttack(), forget, held_out)
    with pytest.raises(DataError, match="class 2"):
        LossAttack().fit(held_out).score(forget)


def test_one_class_only() -> None:
    found = attack_held_out(LossAttack(), draw(80, 6, 1, (0, 0, 0, 1)), draw(300, 5, 2), draws=50)
    assert found.auc.value > 0.65
    assert found.samples[1] < 100
