"""How well scores tell two groups apart: values against theory, intervals against simulation."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm

from unweave.audit.measure import Separation, class_weights, separate
from unweave.errors import DataError


def normals(*shape: int, shift: float | np.ndarray = 0.0, seed: int = 0) -> np.ndarray:
    return shift + np.random.default_rng(seed).normal(size=shape)


def test_the_auc_is_mann_whitneys_with_ties() -> None:
    positives, negatives = np.round(normals(60, shift=0.5), 1), np.round(normals(80, seed=1), 1)
    expected = mannwhitneyu(positives, negatives).statistic / (60 * 80)
    assert separate(positives, negatives, draws=10).auc.value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shift", [-1.0, 0.0, 0.5, 2.0])
def test_a_planted_shift_gives_the_auc_of_theory(shift: float) -> None:
    found = separate(normals(4000, shift=shift), normals(4000, seed=1), draws=200)
    assert found.auc.value == pytest.approx(norm.cdf(shift / np.sqrt(2)), abs=0.015)
    assert found.auc.low < norm.cdf(shift / np.sqrt(2)) < found.auc.high
    assert found.balanced_accuracy == pytest.approx(max(norm.cdf(shift / 2), 0.5), abs=0.02)
    tpr = found.tpr_at(0.01)
    assert tpr is not None
    assert tpr.value == pytest.approx(norm.sf(norm.isf(0.01) - shift), abs=0.05)


def test_shuffled_groups_cannot_be_told_apart() -> None:
    pooled = np.random.default_rng(2).permutation(np.concatenate([normals(300, shift=3.0), normals(300, seed=1)]))
    found = separate(pooled[:300], pooled[300:], draws=300)
    assert found.auc.low < 0.5 < found.auc.high
    assert found.balanced_accuracy == pytest.approx(0.5, abs=0.06)


def test_perfect_and_blind_attacks() -> None:
    perfect, blind = separate(np.arange(10.0) + 100, np.arange(10.0)), separate(np.zeros(10), np.zeros(10))
    assert (perfect.auc.value, perfect.balanced_accuracy) == pytest.approx((1, 1))
    assert (blind.auc.value, blind.auc.low, blind.auc.high, blind.balanced_accuracy) == pytest.approx((0.5,) * 4)


def covers(found: Separation, truth: float) -> bool:
    return found.auc.low <= truth <= found.auc.high


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_interval_covers_for_one_model(shift: float) -> None:
    truth = norm.cdf(shift / np.sqrt(2))
    hits = [covers(separate(normals(60, shift=shift, seed=2 * i), normals(90, seed=2 * i + 1), draws=150), truth)
            for i in range(80)]  # fmt: skip
    assert 0.88 <= np.mean(hits) <= 0.99


def test_the_interval_covers_for_several_models_on_the_same_samples() -> None:
    rng = np.random.default_rng(0)
    hits = []
    for i in range(100):
        sample = rng.normal(size=60)
        groups = [sample + 0.5 * rng.normal(size=(5, 1)) + rng.normal(size=(5, 60)) for _ in range(2)]
        hits.append(covers(separate(*groups, same_samples=True, draws=150, seed=i), 0.5))
    assert np.mean(hits) >= 0.86  # N of N draws would give 0.85 or less where models differ


def test_three_models_vary_as_three_models_do() -> None:
    """Against fixed negatives the AUC is the mean of the models' own, whose standard error is known."""
    models = normals(3, 2000, shift=np.array([[-1.0], [0.0], [1.5]]))
    own = [separate(model, normals(2000, seed=1), draws=2).auc.value for model in models]
    found = separate(models, normals(2000, seed=1), draws=1000)
    assert found.auc.value == pytest.approx(np.mean(own))
    assert found.standard_error == pytest.approx(np.std(own, ddof=1) / np.sqrt(3), rel=0.08)


def test_models_that_differ_widen_the_interval() -> None:
    noise = normals(4, 50)
    alike = separate(noise, normals(4, 50, seed=1), draws=300)
    differ = separate(noise + np.array([[-2.0], [-1], [1], [2]]), normals(4, 50, seed=1), draws=300)
    assert differ.standard_error > 2 * alike.standard_error


def test_shared_draws_of_samples_and_of_models_narrow_it() -> None:
    sample = 3 * normals(60)
    pair = sample + 0.1 * normals(60, seed=1), sample + 0.1 * normals(60, seed=2)
    assert separate(*pair, same_samples=True).standard_error < 0.3 * separate(*pair).standard_error
    model = 3 * normals(5, 1)
    pair = model + normals(5, 60, seed=1), model + normals(5, 60, seed=2)
    assert separate(*pair, same_models=True).standard_error < 0.5 * separate(*pair).standard_error


def test_a_class_is_not_mistaken_for_membership() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [90, 10]), np.repeat([0, 1], [30, 270])
    scores = [3.0 * (group == 0) + rng.normal(size=len(group)) for group in labels]
    assert separate(*scores, draws=10).auc.value > 0.8
    matched = separate(*scores, classes=labels, draws=300)
    assert matched.auc.low < 0.5 < matched.auc.high
    assert abs(matched.auc.value - 0.5) < 0.06


def test_a_class_with_one_sample_is_no_certainty() -> None:
    """Drawn within classes, single samples would never vary, and the interval would collapse."""
    classes = np.arange(40), np.repeat(np.arange(40), 5)
    hits = []
    for i in range(60):
        rng = np.random.default_rng(i)
        hits.append(covers(separate(rng.normal(size=40), rng.normal(size=200), classes=classes, draws=150), 0.5))
    assert np.mean(hits) >= 0.9


def test_negatives_of_other_classes_are_left_out() -> None:
    own = separate(normals(20), normals(30, seed=1), classes=(np.zeros(20, int), np.zeros(30, int)))
    more = np.concatenate([normals(30, seed=1), np.full(500, 99.0)])
    both = separate(normals(20), more, classes=(np.zeros(20, int), np.repeat([0, 7], [30, 500])))
    assert both.samples == (20, 30)
    assert both.document() == own.document()


def test_class_weights_add_up_and_match() -> None:
    weights = class_weights(np.array([0, 0, 0, 2]), np.array([0, 2, 2, 1]))
    assert weights == pytest.approx([0.75, 0.125, 0.125, 0.0])
    with pytest.raises(DataError, match="class 1, 3"):
        class_weights(np.array([1, 3, 0]), np.array([0, 0]))


def test_low_false_positive_rates_need_negatives() -> None:
    few, some, many = (separate(normals(50), normals(n, seed=1), draws=20) for n in (99, 100, 1000))
    assert few.tpr_at(0.01) is None
    assert some.tpr_at(0.01) is not None
    assert some.tpr_at(0.001) is None
    assert many.tpr_at(0.001) is not None
    assert few.document()["tpr_at_1_percent"] is None


def test_detectable_auc_shrinks_with_the_samples() -> None:
    small, large = (separate(normals(n), normals(n, seed=1), draws=300).detectable_auc for n in (30, 1000))
    assert small == pytest.approx(0.5 + 2.8 * np.sqrt(61 / (12 * 900)), abs=0.04)
    assert 0.5 < large < 0.55


@pytest.mark.parametrize(
    "positives, negatives, settings, words",
    [
        ([1.0], [1.0, 2.0], {}, "at least two"),
        ([[[1.0, 2.0]]], [1.0, 2.0], {}, "shape"),
        ([1.0, np.nan], [1.0, 2.0], {}, "NaN"),
        ([1.0, 2.0], [1.0, np.inf], {}, "negative scores: NaN or inf"),
        ([1.0, 2.0], [1.0, 2.0, 3.0], {"same_samples": True}, "2 and 3 samples"),
        ([[1.0, 2.0]] * 2, [1.0, 2.0], {"same_models": True}, "2 and 1 models"),
        ([1.0, 2.0], [1.0, 2.0], {"classes": (np.zeros(3, int), np.zeros(2, int))}, "Classes of shape"),
        ([1.0, 2.0], [1.0, 2.0], {"classes": (np.array([0, 1]), np.zeros(2, int))}, "No sample of class 1"),
        ([1.0, 2.0], [1.0, 2.0], {"classes": (np.zeros(2, int), np.array([0, 1]))}, "class-matched negative"),
    ],
)
def test_bad_scores_are_refused(positives: list, negatives: list, settings: dict, words: str) -> None:
    with pytest.raises(DataError, match=words):
        separate(positives, negatives, **settings)


def test_the_document_is_plain_json_with_shares_and_a_whole_curve() -> None:
    found = separate(normals(3, 500, shift=1.0), normals(2, 700, seed=1), draws=50)
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    assert document["models"] == [3, 2]
    assert document["samples"] == [500, 700]
    assert sum(document["scores"]["positives"]) == pytest.approx(1)
    assert sum(document["scores"]["negatives"]) == pytest.approx(1)
    fpr, tpr = document["roc"]["fpr"], document["roc"]["tpr"]
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == pytest.approx((0, 0, 1, 1))
    assert len(fpr) <= 203
    assert np.trapezoid(tpr, fpr) == pytest.approx(document["auc"]["value"], abs=0.01)


def test_one_seed_one_answer() -> None:
    first, second, other = (separate(normals(30), normals(30, seed=1), seed=s, draws=50) for s in (1, 1, 2))
    assert first.document() == second.document()
    assert first.auc != other.auc
    assert first.auc_at(0.5).high < first.auc.high
