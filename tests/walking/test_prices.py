"""What changes of a layer cost: the identity behind the price, and what has none of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from helpers import gap, grams_from, images, small_cnn
from torch import Tensor

import unweave
from unweave.gradients.outer import met_once
from unweave.gradients.singles import Singles
from unweave.layers import find_layers
from unweave.reading.batches import Inputs
from unweave.reading.rest import at_rest
from unweave.reading.samples import Samples
from unweave.space import CoreSpace
from unweave.walking import prices as module
from unweave.walking.prices import mean_squares, prices

ROWS = 50


def rows(scale: float = 1.0, seed: int = 1) -> Tensor:
    """[ROWS, 8], of falling lengths."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(ROWS, 8, dtype=torch.float64, generator=generator) * torch.arange(1, 9) ** -1.0


def soft_space(grams: Mapping[str, Tensor], gamma: float | dict[str, float] = 0.9) -> CoreSpace:
    return CoreSpace.from_grams(grams_from(dict(grams)), gamma, protect="soft")


def mu_of(space: CoreSpace, name: str) -> Tensor:
    """μ of each group, of the directions that are neither free nor protected."""
    layer = space.layers[name]
    return (layer.sigma**2 * layer.left / (1 - layer.left)).median(1).values


def test_a_change_costs_what_margins_feel_where_slopes_do_not_hang_on_rows() -> None:
    """Every row meets every slope, and slopes point everywhere alike: K-FAC's account is exact."""
    x = rows()
    b = 3.0 * torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))[0]
    gradients = torch.einsum("jm,id->ijmd", b, x).flatten(0, 1)
    change = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    felt = (gradients * change).sum((1, 2)).square().mean()
    space = soft_space({"a": x.mT @ x})
    square = float(gradients.square().sum((1, 2)).mean())
    c = prices(space, {"a": square})["a"] / mu_of(space, "a")
    assert gap(c * (change @ (x.mT @ x) @ change.mT).trace(), felt[None]) < 1e-9


def test_over_all_changes_of_a_length_the_price_is_right_whatever_the_gradients() -> None:
    """With two groups and gradients without any structure: the mean over an orthonormal basis of changes."""
    grams = torch.stack([rows(seed=4).mT @ rows(seed=4), rows(2.0, 5).mT @ rows(2.0, 5)])
    gradients = torch.randn(30, 2, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    square = float(gradients.square().sum((1, 2, 3)).mean())
    space = soft_space({"a": grams})
    c = prices(space, {"a": square})["a"] / mu_of(space, "a")
    assert c.max().item() == pytest.approx(c.min().item(), rel=1e-9)
    felt = sum(float(gradients.flatten(1)[:, i].square().mean()) for i in range(32))
    outputs = 2
    cost = c[0] * outputs * sum(gram.trace() for gram in grams)
    assert cost.item() == pytest.approx(felt, rel=1e-9)


def test_layers_of_other_scales_pay_in_one_currency() -> None:
    """Rows ten times as long where outputs count a tenth: gradients are as long, and so is what margins feel."""
    space = soft_space({"a": rows().mT @ rows(), "b": rows(10).mT @ rows(10)})
    found = prices(space, {"a": 1.0, "b": 1.0})
    assert found["b"].item() == pytest.approx(found["a"].item(), rel=1e-9)
    steeper = prices(space, {"a": 1.0, "b": 4.0})
    assert steeper["b"].item() == pytest.approx(4 * found["a"].item(), rel=1e-9)


def test_what_has_no_price_of_its_own_gets_the_usual_one() -> None:
    one = torch.diag(torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64))
    grams = {"a": one, "b": 100 * one, "c": one, "d": torch.zeros(3, 3, dtype=torch.float64)}
    hard = CoreSpace.from_grams(grams_from(grams), 0.9)
    assert [price.item() for price in prices(hard, dict.fromkeys(grams, 2.0)).values()] == [1, 1, 1, 1]
    space = soft_space(grams, {"default": 0.9, "c": 1.0})
    a, b, c, d = (price.item() for price in prices(space, {"a": 1.0, "b": 9.0, "c": 1.0, "d": 1.0}).values())
    assert b == pytest.approx(9 * a)
    assert c == d == pytest.approx(math.sqrt(a * b))
    unfelt = prices(space, {"a": 1.0, "b": 0.0, "c": 1.0, "d": 1.0})
    assert [price.item() for price in unfelt.values()] == pytest.approx([a] * 4)


@pytest.mark.parametrize(
    ("measured", "size", "max_bytes"), [(64, 99, 1 << 30), (64, 2, 1 << 30), (64, 99, 1), (4, 9, 1 << 30)]
)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("known", [False, True], ids=["all by gradients", "some known"])
def test_mean_squares_are_those_of_single_samples(
    measured: int, size: int, max_bytes: int, ragged: bool, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MEASURED", measured)
    net, (x, y) = small_cnn().eval(), images(11)
    layers = find_layers(net, unweave.fit(net, [(x, y)]).names)
    weights = {name: layer.parameter for name, layer in layers.items()}
    v = torch.randn(11, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    taken = range(0, 11, 3) if measured == 4 else range(11)
    singles = [torch.autograd.grad((net(x[i : i + 1])[0] * v[i]).sum(), list(weights.values())) for i in taken]
    expected = torch.stack([torch.stack([part.square().sum() for part in own]) for own in singles]).mean(0)
    samples = Samples([(x[:7], y[:7]), (x[7:], y[7:])])
    if ragged:
        samples._batches, samples._joined = [(x[:7], y[:7]), (x[7:], y[7:])], None
    asked = list[tuple[set[str], int]]()
    with at_rest(net, gradients=True):
        gradients = Singles(net, weights, samples, v)
        once = met_once(net, gradients.users, samples, v, 3) if known else {}

        def noted(wanted: Mapping[str, Tensor], inputs: Inputs, cotangents: Tensor) -> Mapping[str, Tensor]:
            asked.append((set(wanted), len(cotangents)))
            return gradients(wanted, inputs, cotangents)

        found = mean_squares(noted, once, weights, samples, v, size, max_bytes)
    assert len(once) == known
    assert {name for wanted, _ in asked for name in wanted} == set(weights) - set(once)
    assert max(count for _, count in asked) <= (1 if max_bytes == 1 else size)
    assert gap(torch.tensor([found[name] for name in weights], dtype=expected.dtype), expected) < 1e-11
