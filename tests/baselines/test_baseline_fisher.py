from __future__ import annotations

import pytest
import torch
from helpers import gap, images, sentences, small_cnn, state_of, token_classifier
from small import data, flat, linear, loader
from torch import Tensor, nn

from unweave.baselines.fisher import FisherConfig, diagonal_fisher, fisher, last_layer, noise
from unweave.errors import ConfigError, DataError, ModelError


def slow_fisher(net: nn.Module, x: Tensor) -> Tensor:
    """One backward pass a sample and class."""
    total = 0
    for sample in x:
        log_p = net(sample[None]).log_softmax(1)[0]
        for value in log_p:
            gradient = flat(torch.autograd.grad(-value, list(net.parameters()), retain_graph=True))
            total = total + value.exp().detach() * gradient**2
    return total / len(x)


@pytest.mark.parametrize("chunk", [1, 3, 50])
def test_the_diagonal_equals_a_loop_over_samples_and_classes(chunk: int) -> None:
    net = small_cnn().eval()
    x, y = images(7)
    found, count, classes = diagonal_fisher(net, dict(net.named_parameters()), loader(x, y, 5), chunk)
    assert (count, classes) == (7, 3)
    assert gap(flat(found.values()), slow_fisher(net, x)) < 1e-12


def test_labels_do_not_matter_as_the_expectation_is_over_the_models_own() -> None:
    net = small_cnn()
    x, y = images(6)
    one, other = (diagonal_fisher(net.eval(), dict(net.named_parameters()), loader(x, to), 4)[0] for to in (y, 0 * y))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_rules_by_hand() -> None:
    config = FisherConfig(alpha=1e-2)
    information = torch.tensor([[0.5, 0.0], [2.0, 0.1]], dtype=torch.float64)
    weight = torch.ones(2, 2, dtype=torch.float64)
    _, variance = noise(weight, information, config, last=False)
    rows = [(1 / (0.5 + 1e-8) + 1e3) / 2, (1 / (2 + 1e-8) + 1 / (0.1 + 1e-8)) / 2]
    assert gap(variance, 1e-2 * torch.tensor(rows, dtype=torch.float64)[:, None].expand(2, 2)) < 1e-12
    _, variance = noise(weight, information, config, last=True)
    assert variance[0, 0].item() == pytest.approx(10 * 1e-2 * (1 / (0.5 + 1e-8) + 1e2) / 2)
    _, variance = noise(weight[0], information[1], config, last=False)
    assert variance.tolist() == pytest.approx([10 * 1e-2 / (2 + 1e-8), 10 * 1e-2 / (0.1 + 1e-8)])
    kernel = torch.rand(2, 3, 2, 2, dtype=torch.float64) + 0.1
    _, variance = noise(kernel, kernel, config, last=False)
    assert gap(variance[:, 1], 1e-2 * (1 / (kernel + 1e-8)).mean(1)) < 1e-12


def test_a_removed_class_starts_from_nothing() -> None:
    mean, variance = noise(torch.ones(3, 2), torch.ones(3, 2), FisherConfig(classes=(1,)), last=True)
    assert mean.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert variance[1].tolist() == pytest.approx([1e-3, 1e-3])
    assert variance[0].tolist() == pytest.approx([1e-5, 1e-5])


def test_the_noise_has_the_variance_it_should() -> None:
    net = linear(width=40, classes=3)
    x, y = data(6, width=40)
    given = loader(x, y)
    moves = [
        (result.model.weight - net.weight).detach()
        for result in (fisher(net, None, given, config=FisherConfig(seed=seed)) for seed in range(60))
    ]
    diagonal, _, _ = diagonal_fisher(net, dict(net.named_parameters()), given, 8)
    _, variance = noise(net.weight.detach(), diagonal["weight"], FisherConfig(), last=True)
    standard = torch.stack(moves) / variance.sqrt()
    assert abs(standard.mean().item()) < 0.05
    assert abs(standard.square().mean().item() - 1) < 0.06


def test_a_seed_repeats_and_the_model_is_left_alone() -> None:
    net = small_cnn()
    x, y = images(6)
    before, generator = state_of(net), torch.get_rng_state()
    runs = [
        fisher(net, loader(x[:2], y[:2]), loader(x, y), config=FisherConfig(seed=seed, alpha=1e-4))
        for seed in (3, 3, 4)
    ]
    assert state_of(net) == before
    assert torch.equal(torch.get_rng_state(), generator)
    weights = [flat(run.model.parameters()) for run in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not runs[0].model.training
    assert runs[0].ok
    assert torch.equal(runs[0].model[1].running_var, net[1].running_var)
    assert set(runs[0].history[1]) == {"step", "forget_error"}


def test_the_last_layer_is_found_by_its_place_not_by_its_size_alone() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    assert last_layer(dict(net.named_parameters()), 3) == {"2.weight", "2.bias"}
    assert last_layer(dict(net.named_parameters()), 7) == set()


def test_classes_and_dict_inputs() -> None:
    net = token_classifier()
    ids, y = sentences(6)
    config = FisherConfig(classes=(2,), samples=4, alpha=1e-12)
    result = fisher(net, None, loader({"ids": ids}, y), config=config)
    assert result.extras["retained_used"] == 4
    assert result.extras["last_layer"] == ["head.bias", "head.weight"]
    assert result.model.head.weight[2].abs().max() < 0.2
    assert gap(result.model.head.weight[:2], net.head.weight[:2]) < 1e-3


def test_what_is_missing_or_wrong_is_refused() -> None:
    net = linear()
    batches = loader(*data(6))
    with pytest.raises(DataError, match="needs the retain set"):
        fisher(net, batches)
    with pytest.raises(ConfigError, match="0 to 2"):
        fisher(net, None, batches, config=FisherConfig(classes=(3,)))
    for wrong in ({"alpha": 0}, {"alpha": float("nan")}, {"classes": [1]}, {"classes": (-1,)}, {"samples": 0}):
        with pytest.raises(ConfigError):
            FisherConfig(**wrong)
    net = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)), nn.AvgPool1d(2), nn.Flatten()).double()
    with pytest.raises(ModelError, match="3 rows"):
        fisher(net, None, batches, config=FisherConfig(classes=(1,)))
