"""Read-outs: values by hand, intervals by simulation."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest
from helpers import grams_from, spectrum_gram
from jsonschema import Draft202012Validator
from scipy.stats import binomtest
from synthetic import with_margins

from unweave.audit import readouts
from unweave.audit.confusion import confusion
from unweave.audit.leakage import leakage
from unweave.audit.outputs import Ensemble, Outputs
from unweave.audit.thresholds import LossAttack, attack_held_out
from unweave.errors import ConfigError, DataError

NAMES = ["airplane", "bird", "cat", "ship"]


def wrong_on(wrong: np.ndarray, labels: np.ndarray | None = None) -> Outputs:
    """Outputs that are wrong exactly there."""
    labels = np.zeros(len(wrong), dtype=np.int64) if labels is None else labels
    return with_margins(np.where(wrong, -5.0, 5.0), labels)


@pytest.mark.parametrize("wrong, n", [(0, 10), (10, 10), (3, 40), (137, 1000)])
def test_the_error_of_one_model_is_percent_with_wilsons_interval(wrong: int, n: int) -> None:
    found = readouts.error(wrong_on(np.arange(n) < wrong))
    bounds = binomtest(wrong, n).proportion_ci(method="wilson")
    assert found["value"] == pytest.approx(100 * wrong / n)
    assert (found["low"], found["high"]) == pytest.approx((100 * bounds.low, 100 * bounds.high), abs=1e-9)
    assert found["samples"] == n


@pytest.mark.parametrize("p, n", [(0.02, 60), (0.3, 40)])
def test_wilsons_interval_covers(p: float, n: int) -> None:
    rng = np.random.default_rng(0)
    found = [readouts.proportion(rng.random(n) < p) for _ in range(400)]
    assert 0.92 <= np.mean([i.low <= p <= i.high for i in found]) <= 1


@pytest.mark.parametrize("model_effect, sample_effect", [(0.0, 0.0), (0.1, 0.0), (0.0, 0.3), (0.08, 0.2)])
def test_the_interval_of_several_models_covers(model_effect: float, sample_effect: float) -> None:
    """Samples and models both vary; the truth is the error of all models on all samples."""
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(300):
        chance = 0.4 + rng.uniform(-1, 1, (4, 1)) * model_effect + rng.uniform(-1, 1, 80) * sample_effect
        found = readouts.proportion(rng.random((4, 80)) < chance)
        hits.append(found.low <= 0.4 <= found.high)
    assert np.mean(hits) >= 0.9


def test_three_models_are_few() -> None:
    """Many samples, three models that differ: 91.5 % in 2,000 trials, short of 95 %; z in place of t: 82 %."""
    rng = np.random.default_rng(3)
    found = [readouts.proportion(rng.random((3, 500)) < 0.4 + 0.1 * rng.normal(size=(3, 1))) for _ in range(1000)]
    assert 0.89 <= np.mean([i.low <= 0.4 <= i.high for i in found]) <= 0.94


def test_models_without_errors_count_for_nothing() -> None:
    one, ten = readouts.proportion(np.zeros(50)), readouts.proportion(np.zeros((10, 50)))
    assert one.value == ten.value == ten.low == 0
    assert ten.high >= one.high


def test_an_ensemble_of_one_is_one_model() -> None:
    outputs = wrong_on(np.arange(30) < 7)
    assert readouts.error(Ensemble(outputs.logits[None], outputs.labels)) == readouts.error(outputs)


def test_errors_by_class_name_only_classes_that_are_there() -> None:
    labels = np.array([0, 0, 0, 0, 3, 3])
    found = readouts.errors_by_class(wrong_on(np.array([1, 0, 0, 0, 1, 1]), labels), NAMES)
    assert {name: (e["value"], e["samples"]) for name, e in found.items()} == {"airplane": (25, 4), "ship": (100, 2)}
    assert list(readouts.errors_by_class(wrong_on(np.zeros(6), labels), lambda c: f"class {c}")) == [
        "class 0",
        "class 3",
    ]
    with pytest.raises(DataError, match="2 class names"):
        readouts.errors_by_class(wrong_on(np.zeros(6), labels), NAMES[:2])


def test_a_paired_difference_knows_the_samples_are_the_same() -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(300) < 0.4
    a, b = wrong_on(hard), wrong_on(hard & (rng.random(300) < 0.85))
    found = readouts.paired_difference(a, b)
    assert found.value == pytest.approx(100 * (a.wrong().mean() - b.wrong().mean()))
    assert found.low > 0
    assert found.high - found.low < 7  # two separate samples of 300 would give about 15 points
    back = readouts.paired_difference(b, a)
    assert (back.value, back.low, back.high) == pytest.approx((-found.value, -found.high, -found.low))
    with pytest.raises(DataError, match="samples"):
        readouts.paired_difference(a, b.where(np.arange(10)))


@pytest.mark.parametrize("models", [1, 4])
def test_the_interval_of_a_paired_difference_covers(models: int) -> None:
    """0.3 · (1 − 0.8) = 6 points more in a than in b."""
    rng = np.random.default_rng(2)
    hits = []
    for _ in range(300):
        hard = rng.random(100) < 0.3
        groups = [np.tile(hard, (models, 1)), hard & (rng.random((models, 100)) < 0.8)]
        a, b = (Ensemble(np.stack([wrong_on(w).logits for w in g]), np.zeros(100, dtype=np.int64)) for g in groups)
        found = readouts.paired_difference(a, b)
        hits.append(found.low <= 6 <= found.high)
    assert np.mean(hits) >= 0.92


def test_no_disagreement_is_no_certainty() -> None:
    same = wrong_on(np.arange(20) < 10)
    found = readouts.paired_difference(same, same)
    assert found.low < -5 < 5 < found.high
    nothing = readouts.paired_difference(wrong_on(np.zeros(20)), wrong_on(np.zeros(20)))
    assert found.value == nothing.value == 0
    assert nothing.low < -10
    assert nothing.high > 10


def test_destinations_of_a_forgotten_class() -> None:
    logits = np.array([[9.0, 5, 0, 1], [0, 5, 0, 9], [0, 1, 0, 9], [0, 9, 0, 0], [0, 0, 9, 0]])
    outputs = Outputs.of(logits, [0, 0, 0, 0, 2])
    assert readouts.destinations(outputs, 0, NAMES) == {"airplane": 0.25, "bird": 0.25, "cat": 0.0, "ship": 0.5}
    kept = readouts.destinations(outputs, 0, NAMES, kept=[1, 2, 3])
    assert kept == {"bird": 0.5, "cat": 0.0, "ship": 0.5}
    twice = Ensemble(np.stack([logits, logits]), outputs.labels)
    assert readouts.destinations(twice, 0, NAMES) == readouts.destinations(outputs, 0, NAMES)
    with pytest.raises(DataError, match="bird"):
        readouts.destinations(outputs, 1, NAMES)


def test_log_entropy_is_finite_and_leaves_removed_classes_out() -> None:
    outputs = Outputs.of([[50.0, 0, -1e3], [0, 0, 900], [0, 0, 0]], [0, 1, 2])
    found = readouts.log_entropy(outputs)
    assert found[0] == pytest.approx((np.log(51) - 50) / np.log(10))
    assert found[1] == pytest.approx((np.log(2 * 901) - 900) / np.log(10))
    assert readouts.log_entropy(outputs, [2]) == pytest.approx([found[0], *[np.log10(np.log(2))] * 2])
    with pytest.raises(ConfigError, match="leaves 1"):
        readouts.log_entropy(outputs, [0, 1])
    with pytest.raises(ConfigError, match="0 to 2"):
        readouts.log_entropy(outputs, [3])


def valid(kind: str, document: object) -> None:
    schema = json.loads((files("unweave.report") / "schema.json").read_text("utf-8"))
    Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": schema["$defs"]}).validate(document)


def test_documents_are_those_of_the_reports_schema() -> None:
    outputs = wrong_on(np.arange(20) < 5)
    many = Ensemble(np.stack([outputs.logits] * 3), outputs.labels)
    for answer in (outputs, many):
        valid("error", readouts.error(answer))
        valid("entropy", readouts.entropy_histograms({"unlearned": {"held out": answer}})[0])
        shares = readouts.destinations(answer, 0, NAMES)
        valid("destination", {"model": "unlearned", "class": "airplane", "shares": shares})
        valid("distance", confusion(answer, 0, 1, original=answer).document())
        valid("separation", attack_held_out(LossAttack(), answer, answer, draws=5).document())
    valid("leakage", leakage(grams_from({"head": spectrum_gram([1.0, 2.0])}))[0])


def test_entropy_histograms_share_their_edges() -> None:
    rng = np.random.default_rng(0)
    groups = {
        model: {
            part: with_margins(rng.normal(mean, 2, 300), rng.integers(4, size=300)) for part in ("forget", "held out")
        }
        for model, mean in (("original", 20.0), ("unlearned", 2.0))
    }
    found = json.loads(json.dumps(readouts.entropy_histograms(groups, [3]), allow_nan=False))
    assert [(h["model"], h["part"]) for h in found] == [(m, p) for m in groups for p in ("forget", "held out")]
    assert len({tuple(h["edges"]) for h in found}) == 1
    assert all(sum(h["shares"]) == pytest.approx(1) for h in found)
    assert found[0]["median"] < found[2]["median"]
    flat = {"original": {"forget": Outputs.of(np.full((5, 4), 2.0), np.zeros(5, int))}}
    assert readouts.entropy_histograms(flat)[0]["shares"][0] == 1
    assert readouts.entropy_histograms({}) == []
