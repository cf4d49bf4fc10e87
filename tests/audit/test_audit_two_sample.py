"""Kolmogorov–Smirnov tests against scipy's, and under class imbalance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest
from synthetic import with_margins

from unweave.audit.evidence import Answers, Evidence
from unweave.audit.two_sample import kolmogorov_smirnov, two_sample
from unweave.errors import DataError


def normals(*shape: int, shift: float = 0.0, seed: int = 0) -> np.ndarray:
    return shift + np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("shift, decimals", [(0.0, 9), (0.6, 9), (-0.4, 9), (0.5, 0)])
def test_one_class_is_scipys_test(shift: float, decimals: int) -> None:
    forget, held_out = np.round(normals(40, shift=shift), decimals), np.round(normals(70, seed=1), decimals)
    found, theirs = kolmogorov_smirnov(forget, held_out), ks_2samp(forget, held_out)
    assert found.statistic == pytest.approx(theirs.statistic, rel=1e-12)
    assert found.above == pytest.approx(ks_2samp(forget, held_out, alternative="less").statistic, abs=1e-12)
    assert found.below == pytest.approx(ks_2samp(forget, held_out, alternative="greater").statistic, abs=1e-12)
    if decimals > 0:  # with ties scipy's p-value is not exact
        assert found.p_value == pytest.approx(theirs.pvalue, abs=0.035)


def test_the_direction_is_told() -> None:
    assert kolmogorov_smirnov(normals(50, shift=1.0), normals(50, seed=1)).direction == "more"
    assert kolmogorov_smirnov(normals(50, shift=-1.0), normals(50, seed=1)).direction == "less"


def test_p_values_are_uniform_under_the_null_even_with_unequal_classes() -> None:
    found = []
    for i in range(150):
        rng = np.random.default_rng(i)
        labels = np.repeat([0, 1, 2], [30, 8, 2]), np.repeat([0, 1, 2], [10, 40, 30])
        scores = [4.0 * group + (1 + group) * rng.normal(size=len(group)) for group in labels]
        found.append(kolmogorov_smirnov(*scores, labels, permutations=99, seed=i).p_value)
    assert kstest(found, "uniform").pvalue > 0.01


def test_several_models_share_the_swaps() -> None:
    forget, held_out = normals(40, shift=0.9), normals(60, seed=1)
    one = kolmogorov_smirnov(forget, held_out)
    copies = kolmogorov_smirnov(np.stack([forget] * 3), np.stack([held_out] * 3))
    assert vars(copies) == pytest.approx(vars(one))  # three copies of one model are not three witnesses


def test_the_smallest_p_value_depends_on_the_permutations() -> None:
    assert kolmogorov_smirnov(normals(50, shift=9.0), normals(50, seed=1), permutations=99).p_value == 0.01


@pytest.mark.parametrize(
    "forget, held_out, classes, words",
    [
        ([], [1.0], None, "shapes"),
        ([1.0, np.nan], [1.0], None, "NaN"),
        (np.zeros((2, 3)), np.zeros((1, 3)), None, "shapes"),
        ([1.0, 2.0], [1.0], (np.array([0, 1]), np.array([0])), "class 1"),
    ],
)
def test_bad_scores_are_refused(forget: list, held_out: list, classes: tuple | None, words: str) -> None:
    with pytest.raises(DataError, match=words):
        kolmogorov_smirnov(forget, held_out, classes)


def answers(shift: float, held_out: bool = True) -> Answers:
    labels = np.arange(60) % 4, np.arange(200) % 4
    forget = with_margins(normals(60, shift=5 + shift), labels[0])
    return Answers.of(forget, with_margins(normals(200, shift=5, seed=1), labels[1]) if held_out else None)


def test_every_group_is_tested_on_margin_and_entropy() -> None:
    evidence = Evidence(answers(-2.0), original=answers(2.0), retrained=answers(0.0))
    margin, entropy = two_sample(evidence)
    assert (margin.name, entropy.name) == ("ks-margin", "ks-entropy")
    for found in (margin, entropy):
        assert found.original is not None
        assert found.retrained is not None
        assert found.unlearned.p_value is not None
        assert found.retrained.p_value is not None
        assert found.unlearned.p_value < 0.01 < found.retrained.p_value
        assert {name: test.direction for name, test in found.details.items() if name != "retrained"} == {
            "unlearned": "less",
            "original": "more",
        }
        assert found.document()["unlearned"].keys() == {"value", "p_value", "models", "samples"}


def test_without_held_out_samples_there_is_no_test() -> None:
    with pytest.raises(DataError, match="held-out"):
        two_sample(Evidence(answers(0.0, held_out=False)))
