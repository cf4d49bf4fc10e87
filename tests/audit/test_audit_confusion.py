"""The interclass-confusion test."""

from __future__ import annotations

import numpy as np
import pytest

from unweave.audit.confusion import confusion, confusion_left, swap_labels
from unweave.audit.outputs import Ensemble, Outputs
from unweave.errors import ConfigError, DataError

LABELS = np.arange(60) % 4


def predicting(predicted: list[int], labels: list[int]) -> Outputs:
    return Outputs.of(5.0 * np.eye(4)[predicted], labels)


def test_labels_are_swapped_both_ways_and_nowhere_else() -> None:
    swapped, chosen = swap_labels(LABELS, 1, 3, 5)
    assert len(chosen) == len(set(chosen)) == 10
    assert (np.flatnonzero(swapped != LABELS) == chosen).all()
    assert (swapped[chosen] == 4 - LABELS[chosen]).all()
    assert (LABELS[chosen] == 1).sum() == (LABELS[chosen] == 3).sum() == 5
    assert (np.bincount(swapped) == 15).all()
    assert (swap_labels(LABELS, 1, 3, 5)[1] == chosen).all()
    assert (swap_labels(LABELS, 1, 3, 5, seed=1)[1] != chosen).any()


def test_bad_swaps_are_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        swap_labels(LABELS, 1, 1, 5)
    with pytest.raises(ConfigError, match="Class 3 has 15"):
        swap_labels(LABELS, 3, 1, 16)
    with pytest.raises(ConfigError, match="Class 9 has 0"):
        swap_labels(LABELS, 9, 1, 1)
    with pytest.raises(DataError, match="whole numbers"):
        swap_labels(LABELS / 2, 0, 1, 1)


def test_only_mixing_up_the_two_counts() -> None:
    found = confusion_left(predicting([1, 0, 2, 0, 1, 3], [0, 0, 0, 1, 1, 2]), 0, 1)
    assert found.value == pytest.approx(2 / 5)  # the cat that is taken for a ship, and the 0 for a 2, do not count
    assert 0 < found.low < found.value < found.high < 1
    assert confusion_left(predicting([1, 0, 2, 0, 1, 3], [0, 0, 0, 1, 1, 2]), 1, 0) == found
    with pytest.raises(DataError, match="class 0 or 3"):
        confusion_left(predicting([1], [1]), 0, 3)
    with pytest.raises(ConfigError, match="twice"):
        confusion_left(predicting([1], [1]), 1, 1)


def test_three_groups_side_by_side() -> None:
    original, retrained = predicting([1, 1, 0, 0], [0, 0, 1, 1]), predicting([0, 0, 1, 1], [0, 0, 1, 1])
    unlearned = Ensemble(np.stack([original.logits, retrained.logits]), original.labels)
    found = confusion(unlearned, 0, 1, original=original, retrained=retrained).document()
    assert [found[group]["value"] for group in ("original", "unlearned", "retrained")] == [1.0, 0.5, 0.0]
    assert found["unlearned"]["models"] == 2
    assert found["retrained"]["samples"] == 4
    assert "original" not in confusion(unlearned, 0, 1).document()
