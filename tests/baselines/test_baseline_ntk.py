from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import gap, images, sentences, small_cnn, state_of, token_classifier
from small import data, flat, jacobian, linear, loader
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from unweave.baselines.fisher import FisherConfig, fisher
from unweave.baselines.ntk import NtkConfig, linearise, ntk, trapezium
from unweave.errors import ConfigError, DataError, MismatchError, ModelError
from unweave.gradients import jacobian as blockwise
from unweave.gradients.jacobian import Plan, cut, jacobian_gram, pulled, solve, unit_cotangents
from unweave.gradients.per_sample import drawn
from unweave.reading.rest import at_rest
from unweave.reading.samples import Samples

CPU = torch.device("cpu")


def gram_of(net: torch.nn.Module, x: Any, y: Tensor, max_bytes: int = 1 << 20, chunk: int = 3) -> Tensor:
    with at_rest(net):
        weights, some = dict(net.named_parameters()), Samples(loader(x, y))
        return jacobian_gram(net, weights, some, unit_cotangents(weights, some, 3), max_bytes, chunk)


def ridge_step(net: torch.nn.Linear, x: Tensor, y: Tensor, mu: float) -> Tensor:
    """The exact minimiser of ‖f − t‖² + |S| μ ‖w − w_now‖² from normal equations, t = f − (softmax − onehot)."""
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    residual = net(x).softmax(1).detach() - torch.nn.functional.one_hot(y, 3)
    normal = design.mT @ design + len(x) * mu * torch.eye(5, dtype=x.dtype)
    return -torch.linalg.solve(normal, design.mT @ residual)  # [width + 1, C]


@pytest.mark.parametrize("more", [1, 3, 50])
def test_the_blocks_give_the_gram_of_the_dense_jacobian(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "ROWS", 7)
    net = small_cnn().eval()
    net[-1] = torch.nn.Sequential(torch.nn.AvgPool1d(12), torch.nn.Linear(6, 3).double())
    x, y = images(7)
    rows = jacobian(net, x)
    assert gap(gram_of(net, x, y, more * 4 * 8 * rows.shape[1]), rows @ rows.mT) < 1e-12


def test_blocks_never_take_more_than_the_bytes_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = small_cnn().eval()
    x, y = images(7)
    weights = dict(net.named_parameters())
    sizes = {name: p.numel() for name, p in weights.items()}
    seen: list[int] = []
    gradients = blockwise.sample_gradients

    def counted(*args: Any, **settings: Any) -> dict[str, Tensor]:
        found = gradients(*args, **settings)
        seen.append(sum(part.numel() * part.element_size() for part in found.values()))
        return found

    monkeypatch.setattr(blockwise, "sample_gradients", counted)
    columns = sum(sizes.values())
    for more in (1, 3, 50):
        max_bytes = more * 4 * 8 * columns
        seen.clear()
        plan = Plan.make(weights, 21, max_bytes, 4)
        gram_of(net, x, y, max_bytes, 4)
        assert plan.width * 21 * 8 + max(seen) <= max_bytes
        assert sorted(p.name for s in plan.slices for p in s if p.start == 0) == sorted(sizes)
        assert sum(p.stop - p.start for s in plan.slices for p in s) == columns
        assert len(plan.slices) == {1: 8, 3: 3, 50: 1}[more]  # 21 rows, 3 of 4 bytes: 7 slices and 7/3, rounded up


def test_too_few_bytes_are_refused_and_the_least_is_named() -> None:
    net = small_cnn().eval()
    x, y = images(4)
    with pytest.raises(ConfigError, match="from ") as caught:
        gram_of(net, x, y, 100)
    least = int(str(caught.value).split("from ")[1].split()[0])
    for max_bytes in (least, least + 1000, 2 * least):
        gram_of(net, x, y, max_bytes)


def test_slices_are_full_and_hold_every_column_once() -> None:
    pieces = cut({"a": 3, "b": 4, "c": 11, "d": 2}, 5)
    assert [[(p.name, p.start, p.stop) for p in s] for s in pieces] == [
        [("a", 0, 3), ("b", 0, 2)],
        [("b", 2, 4), ("c", 0, 3)],
        [("c", 3, 8)],
        [("c", 8, 11), ("d", 0, 2)],
    ]


def test_one_product_equals_the_dense_one() -> None:
    net = small_cnn().eval()
    x, y = images(5)
    v = torch.randn(5, 3, dtype=torch.float64)
    found = pulled(net, dict(net.named_parameters()), Samples(loader(x, y)), v, 2)
    assert gap(flat(found.values()), jacobian(net, x).mT @ v.reshape(-1)) < 1e-12


def test_on_a_linear_model_the_change_is_that_of_the_ridge_solution() -> None:
    net = linear()
    x, y = data(12)
    before = state_of(net)
    result = ntk(net, loader(x[8:], y[8:]), loader(x[:8], y[:8]), config=NtkConfig(mu=0.05))
    assert state_of(net) == before
    expected = ridge_step(net, x[:8], y[:8], 0.05) - ridge_step(net, x, y, 0.05)
    assert gap(result.model.weight - net.weight, expected[:4].mT) < 1e-9
    assert gap(result.model.bias - net.bias, expected[4]) < 1e-9
    assert result.ok
    assert not result.extras["scaled"]
    assert "no first=" in result.stopped
    assert result.extras["jitter"] == 0
    assert result.extras["solve_residual"] < 1e-9


def test_the_scale_is_the_authors_formula_in_both_of_its_cases() -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        delta, m = torch.randn(9), torch.randn(9)
        c = float(torch.nn.functional.cosine_similarity(delta, m, dim=0))
        angle = math.acos(c)
        factor = math.sin(angle - math.pi / 2) if c < 0 else math.cos(angle)
        expected = float((delta.norm() + 2 * factor * m.norm()) / delta.norm())
        assert trapezium({"w": delta}, {"w": m}) == pytest.approx(expected, rel=1e-5)


def test_the_initial_weights_scale_the_change() -> None:
    net, first = linear(), linear(seed=5).state_dict()
    x, y = data(12)
    given = (net, loader(x[8:], y[8:]), loader(x[:8], y[:8]))
    plain, scaled = ntk(*given), ntk(*given, first=first)
    by_retain = ridge_step(net, x[:8], y[:8], 0.1)
    m = flat([net.weight - first["weight"] - by_retain[:4].mT, net.bias - first["bias"] - by_retain[4]])
    delta = flat([plain.model.weight - net.weight, plain.model.bias - net.bias])
    s = float(1 + 2 * (delta @ m).abs() / (delta @ delta))
    assert scaled.extras["scale"] == pytest.approx(s, rel=1e-8)
    moved = flat([scaled.model.weight - net.weight, scaled.model.bias - net.bias])
    assert gap(moved, s * delta) < 1e-8
    assert ntk(*given, first=first, config=NtkConfig(scale=False)).extras["scale"] == 1.0


def test_a_gram_that_is_not_positive_definite_gets_a_jitter_that_is_told() -> None:
    row = torch.randn(6, 1, dtype=torch.float64)
    gram = row @ row.mT
    bad = gram - 1e-13 * gram.diagonal().mean() * torch.eye(6, dtype=torch.float64)
    found = solve(bad, torch.ones(6, dtype=torch.float64), 0.0)
    assert found.x is not None
    assert found.jitter > 0
    assert solve(-torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64), 0.0).x is None


def test_the_draw_is_uniform_over_a_sorted_loader_and_repeats() -> None:
    x = torch.arange(40.0)[:, None]
    y = torch.arange(40) // 20
    sets = [drawn(loader(x, y, 7), "retain", 10, seed, CPU) for seed in range(60)]
    counts = torch.bincount(torch.cat([s._joined.flatten() for s in sets]).long(), minlength=40)
    assert all(len(s) == 10 for s in sets)
    assert counts.min() > 3
    assert counts.max() < 30
    again = drawn(loader(x, y, 3), "retain", 10, 7, CPU)
    assert len(again._joined.unique()) == 10
    assert len(drawn(loader(x, y), "retain", 99, 0, CPU)) == 40


def test_dict_inputs_work_and_the_model_is_left_alone() -> None:
    net = token_classifier()
    ids, y = sentences(8)
    before = state_of(net)
    result = ntk(net, loader({"ids": ids[6:]}, y[6:]), loader({"ids": ids[:6]}, y[:6]), config=NtkConfig(mu=1.0))
    assert result.ok
    assert not result.model.training
    assert state_of(net) == before
    assert len(result.history) == 2


def test_a_linearised_model_serves_several_ridges() -> None:
    net = linear()
    x, y = data(40)
    forget, retain = (
        DataLoader(TensorDataset(*part), 4, shuffle=True) for part in ((x[30:], y[30:]), (x[:30], y[:30]))
    )
    before = torch.get_rng_state()
    slices = list[tuple[str, int, int]]()
    around = linearise(net, forget, retain, NtkConfig(samples=9, mu=7.0), progress=lambda *a: slices.append(a))
    assert torch.equal(torch.get_rng_state(), before)
    for mu in (0.05, 2.0):
        config, told = NtkConfig(samples=9, mu=mu), list[tuple[str, int, int]]()
        once = ntk(net, forget, retain, config=config, progress=lambda *a, told=told: told.append(a))
        twice = ntk(net, forget, None, config=config, around=around)
        assert torch.equal(flat(once.model.parameters()), flat(twice.model.parameters()))
        assert once.history == twice.history
        assert told == slices != []


def test_a_linearised_model_is_of_one_model_its_samples_and_settings() -> None:
    net = linear()
    x, y = data(12)
    given = loader(x[8:], y[8:]), loader(x[:8], y[:8])
    around = linearise(net, *given)
    assert ntk(net, loader(x[8:].flip(0), y[8:].flip(0), 1), around=around).ok, "in another order"
    with pytest.raises(MismatchError, match="of model"):
        ntk(linear(seed=1), *given, around=around)
    with pytest.raises(MismatchError, match="same settings"):
        ntk(net, *given, config=NtkConfig(samples=7), around=around)
    with pytest.raises(MismatchError, match="other samples"):
        ntk(net, loader(x[7:], y[7:]), around=around)
    net.bias.requires_grad_(False)
    with pytest.raises(MismatchError, match="other weights"):
        ntk(net, *given, around=around)


class Choosy(torch.nn.Module):
    """Looks at a value to decide, which vmap does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x if bool(x.sum() > 1e9) else 1.0 * x)


def test_a_model_that_vmap_refuses_can_go_one_sample_at_a_time() -> None:
    x, y = data(12)
    given = loader(x[8:], y[8:]), loader(x[:8], y[:8])
    with pytest.raises(ModelError, match="batched=False"):
        ntk(Choosy(), *given)
    slow = ntk(Choosy(), *given, config=NtkConfig(batched=False))
    assert gap(flat(slow.model.parameters()), flat(ntk(linear(), *given).model.parameters())) < 1e-12
    noisy = fisher(Choosy(), None, given[1], config=FisherConfig(batched=False))
    assert gap(flat(noisy.model.parameters()), flat(fisher(linear(), None, given[1]).model.parameters())) < 1e-12


def test_batch_norm_parameters_move_and_its_statistics_do_not() -> None:
    net = small_cnn()
    x, y = images(9)
    result = ntk(net, loader(x[6:], y[6:]), loader(x[:6], y[:6]), val=loader(x, y))
    assert not torch.equal(result.model[1].weight, net[1].weight)
    assert torch.equal(result.model[1].running_mean, net[1].running_mean)
    assert result.history[1]["val_error"] >= 0


def test_what_is_missing_or_wrong_is_refused() -> None:
    net = linear()
    batches = loader(*data(6))
    with pytest.raises(DataError, match="needs the retain set"):
        ntk(net, batches)
    with pytest.raises(MismatchError, match="first"):
        ntk(net, batches, batches, first={"weight": torch.zeros(2, 2)})
    for wrong in ({"mu": 0}, {"samples": 0}, {"max_bytes": True}, {"scale": 1}):
        with pytest.raises(ConfigError):
            NtkConfig(**wrong)
    with pytest.raises(ConfigError, match="NtkConfig"):
        ntk(net, batches, batches, config=object())  # type: ignore[arg-type]
