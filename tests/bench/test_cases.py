"""The data that benchmarks run on is what it says."""

from __future__ import annotations

import pytest
import torch

from benchmarks import cases


def test_random_pixels_have_one_pattern_a_class_whatever_the_seed() -> None:
    one, other = (cases.patterns(4000, 4, 8, "cpu", seed=seed) for seed in (1, 2))
    assert one.y.bincount().tolist() == [1000] * 4
    assert not torch.equal(one.x, other.x)
    means = [torch.stack([data.x[data.y == c].mean(0) for c in range(4)]) for data in (one, other)]
    between = (means[0][0] - means[0][1]).abs().mean()
    assert float((means[0] - means[1]).abs().mean()) < 0.05 * float(between)


def test_a_case_is_divided_without_remainder() -> None:
    case = cases.toy("cpu")
    assert len(case.forget) + len(case.retain) == len(case.train)
    assert set(case.forget.y.tolist()) == {0}
    assert not set(case.first.tolist()) & set(case.second.tolist())


def test_the_papers_requests_are_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    few = cases.patterns
    monkeypatch.setattr(
        cases, "patterns", lambda count, classes, side, device, seed: few(count, classes, 1, device, seed=seed)
    )
    found = {case.name: case for case in cases.cifar10_cases(None, "cpu", 1)}
    found["resnet18"] = cases.tinyimagenet_case(None, "cpu", 1)
    assert {name: case.forget.y.bincount().tolist() for name, case in found.items()} == {
        "allcnn": [500],
        "smallvgg": [100] * 10,
        "resnet18": [500] * 5,
    }
    assert {name: len(case.train) for name, case in found.items()} == {
        "allcnn": 50_000,
        "smallvgg": 50_000,
        "resnet18": 100_000,
    }
    assert all(case.pixels == "random pixels" for case in found.values())
    assert not set(found["resnet18"].forget.y.tolist()) & set(found["resnet18"].later.y.tolist())
