from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import gap, images, sentences, small_cnn, state_of, token_classifier
from small import data, flat, gradient_sum, linear, loader, loss_sum
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unweave.baselines.influence import Correction, Moving, chosen, hessian_product, require_same_inputs
from unweave.baselines.lissa import lissa
from unweave.baselines.warnecke import FirstOrderConfig, SecondOrderConfig, first_order, second_order
from unweave.errors import ConfigError, DataError, LayerError
from unweave.reading.rest import at_rest
from unweave.reading.samples import Samples


def hessian(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Dense, by one backward pass a row."""
    weights = list(net.parameters())
    slope = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss_sum(net, x, y), weights, create_graph=True)])
    return torch.stack([flat(torch.autograd.grad(value, weights, retain_graph=True)) for value in slope])


def moved(result: object, net: nn.Module) -> Tensor:
    return flat(result.model.parameters()) - flat(net.parameters())  # type: ignore[attr-defined]


def test_first_order_by_hand_for_correction_and_removal() -> None:
    net = small_cnn()
    x, y = images(6)
    wrong = (y + 1) % 3
    before = state_of(net)
    config = FirstOrderConfig(tau=1e-3, layers=None, batch_size=4)
    corrected = first_order(net, loader(x, wrong), config=config, true_labels=loader(x, y, 3))
    removed = first_order(net, loader(x, wrong), config=config)
    assert state_of(net) == before
    net.eval()
    away, towards = gradient_sum(net, x, wrong), gradient_sum(net, x, y)
    assert gap(moved(corrected, net), -1e-3 * (towards - away)) < 1e-9
    assert gap(moved(removed, net), 1e-3 * away) < 1e-9
    assert (corrected.extras["task"], removed.extras["task"]) == ("correction", "removal")
    assert not removed.model.training
    assert torch.equal(removed.model[1].running_mean, net[1].running_mean)


def test_steps_are_taken_from_where_the_last_one_ended() -> None:
    net = linear()
    x, y = data(6)
    config = FirstOrderConfig(tau=0.1, layers=None)
    once = first_order(net, loader(x, y), config=config)
    twice = first_order(once.model, loader(x, y), config=config)
    both = first_order(net, loader(x, y), config=FirstOrderConfig(tau=0.1, layers=None, steps=2))
    assert torch.equal(flat(both.model.parameters()), flat(twice.model.parameters()))
    assert len(both.history) == 3


def test_the_product_equals_the_dense_hessian() -> None:
    net = small_cnn().eval()
    x, y = images(4)
    net = nn.Sequential(net[:7], nn.Linear(72, 2, bias=False).double(), nn.Linear(2, 3).double())
    moving = chosen(net, 1)
    u = {name: torch.randn_like(weight) for name, weight in moving.items()}
    with at_rest(net, gradients=True):
        found = hessian_product(net, moving, x, y, u)
        features = net[:2](x).detach()
    dense = hessian(net[2], features, y) @ flat(u.values())
    assert gap(flat(found.values()), dense) < 1e-10


def test_second_order_is_the_dense_damped_solve_on_a_logistic_model() -> None:
    net = linear()
    x, y = data(20)
    z, kept = slice(0, 5), slice(5, 20)
    config = SecondOrderConfig(scale=30.0, damping=0.05, batch_size=64, iterations=2000, layers=None)
    result = second_order(net, loader(x[z], y[z]), loader(x[kept], y[kept]), config=config)
    v = -gradient_sum(net, x[z], y[z])
    damped = hessian(net, x[kept], y[kept]) + 30.0 * 0.05 * torch.eye(15, dtype=torch.float64)
    assert gap(moved(result, net), -torch.linalg.solve(damped, v)) < 1e-8
    assert result.ok
    assert result.extras["estimates"][0]["settled"]


def test_second_order_correction_counts_the_corrected_samples_in_the_hessian() -> None:
    net = linear()
    x, y = data(20)
    wrong = (y[:5] + 1) % 3
    config = SecondOrderConfig(scale=30.0, damping=0.05, batch_size=64, iterations=2000, layers=None)
    result = second_order(
        net, loader(x[:5], wrong), loader(x[5:], y[5:]), config=config, true_labels=loader(x[:5], y[:5])
    )
    v = gradient_sum(net, x[:5], y[:5]) - gradient_sum(net, x[:5], wrong)
    damped = hessian(net, x, y) + 1.5 * torch.eye(15, dtype=torch.float64)
    assert gap(moved(result, net), -torch.linalg.solve(damped, v)) < 1e-8


def test_full_sum_scales_a_batch_to_the_whole_set_and_short_batches_to_a_batch() -> None:
    net = linear()
    x, y = data(1)
    x, y = x.repeat(12, 1), y.repeat(12)  # one sample over and over, so that every batch is alike
    steps = {"scale": 100.0, "damping": 0.05, "iterations": 3000, "layers": None}
    one = hessian(net, x[:1], y[:1])
    v = -gradient_sum(net, x[:1], y[:1])
    eye = 5.0 * torch.eye(15, dtype=torch.float64)
    for full, weight in ((False, 5), (True, 12)):  # batches of 5, 5 and 2
        config = SecondOrderConfig(batch_size=5, full_sum=full, **steps)
        result = second_order(net, loader(x[:1], y[:1]), loader(x, y), config=config)
        assert gap(moved(result, net), -torch.linalg.solve(weight * one + eye, v)) < 1e-8


def test_lissa_on_a_quadratic_reaches_its_fixed_point_and_tells_divergence() -> None:
    torch.manual_seed(1)
    root = torch.randn(5, 5, dtype=torch.float64)
    matrix, v = root @ root.mT, {"w": torch.randn(5, dtype=torch.float64)}
    top = torch.linalg.eigvalsh(matrix)[-1].item()

    def product(_: int, u: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"w": matrix @ u["w"]}

    good = lissa(product, v, top, 0.01, 20_000, 20)
    exact = torch.linalg.solve(matrix + 0.01 * top * torch.eye(5, dtype=torch.float64), v["w"])
    assert gap(good.x["w"], exact) < 1e-9
    assert good.settled
    assert not good.diverged
    bad = lissa(product, v, top / 4, 0.01, 20_000, 20)
    assert bad.diverged
    assert bad.iterations < 100
    noisy = lissa(lambda i, u: {"w": (1 + 0.5 * (-1) ** i) * (matrix @ u["w"])}, v, top, 0.01, 20_000, 20)
    assert (noisy.settled, noisy.diverged) == (False, False)
    assert noisy.iterations < 20_000
    short = lissa(product, v, top, 0.01, 10, 20)
    assert (short.settled, short.diverged, short.iterations) == (False, False, 10)


def test_divergence_gives_the_weights_back_as_they_were() -> None:
    net = linear()
    x, y = data(20)
    config = SecondOrderConfig(scale=1e-3, layers=None)
    result = second_order(net, loader(x[:5], y[:5]), loader(x[5:], y[5:]), config=config)
    assert not result.ok
    assert "diverged" in result.stopped
    assert torch.equal(flat(result.model.parameters()), flat(net.parameters()))


def test_a_later_step_that_fails_undoes_the_ones_before() -> None:
    net = linear()
    request = Correction(net, loader(*data(6)), None, None, "first_order")

    def direction(now: nn.Module, moving: Moving, step: int) -> tuple[dict[str, Tensor], str | None]:
        return {name: torch.full_like(weight, (1.0, torch.inf)[step]) for name, weight in moving.items()}, None

    result = request.run(FirstOrderConfig(steps=2, layers=None), direction, None)
    assert (result.ok, result.stopped) == (False, "weights or outputs were not finite after step 2; take smaller steps")
    assert torch.equal(flat(result.model.parameters()), flat(net.parameters()))


def test_layers_choose_what_moves() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    assert list(chosen(net, 2)) == ["2.weight", "2.bias", "3.weight", "3.bias", "4.weight", "4.bias"]
    assert list(chosen(net, ["0", "4"])) == ["0.weight", "0.bias", "4.weight", "4.bias"]
    assert len(chosen(net, None)) == 10
    with pytest.raises(LayerError):
        chosen(net, ["9"])
    result = first_order(small_cnn(), loader(*images(6)), config=FirstOrderConfig(layers=1, tau=0.1))
    untouched = small_cnn()
    assert torch.equal(result.model[3].weight, untouched[3].weight)
    assert not torch.equal(result.model[7].weight, untouched[7].weight)


def test_dict_inputs_and_attention_have_second_derivatives() -> None:
    net = token_classifier()
    ids, y = sentences(8)
    config = SecondOrderConfig(layers=None, iterations=3, scale=1e4)
    result = second_order(net, loader({"ids": ids[:2]}, y[:2]), loader({"ids": ids[2:]}, y[2:]), config=config)
    assert result.ok
    assert not result.extras["estimates"][0]["settled"]


def test_a_seed_repeats() -> None:
    net = linear()
    x, y = data(20)
    given = (net, loader(x[:5], y[:5]), loader(x[5:], y[5:]))
    runs = [
        second_order(*given, config=SecondOrderConfig(batch_size=4, scale=50, iterations=7, layers=None, seed=seed))
        for seed in (0, 0, 1)
    ]
    weights = [flat(run.model.parameters()) for run in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def ragged(x: Tensor, y: Tensor, *ends: int) -> list[tuple[Tensor, Tensor]]:
    """Batches that end at these samples; from the first end on they are one wider, so that they cannot be joined."""
    starts = [0, *ends]
    wide = nn.functional.pad(x, (0, 1))
    return [
        ((x if i == 0 else wide)[a:b], y[a:b]) for i, (a, b) in enumerate(zip(starts, [*ends, len(y)], strict=True))
    ]


@pytest.mark.parametrize("other", [None, 0, 3, 4, 6, 8])
def test_the_same_inputs_are_found_whatever_the_batches(other: int | None) -> None:
    """Every sample of the two sides is compared with its own, where batches end at other places; oracle: one by one."""
    x, y = data(9)
    changed = x.clone()
    if other is not None:
        changed[other, -1] += 1
    pairs = [
        (loader(x, y, 4), loader(changed, y, 9)),
        (ragged(x, y, 3, 5), ragged(changed, y, 3, 7, 8)),
        (ragged(x, y, 3), ragged(changed, y, 3)),
    ]
    for left, right in pairs:
        forget, correct = (Samples.load(side, "forget", torch.device("cpu")) for side in (left, right))
        rows = [[row for inputs, _ in side for row in inputs] for side in (left, right)]
        wrong = [i for i, (a, b) in enumerate(zip(*rows, strict=True)) if not torch.equal(a, b)]
        assert wrong == ([] if other is None else [other])
        if other is None:
            require_same_inputs(forget, correct)
        else:
            with pytest.raises(DataError, match=f"Sample {other} of true_labels"):
                require_same_inputs(forget, correct)


def test_inputs_of_another_shape_or_number_are_other_inputs() -> None:
    x, y = data(6)
    wider = ragged(x, y, 3)
    pairs = ((Samples([(x, y)]), Samples(wider), 3), (Samples([(x, y)]), Samples([((x, x), y)]), 0))
    for forget, correct, first in pairs:
        with pytest.raises(DataError, match=f"Sample {first} of true_labels"):
            require_same_inputs(forget, correct)


class Reads(TorchDispatchMode):
    """Counts what a GPU would have to be waited for."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "equal", "nonzero")
        return func(*args, **(kwargs or {}))


def test_a_gpu_is_waited_for_once_whatever_the_number_of_samples() -> None:
    for count in (3, 40):
        x, y = data(count)
        forget, correct = Samples(ragged(x, y, 1, 2)), Samples(ragged(x, y, 1))
        with Reads() as reads:
            require_same_inputs(forget, correct)
        assert reads.count == 1


def test_what_is_missing_or_wrong_is_refused() -> None:
    net = linear()
    x, y = data(6)
    with pytest.raises(DataError, match="needs the retain set"):
        second_order(net, loader(x, y))
    with pytest.raises(DataError, match="3 samples"):
        first_order(net, loader(x, y), true_labels=loader(x[:3], y[:3]))
    with pytest.raises(DataError, match="Sample 0"):
        first_order(net, loader(x, y), true_labels=loader(x + 1, y))
    for kind, wrong in (
        (FirstOrderConfig, {"tau": 0}),
        (FirstOrderConfig, {"steps": 0}),
        (SecondOrderConfig, {"damping": 1.0}),
        (SecondOrderConfig, {"scale": 0}),
        (SecondOrderConfig, {"iterations": 0}),
    ):
        with pytest.raises(ConfigError):
            kind(**wrong)
