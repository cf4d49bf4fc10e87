"""The data that benchmarks run on is what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import cases
from experiments.data import MEAN, STD


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


def test_tinyimagenet_is_read_from_its_official_folder(tmp_path: Path) -> None:
    shades = {"n02": (10, 20, 30), "n01": (200, 100, 0)}
    for name, shade in shades.items():
        (tmp_path / "train" / name / "images").mkdir(parents=True)
        Image.new("RGB", (64, 64), shade).save(tmp_path / "train" / name / "images" / f"{name}_0.png")
    (tmp_path / "val/images").mkdir(parents=True)
    Image.new("L", (64, 64), 50).save(tmp_path / "val/images/val_0.png")  # some of them are grey
    (tmp_path / "val/val_annotations.txt").write_text("val_0.png\tn02\t0\t0\t1\t1\n")
    train, val = cases.load_tinyimagenet(tmp_path, "cpu")
    assert (train.y.tolist(), val.y.tolist()) == ([0, 1], [1])
    expected = (np.array([shades["n01"], shades["n02"]]) / 255 - np.array(MEAN)) / np.array(STD)
    assert np.allclose(train.x[:, :, 5, 7].numpy(), expected, atol=1e-5)
    assert torch.allclose(val.x[0, :, 0, 0] * torch.tensor(STD) + torch.tensor(MEAN), torch.tensor(50 / 255))
