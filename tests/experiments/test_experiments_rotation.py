"""The paper's attack in turns: who is on trial when, and what the mean over turns is worth."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from experiments.documents.rotation import MOST, mean_auc, turns
from unweave.audit import separate

SEEDS = list(range(50))


@pytest.mark.parametrize(("full", "tried", "retrained"), [(50, 20, 50), (12, 5, 12), (10, 10, 12), (3, 1, 3)])
def test_every_network_is_on_trial_equally_often_and_none_is_lost(full: int, tried: int, retrained: int) -> None:
    taken = turns(SEEDS[:full], SEEDS[:tried], SEEDS[:retrained])
    held = {50: 5, 12: 3, 10: 3, 3: 1}
    counts = [Counter(seed for turn in taken for seed in turn.full[-min(held[full], tried) :])]
    counts += [Counter(seed for turn in taken for seed in turn.retrained[-held[retrained] :])]
    for counted, all_of_them in zip(counts, (SEEDS[:tried], SEEDS[:retrained]), strict=True):
        assert set(counted) == set(all_of_them)
        assert len(set(counted.values())) == 1
    for turn in taken:
        assert sorted(turn.full) == SEEDS[:full]
        assert sorted(turn.retrained) == SEEDS[:retrained]


def test_numbers_that_share_no_factor_end_after_so_many_turns() -> None:
    assert len(turns(SEEDS[:47], SEEDS[:23], SEEDS[:47])) == MOST


def test_the_mean_over_turns_is_nearer_to_the_truth_and_its_interval_narrower() -> None:
    """Networks differ from each other by more than samples do: with twenty times as many of them it is seen."""
    rng = np.random.default_rng(0)

    def scores() -> np.ndarray:
        return np.asarray(rng.normal(size=(5, 400)) + rng.normal(scale=0.5, size=(5, 1)))

    found = [separate(scores(), scores(), same_samples=True, draws=200) for _ in range(20)]
    mean, single = mean_auc(found), [one.auc for one in found]
    assert mean["value"] == pytest.approx(np.mean([one.value for one in single]))
    assert mean["low"] < 0.5 < mean["high"]
    assert mean["high"] - mean["low"] < 0.5 * np.mean([one.high - one.low for one in single])
