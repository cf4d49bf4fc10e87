"""The paper's attack on synthetic logits: what it learns from, what it finds, what it must not see."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import precision_recall_curve

from unweave.audit.measure import separate
from unweave.audit.outputs import Ensemble
from unweave.audit.shadow_classifier import GRID, TREES, ShadowClassifier, Split, best_f1, features
from unweave.errors import ConfigError, DataError

CLASSES, SAMPLES = 4, 80


def ensemble(models: int, memory: float = 0.0, seed: int = 0, labels: np.ndarray | None = None) -> Ensemble:
    """Models that scatter around one opinion a sample, the label's logit raised by ``memory``."""
    shared, rng = np.random.default_rng(99), np.random.default_rng(seed)
    answers = np.arange(SAMPLES) % CLASSES if labels is None else labels
    logits = shared.normal(size=(SAMPLES, CLASSES)) + 0.7 * rng.normal(size=(models, SAMPLES, CLASSES))
    logits[:, np.arange(SAMPLES), answers] += 1 + memory
    return Ensemble.of(logits, answers)


@pytest.fixture(scope="module")
def fitted() -> ShadowClassifier:
    return ShadowClassifier().fit(ensemble(20, 2.0, 1), ensemble(20, 0.0, 2))


@pytest.mark.parametrize("models, sizes", [(50, (40, 5, 5)), (10, (4, 3, 3)), (3, (1, 1, 1)), (20, (14, 3, 3))])
def test_models_are_split_as_in_the_paper_but_never_one_where_there_are_nine(
    models: int, sizes: tuple[int, int, int]
) -> None:
    split = Split.of(models, "full")
    parts = [set(range(models)[part]) for part in (split.train, split.validation, split.test)]
    assert tuple(map(len, parts)) == sizes
    assert set.union(*parts) == set(range(models))
    assert sum(map(len, parts)) == models


@pytest.mark.parametrize("models, tested, sizes", [(14, 5, (6, 3, 5)), (12, 3, (6, 3, 3)), (50, 1, (44, 5, 1))])
def test_those_to_test_may_be_named_and_stay_the_last(models: int, tested: int, sizes: tuple[int, int, int]) -> None:
    split = Split.of(models, "full", tested)
    parts = [list(range(models)[part]) for part in (split.train, split.validation, split.test)]
    assert tuple(map(len, parts)) == sizes
    assert [model for part in parts for model in part] == list(range(models))
    assert split.tested == tested


@pytest.mark.parametrize("tested", [0, 9, 12])
def test_so_many_to_test_that_none_is_left_to_learn_from_are_refused(tested: int) -> None:
    with pytest.raises(DataError, match=rf"{tested} of 12 full models .* Supported: 1 to 8\.$"):
        Split.of(12, "full", tested)


def test_members_score_higher(fitted: ShadowClassifier) -> None:
    full, retrained = fitted.held_out(ensemble(20, 2.0, 1), ensemble(20, 0.0, 2))
    assert len(full) == len(retrained) == 3
    control = separate(fitted.score(full), fitted.score(retrained), same_samples=True, draws=200).auc
    # The label's logit alone, σ = 0.7 in each, would reach Φ(2 / (0.7 √2)) = 0.98 if every sample's centre were known.
    assert control.low > 0.75
    assert fitted.validation_f1 > 0.75


def test_equals_are_at_one_half(fitted: ShadowClassifier) -> None:
    scores = [fitted.score(ensemble(5, 0.0, seed)) for seed in (11, 12)]
    found = separate(*scores, same_samples=True, draws=300).auc
    assert found.low <= 0.5 <= found.high


def test_shuffled_groups_teach_nothing() -> None:
    full, retrained = ensemble(10, 2.0, 1), ensemble(10, 0.0, 2)
    mixed = np.random.default_rng(0).permutation(np.concatenate([full.logits, retrained.logits]))
    halves = [Ensemble.of(half, full.labels) for half in (mixed[:10], mixed[10:])]
    attack = ShadowClassifier().fit(*halves)
    scores = [attack.score(ensemble(8, 1.0, seed)) for seed in (11, 12)]
    found = separate(*scores, same_samples=True, draws=300).auc
    assert found.low <= 0.5 <= found.high


def test_the_settings_are_chosen_and_named(fitted: ShadowClassifier) -> None:
    assert {"max_depth": 10, "learning_rate": 0.2} in GRID  # the paper's own are among them
    assert max(TREES) == 100
    chosen = {key: value for key, value in fitted.settings.items() if key != "trees"}
    assert chosen in GRID
    assert fitted.settings["trees"] in TREES


def test_the_choice_is_the_best_on_the_validation_models(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ensemble(10, 1.0, 1), ensemble(10, 0.0, 2)
    found = ShadowClassifier().fit(*groups).validation_f1
    alone = []
    for setting in GRID:
        monkeypatch.setattr("unweave.audit.shadow_classifier.GRID", (setting,))
        alone.append(ShadowClassifier().fit(*groups).validation_f1)
    assert found == max(alone)
    assert min(alone) < found


def test_the_same_seed_gives_the_same_scores() -> None:
    groups, new = (ensemble(6, 2.0, 1), ensemble(6, 0.0, 2)), ensemble(2, 1.0, 3)
    one, two, other = (ShadowClassifier(seed=seed).fit(*groups).score(new) for seed in (4, 4, 5))
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


def test_test_models_are_not_learnt_from() -> None:
    full, retrained, new = ensemble(6, 2.0, 1), ensemble(6, 0.0, 2), ensemble(2, 1.0, 3)
    before = ShadowClassifier().fit(full, retrained).score(new)
    logits = full.logits.copy()
    logits[-1] = 100 * np.random.default_rng(0).normal(size=logits[-1].shape)
    after = ShadowClassifier().fit(Ensemble.of(logits, full.labels), retrained).score(new)
    np.testing.assert_array_equal(before, after)


def test_features_are_softmax_and_label() -> None:
    given = ensemble(2)
    rows = features(given, np.arange(CLASSES)).reshape(2, SAMPLES, 2 * CLASSES)
    np.testing.assert_allclose(rows[..., :CLASSES], softmax(given.logits, -1), rtol=1e-6)
    np.testing.assert_array_equal(rows[1, :, CLASSES:], np.eye(CLASSES)[given.labels])


def test_removed_classes_leave_the_feature() -> None:
    given = ensemble(2)
    rows = features(given, np.array([0, 3])).reshape(2, SAMPLES, 4)
    np.testing.assert_allclose(rows[..., :2], softmax(given.logits, -1)[..., [0, 3]], rtol=1e-6)  # not renormalised
    np.testing.assert_array_equal(rows[0, :, 2:], np.eye(CLASSES)[given.labels][:, [0, 3]])
    forgotten = ensemble(2, labels=np.full(SAMPLES, 1))
    assert features(forgotten, np.array([0, 3])).shape[1] == 2  # no label left


def test_what_is_only_in_the_removed_class_is_not_seen() -> None:
    # The two kinds of models differ by how classes 1 and 2 share what they have together; neither's entry is left.
    labels = np.full(SAMPLES, 1)
    full, retrained = (ensemble(8, 0.0, seed, labels) for seed in (1, 2))
    logits = full.logits.copy()
    both = np.logaddexp(logits[..., 1], logits[..., 2])
    logits[..., 1], logits[..., 2] = both + np.log(0.999), both + np.log(0.001)
    full = Ensemble.of(logits, labels)
    seen = ShadowClassifier().fit(full, retrained)
    blind = ShadowClassifier().fit(full, retrained, removed_classes=[1, 2])
    assert seen.validation_f1 > 0.95
    assert blind.validation_f1 < 0.75  # accusing everybody has 0.67


def test_best_f1_is_the_maximum_of_the_curve() -> None:
    rng = np.random.default_rng(0)
    answers = rng.integers(0, 2, 300).astype(np.float32)
    scores = np.round(answers + rng.normal(size=300), 1)  # with ties
    precision, recall, _ = precision_recall_curve(answers, scores)
    expected = (2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()
    assert best_f1(scores, answers) == pytest.approx(expected)
    assert best_f1(np.zeros(4), np.array([1, 0, 1, 0])) == pytest.approx(2 / 3)


def test_errors_say_what_to_do() -> None:
    three = ensemble(3)
    with pytest.raises(DataError, match="1 full model: at least 3"):
        ShadowClassifier().fit(ensemble(1), three)
    with pytest.raises(DataError, match="2 retrained models: at least 3"):
        ShadowClassifier().fit(three, ensemble(2))
    with pytest.raises(DataError, match="labels"):
        ShadowClassifier().fit(three, ensemble(3, labels=np.zeros(SAMPLES, dtype=np.int64)))
    with pytest.raises(DataError, match="At least two must be left"):
        ShadowClassifier().fit(three, three, removed_classes=[0, 1, 2])
    with pytest.raises(DataError, match="Supported: 0 to 3"):
        ShadowClassifier().fit(three, three, removed_classes=[4])


def test_without_xgboost_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ConfigError, match=r"pip install 'unweave\[audit\]'"):
        ShadowClassifier().fit(ensemble(3), ensemble(3))
