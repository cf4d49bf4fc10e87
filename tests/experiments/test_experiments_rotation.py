"""The paper's attack in turns: who is on trial when, and what the mean over turns is worth."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from experiments.documents.rotation import Asked, mean_auc, turns
from unweave.audit import separate

SEEDS = list(range(50))
HELD = {50: 5, 22: 3, 12: 3, 10: 3, 3: 1}


@pytest.mark.parametrize(
    ("full", "tried", "retrained", "count"), [(50, 20, 50, 40), (12, 5, 12, 8), (22, 20, 22, 56), (3, 1, 3, 3)]
)
def test_every_tried_network_meets_every_retrained_one(full: int, tried: int, retrained: int, count: int) -> None:
    taken = turns(SEEDS[:full], SEEDS[:tried], SEEDS[:retrained])
    met = Counter(
        (one, other)
        for turn in taken
        for one in turn.full[-min(HELD[full], tried) :]
        for other in turn.retrained[-HELD[retrained] :]
    )
    assert set(met) == {(one, other) for one in SEEDS[:tried] for other in SEEDS[:retrained]}
    assert len(taken) == count
    if tried % HELD[full] == retrained % HELD[retrained] == 0:
        assert set(met.values()) == {1}
    for turn in taken:
        assert sorted(turn.full) == SEEDS[:full]
        assert sorted(turn.retrained) == SEEDS[:retrained]


def test_the_networks_that_choose_settings_change_too() -> None:
    chosen = {tuple(turn.retrained[-10:-5]) for turn in turns(SEEDS, SEEDS[:20], SEEDS)}
    assert len(chosen) == 10


def asked_of(unlearned: np.ndarray, retrained: np.ndarray, held: int) -> list[Asked]:
    """The turns of some scores, [networks, n] each, by one classifier that never changes."""
    counts = len(unlearned), len(retrained)
    found = turns(range(counts[1]), range(counts[0]), range(counts[1]))
    pairs = [(turn.full[-held:], turn.retrained[-held:]) for turn in found]
    return [Asked(unlearned[one], one, retrained[other], other) for one, other in pairs]


def test_all_pairs_count_alike() -> None:
    rng = np.random.default_rng(0)
    unlearned, retrained = rng.normal(size=(20, 30)), rng.normal(size=(50, 30)) - 0.3
    expected = separate(unlearned, retrained, same_samples=True, draws=2).auc.value
    assert mean_auc(asked_of(unlearned, retrained, 5), draws=2)["value"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("tried", "retrained", "held"), [(20, 50, 5), (20, 22, 3), (10, 10, 3)])
def test_the_interval_is_about_as_wide_as_networks_scatter(tried: int, retrained: int, held: int) -> None:
    """Networks differ by more than samples do; whether blocks divide them or not, their spread is seen."""
    rng, found = np.random.default_rng(1), []
    for _ in range(40):
        groups = [rng.normal(size=(n, 40)) + rng.normal(scale=0.4, size=(n, 1)) for n in (tried, retrained)]
        found.append(mean_auc(asked_of(*groups, held), draws=60))
    inside = np.mean([one["low"] <= 0.5 <= one["high"] for one in found])
    needed = 2 * 1.96 * np.std([one["value"] for one in found])
    width = np.mean([one["high"] - one["low"] for one in found])
    assert inside >= 0.8
    assert 0.75 < width / needed < 1.5
