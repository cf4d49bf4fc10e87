"""Networks that are trained as one learn what each would learn alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import several, speed, training
from benchmarks.options import Options
from benchmarks.several import TOGETHER, WAYS, Grouped, Vmapped
from experiments.data import Labelled, load_embedded
from experiments.training.fast import Learning
from experiments.training.models import allcnn
from experiments.training.recipes import RECIPES, Recipe
from unweave.errors import ConfigError

BATCH = 6


def small(seed: int) -> nn.Module:
    """AllCNN with four channels, or a net that ends in two linear layers."""
    torch.manual_seed(seed)
    return allcnn(10, width=4)


def with_linear(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    features = nn.Conv2d(3, 5, 3, 4), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*features, nn.Linear(320, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 10))


@pytest.mark.parametrize("build", [small, with_linear])
@pytest.mark.parametrize("kind", [Grouped, Vmapped])
def test_one_step_of_all_is_the_step_of_each(
    kind: Callable[[Sequence[nn.Module]], nn.Module], build: Callable[[int], nn.Module]
) -> None:
    nets, again = ([build(seed).train().double() for seed in range(3)] for _ in range(2))
    x = torch.randn(len(nets) * BATCH, 3, 32, 32, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    y = torch.arange(len(x)) % 10
    together = kind(again).train()
    optimiser = torch.optim.SGD(together.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    for _ in range(2):
        optimiser.zero_grad()
        (len(nets) * F.cross_entropy(together(x), y)).backward()
        optimiser.step()
    for net, images, labels in zip(nets, x.split(BATCH), y.split(BATCH), strict=True):
        alone = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
        for _ in range(2):
            alone.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            alone.step()
    expected = torch.cat([net.eval()(images) for net, images in zip(nets, x.split(BATCH), strict=True)])
    assert torch.allclose(together.eval()(x), expected, atol=1e-9), "weights and running statistics"
    assert not torch.allclose(expected[:BATCH], expected[BATCH : 2 * BATCH]), "no two of them are the same"


@pytest.mark.parametrize("way", WAYS)
def test_each_way_trains(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the networks, to the end: each weight has moved."""
    first, last = list[torch.Tensor](), list[torch.Tensor]()
    train_end, train_many = several.train_end, several.train_many

    def watched(recipe: Recipe, learning: Learning, data: Labelled, seed: int) -> None:
        first.extend(weight.detach().clone() for weight in learning.net.parameters())
        train_end(recipe, learning, data, seed)
        last.extend(learning.net.parameters())

    monkeypatch.setattr(several, "train_end", watched)
    monkeypatch.setattr(several, "train_many", lambda *args: last.append(train_many(*args)))
    WAYS[way](RECIPES["quick"], load_embedded(torch.device("cpu"), per_class=TOGETHER * 5).train, 0)
    if way == "streams":
        assert len(last[0]) == TOGETHER
    else:
        assert first
        assert not any(torch.equal(before, after) for before, after in zip(first, last, strict=True))


def test_a_network_without_a_grouped_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="LayerNorm has no grouped form"):
        Grouped([nn.Sequential(nn.LayerNorm(3)), nn.Sequential(nn.LayerNorm(3))])


def test_a_way_that_takes_too_long_is_cut_off_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> None:
        time.sleep(5)

    monkeypatch.setitem(WAYS, "grouped", slow)
    kept = list[object]()
    options = Options(
        quick=True, slow_repeats=1, limit=2.0, keep=lambda made: kept.append("several" in made["recipes"]["quick"])
    )
    made = training.run(options)
    assert made["recipes"]["quick"]["several"]["ways"]["grouped"]["failed"] == "cut off after 2 s"
    assert kept == [False, True], "what one network takes is kept before"


def test_a_way_that_fails_is_told_and_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 9 GiB.\nmore")

    monkeypatch.setitem(WAYS, "grouped", full)
    made = training.run(Options(quick=True, slow_repeats=1))
    ways = made["recipes"]["quick"]["several"]["ways"]
    assert [way for way, row in ways.items() if "failed" in row] == ["grouped"]
    assert "quick, 4 at once, grouped: failed: Tried to allocate 9 GiB.\n" in training.table(made)
    assert "grouped failed; vmapped " in speed.training(made)[-1]
