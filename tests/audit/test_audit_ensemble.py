"""The whole many-model audit on synthetic networks that remember much, a little, or nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from unweave.audit.attack import AttackResult, DistanceResult
from unweave.audit.ensemble import audit_ensemble, lacking
from unweave.audit.outputs import Ensemble
from unweave.errors import ConfigError, DataError

CLASSES, SAMPLES = 4, 80


def ensemble(models: int, memory: float = 0.0, seed: int = 0, samples: int = SAMPLES) -> Ensemble:
    shared, rng = np.random.default_rng(99), np.random.default_rng(seed)
    labels = np.arange(samples) % CLASSES
    logits = shared.normal(size=(samples, CLASSES)) + 0.7 * rng.normal(size=(models, samples, CLASSES))
    logits[:, np.arange(samples), labels] += 1 + memory
    return Ensemble.of(logits, labels)


@pytest.fixture(scope="module", params=[0.0, 2.0, -2.0], ids=["forgotten", "remembered", "overdone"])
def audit(request: pytest.FixtureRequest) -> tuple[float, list[AttackResult], list[DistanceResult]]:
    return request.param, *audit_ensemble(ensemble(20, 2.0, 1), ensemble(20, 0.0, 2), ensemble(5, request.param, 3))


def test_attacks_see_what_is_left(audit: tuple[float, list[AttackResult], list[DistanceResult]]) -> None:
    memory, attacks, _ = audit
    assert [found.attack.name for found in attacks] == ["xgboost", "lira", "u-lira"]
    for found in attacks:
        auc = found.unlearned.auc
        if memory == 0:
            assert auc.low <= 0.5 <= auc.high
        elif memory > 0 or found.attack.name == "u-lira":  # likelihood ratios find any difference, in their own favour
            assert auc.low > 0.7
        else:
            assert auc.high < 0.5  # less like a member than strangers: the Streisand effect


def test_controls_see_and_floors_do_not(audit: tuple[float, list[AttackResult], list[DistanceResult]]) -> None:
    for found in audit[1]:
        assert found.original is not None
        assert found.original.auc.low > 0.7
        if found.attack.name == "lira":
            assert not found.judged
            continue
        assert found.retrained is not None
        assert found.retrained.auc.low <= 0.5 <= found.retrained.auc.high
        assert found.judged
    assert audit[1][-1].original is not None
    assert audit[1][-1].original.models == (5, 20)  # as many as there are unlearned ones


def test_distances_are_beside_their_floor(audit: tuple[float, list[AttackResult], list[DistanceResult]]) -> None:
    memory, _, (_, mean) = audit
    assert mean.retrained is not None
    assert mean.original is not None
    assert mean.retrained.low is not None
    assert mean.retrained.high is not None
    assert mean.original.value > mean.retrained.high
    if memory == 0:
        assert mean.retrained.low * 0.8 < mean.unlearned.value < mean.retrained.high * 1.2
    else:
        assert mean.unlearned.value > mean.retrained.high


def test_results_are_documents(audit: tuple[float, list[AttackResult], list[DistanceResult]]) -> None:
    for found in (*audit[1], *audit[2]):
        assert json.loads(json.dumps(found.document()))["name"]


def test_u_lira_is_not_judged_where_it_sees_something_else() -> None:
    groups = ensemble(9, 2.0, 1), ensemble(9, 0.0, 2), ensemble(3, 0.0, 3)
    assert not audit_ensemble(*groups, same_original=True, only=["u-lira"])[0][0].judged
    attacks, _ = audit_ensemble(*groups, removed_classes=[0], only=["u-lira", "xgboost"])
    assert [found.judged for found in attacks] == [True, False]


def test_the_same_seed_gives_the_same_audit() -> None:
    groups = ensemble(4, 2.0, 1), ensemble(6, 0.0, 2), ensemble(3, 0.5, 3)
    one, two = ([found.document() for part in audit_ensemble(*groups, seed=7) for found in part] for _ in range(2))
    assert one == two


def test_one_unlearned_model_can_still_be_shown_to_the_classifier() -> None:
    groups = ensemble(3, 2.0, 1), ensemble(3, 0.0, 2), ensemble(1, 0.0, 3)
    attacks, distances = audit_ensemble(*groups)
    assert [found.attack.name for found in attacks] == ["xgboost"]
    assert distances == []
    assert not attacks[0].judged, "one model has no spread that an interval could show"
    assert set(lacking(3, 3, 1)) == {"lira", "u-lira", "klom"}
    with pytest.raises(DataError, match=r"u-lira needs at least 3 unlearned models \(there: 1\)"):
        audit_ensemble(*groups, only=["u-lira"])


def test_u_lira_without_models_for_a_floor_has_none() -> None:
    groups = ensemble(3, 2.0, 1), ensemble(5, 0.0, 2), ensemble(3, 0.0, 3)
    assert audit_ensemble(*groups, only=["u-lira"])[0][0].retrained is None


def test_errors_say_what_to_do() -> None:
    one, many = ensemble(1), ensemble(6)
    with pytest.raises(DataError, match=r"xgboost needs at least 3 full models \(there: 1\) and 3 retrained"):
        audit_ensemble(one, one, one)
    with pytest.raises(DataError, match="80 samples and unlearned has 40"):
        audit_ensemble(many, many, ensemble(3, samples=40))
    with pytest.raises(ConfigError, match="Unknown attack guess"):
        audit_ensemble(many, many, many, only=["guess"])
    with pytest.raises(DataError, match="A classifier has at least two"):
        Ensemble.of(np.zeros((3, 5, 1)), np.zeros(5, dtype=np.int64))
