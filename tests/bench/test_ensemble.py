"""Some of an attack's networks: what each is trained on, and what is made of their seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import ensemble
from benchmarks.ensemble import FIFTY, RETRAINED, task_of
from benchmarks.options import Options
from benchmarks.several import TOGETHER
from experiments.data import Labelled, load_embedded
from experiments.training.recipes import RECIPES, Recipe

QUICK = Options(quick=True, slow_repeats=2, seed=3)


class Constant(nn.Module):
    """Says one class whatever it sees."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.register_buffer("said", torch.eye(10)[label])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.get_buffer("said").expand(len(x), 10)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Labelled, list[int]]]:
    """Epochs, data and seeds of every training, which makes networks that say one class each; seconds are 2, 3, 4 …"""
    found, clock = list[tuple[int, Labelled, list[int]]](), iter(range(2, 100))

    def train_many(recipe: Recipe, data: Labelled, seeds: Sequence[int]) -> list[nn.Module]:
        found.append((recipe.epochs, data, list(seeds)))
        return [Constant(seed % 10) for seed in seeds]

    def timed(work: object, *_: object, **__: object) -> tuple[object, list[float]]:
        assert callable(work)
        return work(), [float(next(clock))]

    monkeypatch.setattr(ensemble, "train_many", train_many)
    monkeypatch.setattr(ensemble, "timed", timed)
    return found


def test_full_and_retrained_networks_take_turns_and_each_has_its_errors(
    trained: list[tuple[int, Labelled, list[int]]],
) -> None:
    kept = list[int]()
    made = ensemble.run(replace(QUICK, keep=lambda unfinished: kept.append(len(unfinished["networks"]))))
    whole = task_of(QUICK).recipe.epochs
    assert [epochs for epochs, _, _ in trained] == [1, *[whole] * 4]
    gone = [(len(data), int((data.y == 0).sum())) for _, data, _ in trained[1:]]
    assert gone == [(300, 30), (290, 20)] * 2, "retrained ones do without ten samples of class 0"
    starts = [3, RETRAINED + 3, 3 + TOGETHER, RETRAINED + 3 + TOGETHER]
    assert [seeds for _, _, seeds in trained[1:]] == [list(range(first, first + TOGETHER)) for first in starts]
    assert kept == [TOGETHER * n for n in (1, 2, 3, 4)]
    network = made["networks"][TOGETHER]
    assert network == {
        "kind": "retrained",
        "seed": RETRAINED + 3,
        "retained": pytest.approx(100 * 260 / 290),
        "test": 90.0,
    }
    assert (made["start"], made["groups"]) == (2, [3, 4, 5, 6])
    assert made["hundred"] == 2 + 2 * FIFTY / TOGETHER * 4.5


def test_it_is_said_in_words(trained: list[tuple[int, Labelled, list[int]]]) -> None:
    first, full, retrained = ensemble.sentences(ensemble.run(QUICK))
    assert first.startswith(
        f"16 networks by `quick` (2 epochs) on CIFAR-10, 3,000 images, {TOGETHER} at once: 1.12 s each"
    )
    assert "after 2.0 s for a first epoch. 50 full" in first, "on a CPU nothing is compiled"
    assert first.endswith("50 full and 50 retrained ones take 1.9 minutes at this pace.")
    assert full.startswith("Percent wrong, full networks: retained samples ")
    assert full.endswith("test samples 90.00 (90.00 to 90.00).")
    assert retrained.startswith("Percent wrong, retrained networks: ")


def test_without_images_only_seconds_are_told(
    trained: list[tuple[int, Labelled, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, recipe = load_embedded(torch.device("cpu"), 30).train, RECIPES["allcnn-cifar10-short"]
    monkeypatch.setattr(ensemble, "task_of", lambda _: ensemble.Task(recipe, data, None, "noise", 10))
    made = ensemble.run(QUICK)
    assert made["pixels"] == "noise"
    assert set(made["networks"][0]) == {"kind", "seed"}
    (said,) = ensemble.sentences(made)
    assert "(22 epochs, 3 of them without augmentation) on noise" in said


def test_a_gpu_trains_the_short_recipe_on_the_images_it_is_given_or_on_noise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = load_embedded(torch.device("cpu"), 3)
    monkeypatch.setattr(ensemble, "noise_for", lambda recipe, options: images.val)
    monkeypatch.setattr(ensemble, "load_cifar10", lambda source, device: images if source == tmp_path else None)
    given, noise = task_of(Options(device="cuda", cifar10=tmp_path)), task_of(Options(device="cuda"))
    assert given.recipe.name == noise.recipe.name == "allcnn-cifar10-short"
    assert (given.train, given.test, given.pixels) == (images.train, images.test, "CIFAR-10")
    assert (noise.train, noise.test, noise.pixels) == (images.val, None, "noise")
    assert given.forget == noise.forget == 500
