from __future__ import annotations

import copy

import pytest
import torch
from helpers import gap, grams_from, spectrum_gram
from torch import Tensor, nn

from unweave.layers import find_layers
from unweave.space import CoreSpace, LayerSpace
from unweave.trust import TrustRegion, last_linear

D = 8


def space_of_rank(rank: int, d: int = D) -> LayerSpace:
    """A layer space whose core has this many of d directions."""
    sigma = [float(d - i) if i < rank else 0.0 for i in range(d)]
    return CoreSpace.from_grams(grams_from({"head": spectrum_gram(sigma)}), gamma=1.0).layers["head"]


def region(rank: int = 6, width: int = 400, d: int = D, dtype: torch.dtype = torch.float64):
    weight = nn.Parameter(torch.randn(2, d, dtype=dtype))
    space = space_of_rank(rank, d)
    assert int(space.rank) == rank
    return TrustRegion("head", weight, space, width), space


def stirred(region: TrustRegion) -> TrustRegion:
    with torch.no_grad():
        region.scale.add_(0.3 * torch.randn_like(region.scale))
    return region


def test_without_scaling_the_effective_weight_is_the_weight() -> None:
    trust, _ = region()
    assert torch.equal(trust.effective(), trust.weight)


def test_the_effective_weight_rescales_the_last_core_directions_only() -> None:
    """W_eff = W − W B Bᵀ + W B Q Bᵀ with B the whole core and Q = blockdiag(I, S), as in the paper's code."""
    trust, space = region(rank=6, width=4)
    stirred(trust)
    core = space.core[0]
    q = torch.eye(6, dtype=torch.float64)
    q[2:, 2:] = trust.scale.detach()
    w = trust.weight.detach()
    assert gap(trust.effective().detach(), w - w @ core @ core.mT + w @ core @ q @ core.mT) < 1e-12


def test_folding_writes_the_effective_weight_and_starts_again() -> None:
    trust, _ = region()
    expected = stirred(trust).effective().detach().clone()
    trust.fold()
    assert torch.equal(trust.weight.detach(), expected)
    assert torch.equal(trust.scale.detach(), torch.eye(6, dtype=torch.float64))
    assert torch.equal(trust.effective(), trust.weight)


def test_the_folded_layer_gives_the_outputs_of_the_effective_weight() -> None:
    layer = nn.Linear(D, 2).double()
    trust = stirred(TrustRegion("head", layer.weight, space_of_rank(6), 400))
    x = torch.randn(5, D, dtype=torch.float64)
    expected = nn.functional.linear(x, trust.effective(), layer.bias)
    trust.fold()
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize(
    "rank, width, expected", [(6, 400, 6), (6, 4, 4), (8, 400, 8), (1, 400, 1), (0, 400, 0), (6, 0, 0)]
)
def test_any_number_of_core_directions_will_do(rank: int, width: int, expected: int) -> None:
    trust, space = region(rank, width)
    assert trust.basis.shape == (D, expected)
    assert trust.scale.shape == (expected, expected)
    assert torch.equal(trust.basis, space.core[0][:, rank - expected :])
    assert torch.equal(trust.effective(), trust.weight)
    grads = torch.autograd.grad(trust.effective().square().sum(), [trust.weight, trust.scale], allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in grads)


def test_more_than_400_core_directions_keep_the_strongest_fixed() -> None:
    trust, space = region(rank=410, d=420)
    assert trust.basis.shape == (420, 400)
    assert torch.equal(trust.basis, space.core[0][:, 10:410])


def test_gradients_of_weight_and_scale_agree_with_finite_differences() -> None:
    trust = stirred(region(rank=5, width=3)[0])
    x, weight, scale = torch.randn(4, D, dtype=torch.float64), trust.weight, trust.scale

    def outputs(w: Tensor, s: Tensor) -> Tensor:
        twin = copy.copy(trust)
        twin.weight, twin.scale = w, s
        return (x @ twin.effective().mT).tanh()

    assert torch.autograd.gradcheck(outputs, (weight, scale))


def test_a_weight_of_half_precision_is_scaled_in_full_precision() -> None:
    trust, _ = region(dtype=torch.bfloat16)
    with torch.no_grad():
        trust.scale.add_(1e-4)
    assert (trust.scale - torch.eye(6)).max().item() == pytest.approx(1e-4, rel=1e-2)
    assert trust.effective().dtype == torch.bfloat16


def test_the_last_linear_layer_is_scaled_whatever_comes_after_it() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Conv1d(1, 1, 1))
    assert last_linear(net, find_layers(net)) == "1"
    assert last_linear(net, find_layers(net, ["2"])) is None
