"""KLoM against numbers worked out by hand, and its floor."""

from __future__ import annotations

import numpy as np
import pytest

from unweave.audit.klom import BINS, CLIP, FLOOR, divergences, klom
from unweave.audit.outputs import Ensemble, Floats
from unweave.errors import ConfigError, DataError


def with_margins(margins: Floats) -> Ensemble:
    """Two classes: the margin is the difference of the logits."""
    logits = np.stack([margins, np.zeros_like(margins)], axis=-1)
    return Ensemble.of(logits, np.zeros(margins.shape[1], dtype=np.int64))


def by_hand(retrained: Floats, other: Floats) -> float:
    """One sample, one bin after the other."""
    a, b = np.clip(retrained, -CLIP, CLIP), np.clip(other, -CLIP, CLIP)
    edges = np.linspace(min(a.min(), b.min()), max(a.max(), b.max()), BINS + 1)
    p, q = (np.histogram(x, edges)[0] / len(x) for x in (a, b))  # numpy's last bin holds the maximum
    return sum(x * np.log(x / max(y, FLOOR)) for x, y in zip(p, q, strict=True) if x > 0)


def test_the_divergence_of_each_sample() -> None:
    rng = np.random.default_rng(0)
    retrained, other = rng.normal(0, 1, (30, 8)), rng.normal(0.5, 2, (20, 8))
    found = divergences(retrained, other)
    np.testing.assert_allclose(found, [by_hand(retrained[:, j], other[:, j]) for j in range(8)], atol=1e-12)
    turned = divergences(retrained, other, "unlearned||retrained")
    np.testing.assert_allclose(turned, [by_hand(other[:, j], retrained[:, j]) for j in range(8)], atol=1e-12)
    assert not np.allclose(found, turned)


def test_the_extremes() -> None:
    zero, one = np.zeros((4, 1)), np.ones((4, 1))
    assert divergences(zero, zero) == pytest.approx(0)
    assert divergences(zero, one) == pytest.approx(np.log(1 / FLOOR))
    assert divergences(np.full((4, 1), 1e4), np.full((4, 1), 1e5)) == pytest.approx(0)  # both clipped to 100


def test_the_largest_margin_is_counted() -> None:
    # Half of the retrained at 0 and half at the joint maximum, 1; the others all at 0: ½ log(½/1) + ½ log(½/FLOOR).
    retrained = np.array([[0.0], [0.0], [1.0], [1.0]])
    assert divergences(retrained, np.zeros((4, 1)))[0] == pytest.approx(0.5 * np.log(0.5) + 0.5 * np.log(0.5 / FLOOR))


def test_the_floor_falls_as_models_grow() -> None:
    rng = np.random.default_rng(1)
    floors = []
    for models in (10, 40, 160, 640):
        found = klom(with_margins(rng.normal(size=(models, 50))), with_margins(rng.normal(size=(2 * models, 50))))[1]
        assert found.retrained is not None
        floors.append(found.retrained.value)
        assert found.unlearned.value == pytest.approx(found.retrained.value, rel=0.25)
    assert floors == sorted(floors, reverse=True)
    assert floors[-1] < floors[0] / 10


def test_what_was_forgotten_stands_at_the_floor_and_the_original_above() -> None:
    rng = np.random.default_rng(2)
    unlearned, retrained, full = (rng.normal(s, 1, (n, 300)) for s, n in ((0, 30), (0, 60), (2, 30)))
    for found in klom(with_margins(unlearned), with_margins(retrained), with_margins(full)):
        assert found.original is not None
        assert found.retrained is not None
        assert found.unlearned.low is not None
        assert found.unlearned.high is not None
        assert found.retrained.low is not None
        assert found.retrained.high is not None
        assert found.unlearned.low <= found.unlearned.value <= found.unlearned.high
        assert found.unlearned.low < found.retrained.high
        assert found.retrained.low < found.unlearned.high
        assert found.original.value > found.retrained.high


def test_percentile_and_mean_are_of_the_samples_and_groups_are_of_one_size() -> None:
    rng = np.random.default_rng(3)
    p95, mean = klom(with_margins(rng.normal(size=(5, 40))), with_margins(rng.normal(size=(50, 40))))
    each = p95.details["per_sample"]["unlearned"]
    assert p95.unlearned.value == pytest.approx(np.quantile(each, 0.95))
    assert mean.unlearned.value == pytest.approx(each.mean())
    assert p95.retrained is not None
    assert (p95.unlearned.models, p95.retrained.models, p95.unlearned.samples) == (5, 5, 40)
    assert p95.original is None


def test_intervals_cover_the_mean_of_more_samples() -> None:
    # For these models, two thousand samples are the truth and 100 of them the audit: 95 % wanted, 85 of 100 at least
    # (binomial, chance 1e-4).
    rng = np.random.default_rng(4)
    unlearned, retrained = rng.normal(0.5, 1, (20, 2000)), rng.normal(0, 1, (40, 2000))
    truth = divergences(retrained[:20], unlearned).mean()
    held = 0
    for seed in range(100):
        some = rng.integers(2000, size=100)
        found = klom(with_margins(unlearned[:, some]), with_margins(retrained[:, some]), seed=seed)[1].unlearned
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    assert held >= 85


def test_the_same_seed_gives_the_same_interval() -> None:
    rng = np.random.default_rng(5)
    given = with_margins(rng.normal(size=(6, 30))), with_margins(rng.normal(size=(12, 30)))
    assert klom(*given, seed=1)[0].document() == klom(*given, seed=1)[0].document()
    assert klom(*given, seed=1)[1].document() != klom(*given, seed=2)[1].document()


def test_errors_say_what_to_do() -> None:
    one, three, four = (with_margins(np.zeros((n, 5))) for n in (1, 3, 4))
    with pytest.raises(DataError, match="at least 2 to compare and 4 retrained"):
        klom(one, four)
    with pytest.raises(DataError, match="3 retrained"):
        klom(four, three)
    with pytest.raises(DataError, match="samples"):
        klom(four, with_margins(np.zeros((4, 6))))
    with pytest.raises(ConfigError, match=r"Supported: retrained\|\|unlearned"):
        klom(four, four, direction="both")  # type: ignore[arg-type]
