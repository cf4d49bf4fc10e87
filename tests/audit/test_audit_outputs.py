"""Outputs: what is accepted, and what is read off them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import in_batches, state_of
from torch import nn

from unweave.audit.outputs import Ensemble, Outputs, collect, entropies, log_entropies, same_samples
from unweave.behaviour import outcomes
from unweave.errors import DataError

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.normal(size=(50, 4))
LABELS = RNG.integers(4, size=50)


def test_read_outs_are_those_of_unweave_outcomes() -> None:
    outputs = Outputs.of(LOGITS, LABELS)
    theirs = outcomes.read(torch.from_numpy(LOGITS), torch.from_numpy(LABELS))
    assert np.allclose(outputs.margins(), theirs.margin, rtol=1e-12)
    assert np.allclose(outputs.entropies(), theirs.entropy, rtol=1e-12)
    assert np.allclose(outputs.losses(), theirs.loss, rtol=1e-12)
    assert (outputs.wrong() == theirs.wrong.numpy()).all()


def test_log_probabilities_are_logits_too() -> None:
    outputs = Outputs.of(LOGITS, LABELS)
    again = Outputs.of(outputs.log_probabilities(), LABELS)
    assert np.allclose(again.margins(), outputs.margins())
    assert np.allclose(again.entropies(), outputs.entropies())


@pytest.mark.parametrize("margin", [0.0, 1.0, 30.0, 50.0, 700.0, 5000.0])
def test_the_entropy_of_saturated_outputs_is_exact(margin: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        found = float(log_entropies(np.array([margin, 0.0])))
    if margin < 30:
        p = 1 / (1 + np.exp(-margin))
        assert found == pytest.approx(np.log(-p * np.log(p) - (1 - p) * np.log(1 - p)), rel=1e-12)
    else:
        assert found == pytest.approx(np.log1p(margin) - margin, rel=1e-12)


def test_equal_logits_have_the_largest_entropy() -> None:
    assert entropies(np.full((2, 7), 1e4)) == pytest.approx(np.log(7))
    assert entropies(np.array([[5.0, 5.0, -1e6]])) == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    "logits, labels, words",
    [
        (np.zeros(5), [0] * 5, r"shape \[5\]"),
        (np.zeros((2, 3, 4)), [0] * 3, "shape"),
        (np.zeros((0, 3)), [], "holds nothing"),
        (np.zeros((5, 1)), [0] * 5, "at least two.*0 and z"),
        (np.array([[np.nan, 0.0], [1.0, 0.0]]), [0, 1], "in 1 rows"),
        (np.array([[np.inf, 0.0]]), [0], "infinite"),
        (np.array([[0.2, 0.8], [1.0, 0.0]]), [0, 1], "probabilities"),
        (LOGITS, LABELS[:-1], "labels for 50 samples"),
        (LOGITS, LABELS.astype(float), "whole numbers"),
        (LOGITS, LABELS + 1, "1 to 4 for 4 classes"),
        (LOGITS, LABELS - 1, "-1 to 2"),
        (LOGITS, [[0], [1, 2]], "no array"),
        ("logits", [0], "not an array"),
        (torch.zeros(2, 3, requires_grad=True), [0, 1], "requires grad"),
    ],
)
def test_bad_outputs_are_refused(logits: Any, labels: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Outputs.of(logits, labels)


def test_rows_that_happen_to_sum_to_one_are_no_probabilities() -> None:
    assert len(Outputs.of([[2.0, -1.0], [0.5, 0.5]], [0, 1])) == 2


def test_an_ensemble_is_its_models() -> None:
    ensemble = Ensemble.of(np.stack([LOGITS, -LOGITS]), LABELS)
    assert (len(ensemble), ensemble.samples, ensemble.classes) == (2, 50, 4)
    assert np.array_equal(ensemble.margins()[1], Outputs.of(-LOGITS, LABELS).margins())
    assert set(ensemble.of_classes([1, 3]).labels) == {1, 3}
    assert len(ensemble.take(slice(1)).logits) == 1
    with pytest.raises(DataError, match="models, samples, classes"):
        Ensemble.of(LOGITS, LABELS)


def test_choosing_classes() -> None:
    outputs = Outputs.of(LOGITS, LABELS)
    some, rest = outputs.of_classes([0, 2]), outputs.without_classes([0, 2])
    assert set(some.labels) == {0, 2}
    assert set(rest.labels) == {1, 3}
    assert len(some) + len(rest) == 50
    assert some.margins()[0] == outputs.margins()[np.isin(LABELS, [0, 2])][0]


def test_collect_names_the_batch_whose_labels_are_no_classes() -> None:
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 2])
    with pytest.raises(DataError, match="batch 1 of the held out loader: Labels from 1 to 2 with 2 classes"):
        collect(nn.Linear(3, 2), [(x[:2], y[:2]), (x[2:], y[2:])], "held out")


def test_collect_reads_in_eval_mode_and_leaves_the_model_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)).train()
    x, y = torch.randn(20, 3), torch.arange(20) % 4
    before = state_of(model)
    outputs = collect(model, in_batches(x, y, 6))
    assert state_of(model) == before
    with torch.no_grad():
        assert np.allclose(outputs.logits, model.eval()(x).numpy(), atol=1e-6)
    assert (outputs.labels == y.numpy()).all()


def test_outputs_on_other_samples_are_not_compared() -> None:
    outputs, shuffled = Outputs.of(LOGITS, LABELS), Outputs.of(LOGITS, LABELS[::-1])
    same_samples(first=outputs, second=Ensemble.of(LOGITS[None], LABELS))
    with pytest.raises(DataError, match="first and second differ"):
        same_samples(first=outputs, second=shuffled)
    with pytest.raises(DataError, match="50 samples and b has 49"):
        same_samples(a=outputs, b=outputs.where(np.arange(49)))
    with pytest.raises(DataError, match="4 classes and b has 5"):
        same_samples(a=outputs, b=Outputs.of(np.pad(LOGITS, ((0, 0), (0, 1))), LABELS))
