"""The plain version is the method: its Grams and projectors are ours, and its step is the paper's."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import unweave
from benchmarks.cases import toy
from benchmarks.plain import layers_of, plain_forget, plain_grams, plain_projector


@pytest.fixture(scope="module")
def case():
    return toy("cpu")


@pytest.fixture(scope="module")
def net(case) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return case.build().eval()


def test_its_grams_are_those_of_fit_whatever_the_chunks(case, net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = unweave.fit(net, case.train.batches(64), stride="layer")
    for elements in (1, 1 << 26):
        monkeypatch.setattr("benchmarks.plain.ROW_ELEMENTS", elements)
        plain = plain_grams(net, case.train.batches(100))
        assert list(plain) == ours.names
        for name in ours:
            assert float((plain[name] - ours[name]).norm() / ours[name].norm()) < 1e-10


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
def test_its_projector_is_ours(case, net: nn.Module, gamma: float) -> None:
    retained = unweave.fit(net, case.train.batches()) - unweave.fit(net, case.forget.batches())
    space = unweave.CoreSpace.from_grams(retained, gamma)
    for name, layer in space.layers.items():
        core = layer.core[0]
        assert float((plain_projector(retained[name], gamma) - core @ core.mT).abs().max()) < 1e-8


def test_one_step_is_the_gradient_of_the_papers_loss_without_its_core_part(case, net: nn.Module) -> None:
    config = dataclasses.replace(case.papers.resolved(), epochs=1, stop="epochs", lr=0.3, lr_end=0.3, batch_size=12)
    grams = plain_grams(net, case.train.batches())
    result = plain_forget(net, case.forget.batches(), grams, case.val.batches(), config)
    given = plain_grams(net, case.forget.batches())
    p = net(case.forget.x).softmax(1)
    own = p[torch.arange(len(p)), case.forget.y]
    loss = (-(1 - own + config.eps).log() + config.lam * (p * p.log()).sum(1)).mean()
    moved = layers_of(result.model)
    for name, module in layers_of(net).items():
        (gradient,) = torch.autograd.grad(loss, module.weight, retain_graph=True)
        matrix = gradient.flatten(1).double()
        away = matrix - matrix @ plain_projector(grams[name] - given[name], config.gamma)
        expected = module.weight.flatten(1).double() - 0.3 * away
        assert torch.allclose(moved[name].weight.flatten(1).double(), expected, atol=1e-6)
        assert torch.equal(result.grams[name], grams[name] - given[name])


def test_it_stops_once_the_forget_error_exceeds_the_validation_error_and_keeps_the_nearer_look(case) -> None:
    from experiments.datasets.images import error
    from experiments.training.fast import train_fast

    net = train_fast(case.build, case.train, seed=0, epochs=case.epochs, padding=1, batch_size=64)
    config = dataclasses.replace(case.papers.resolved(), lr=0.5, lr_end=0.5, epochs=60)
    grams = plain_grams(net, case.train.batches())
    result = plain_forget(net, case.forget.batches(), grams, case.val.batches(), config)
    gaps = [look["forget_error"] - look["val_error"] for look in result.history]
    assert "passed" in result.stopped
    assert gaps[-1] > 0
    assert max(gaps[:-1]) <= 0
    kept = error(result.model, case.forget) - error(result.model, case.val)
    assert abs(kept) == pytest.approx(min(abs(gaps[-1]), abs(gaps[-2])))


def test_a_convolution_in_groups_is_refused() -> None:
    net = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2))
    with pytest.raises(ValueError, match="one group"):
        plain_grams(net, [(torch.ones(1, 4, 5, 5), torch.zeros(1, dtype=torch.long))])
