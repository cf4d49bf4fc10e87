"""The linear probe finds what was planted, and nothing where nothing is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import in_batches, state_of
from torch import Tensor, nn

from unweave.audit.measure import separate
from unweave.audit.outputs import collect
from unweave.audit.probe import Features, LinearProbe, penultimate, probe, probe_control
from unweave.errors import ConfigError, DataError, ModelError


def features(n: int, d: int, seed: int, shift: float = 0.0, share: tuple[float, ...] = (0.5, 0.3, 0.2)) -> Features:
    """Three classes far apart; members are shifted along the first axis."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, size=n, p=share)
    centres = 3 * np.random.default_rng(99).normal(size=(3, d))
    return Features.of(centres[labels] + rng.normal(size=(n, d)) + shift * np.eye(d)[0], labels)


def one_class(n: int, seed: int) -> Features:
    return features(n, 8, seed, share=(1.0, 0.0, 0.0))


def test_a_planted_direction_is_found() -> None:
    found = probe(features(150, 10, 1, shift=1.5), features(300, 10, 2), draws=200)
    assert found.auc.value == pytest.approx(0.85, abs=0.06)
    assert found.auc.low > 0.7


def test_it_is_unbiased_where_there_is_nothing() -> None:
    found = []
    for i in range(60):
        positives, negatives = LinearProbe(seed=i).fit(one_class(13, 2 * i), one_class(13, 2 * i + 1)).score()
        found.append(np.mean(positives[:, None] > negatives))
    assert np.mean(found) == pytest.approx(0.5, abs=2.5 * np.std(found) / np.sqrt(60))
    assert np.std(found) / np.sqrt(60) < 0.025


def test_folds_share_their_data_and_the_interval_knows() -> None:
    forget, strangers, probed = one_class(40, 1), one_class(40, 2), LinearProbe()
    spread = np.sqrt(np.mean((probed.null(forget, strangers, 30) - 0.5) ** 2))
    plain = separate(*probed.fit(forget, strangers).score(), classes=(forget.labels, strangers.labels), draws=200)
    assert spread > 1.1 * plain.standard_error
    found = probe(forget, strangers, permutations=30, draws=200)
    assert found.standard_error == pytest.approx(spread, rel=0.05)
    assert found.auc.value == plain.auc.value


def test_classes_are_not_mistaken_for_membership() -> None:
    found = probe(features(150, 5, 1, share=(0.8, 0.1, 0.1)), features(400, 5, 2, share=(0.1, 0.3, 0.6)), draws=100)
    assert found.auc.low < 0.5 < found.auc.high
    assert found.auc.value == pytest.approx(0.5, abs=0.12)


def test_nor_do_classes_hide_it() -> None:
    """Unweighted, the regressions would learn the classes and see nothing else."""
    forget = features(150, 5, 3, shift=1.0, share=(0.8, 0.1, 0.1))
    assert probe(forget, features(400, 5, 4, share=(0.1, 0.3, 0.6)), permutations=2, draws=50).auc.value > 0.65


def test_the_control_finds_nothing() -> None:
    found = probe_control(features(200, 6, 1), draws=100)
    assert found.auc.low < 0.5 < found.auc.high
    assert found.samples == (100, 100)


def test_scores_are_out_of_fold() -> None:
    """As many features as samples: every regression separates what it saw, and none what it did not."""
    positives, negatives = LinearProbe(strength=1.0).fit(features(40, 80, 1), features(40, 80, 2)).score()
    assert 0.25 < np.mean(positives[:, None] > negatives) < 0.75
    assert (len(positives), len(negatives)) == (40, 40)


def test_a_feature_that_never_changes_does_no_harm() -> None:
    forget, held_out = features(40, 4, 1, shift=2.0), features(40, 4, 2)
    constant = [
        Features.of(np.pad(f.values, ((0, 0), (0, 1)), constant_values=7.0), f.labels) for f in (forget, held_out)
    ]
    assert probe(*constant, draws=2).auc.value == pytest.approx(probe(forget, held_out, draws=2).auc.value)


def test_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="too few"):
        probe(features(8, 3, 1), features(100, 3, 2))
    with pytest.raises(DataError, match="class 2"):
        probe(features(50, 3, 1), features(100, 3, 2).of_classes(np.array([0, 1])))
    with pytest.raises(DataError, match="NaN"):
        Features.of([[np.nan]], [0])
    with pytest.raises(DataError, match="Expected"):
        Features.of(np.zeros((3, 2)), [0, 1])
    with pytest.raises(ConfigError, match="folds"):
        LinearProbe(folds=1)
    with pytest.raises(ConfigError, match="fit first"):
        LinearProbe().score()


# --------------------------------------------------------------------------------------------------------- features


def test_penultimate_features_are_the_last_layers_input() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)).train()
    x, y = torch.randn(20, 3), torch.arange(20) % 4
    before = state_of(model)
    found = penultimate(model, in_batches(x, y, 7))
    assert state_of(model) == before
    assert found.values.shape == (20, 8)
    weight, bias = (p.detach().double().numpy() for p in model[3].parameters())
    assert np.allclose(found.values @ weight.T + bias, collect(model, in_batches(x, y, 7)).logits, atol=1e-5)
    assert (found.labels == y.numpy()).all()


def test_hooks_are_removed_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    before = state_of(model)
    with pytest.raises(ModelError):
        penultimate(model, [(torch.randn(2, 5), torch.tensor([0, 1]))])
    assert state_of(model) == before


class Odd(nn.Module):
    """A convolution classifies, and a linear layer is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 1)
        self.unused = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


def test_a_named_convolution_is_averaged_over_positions() -> None:
    x, y = torch.randn(6, 2, 4, 4), torch.arange(6) % 3
    found = penultimate(Odd(), [(x, y)], layer="conv")
    assert np.allclose(found.values, x.mean((2, 3)).numpy(), atol=1e-6)


@pytest.mark.parametrize(
    "model, layer, words",
    [
        (Odd(), None, "does not call"),
        (Odd(), "nowhere", "no layer 'nowhere'"),
        (nn.Conv2d(2, 3, 4), None, "no nn.Linear"),
    ],
)
def test_a_layer_that_cannot_be_probed(model: nn.Module, layer: str | None, words: str) -> None:
    wrapped = nn.Sequential(model, nn.Flatten())
    with pytest.raises(ModelError, match=words):
        penultimate(wrapped, [(torch.randn(2, 2, 4, 4), torch.tensor([0, 1]))], layer)
