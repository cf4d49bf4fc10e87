"""Products of single samples' gradients from rows and slopes, against gradients taken one sample at a time."""

from __future__ import annotations

import pytest
import torch
from helpers import gap, images, sentences, small_cnn, token_classifier
from torch import Tensor, nn

from unweave.gradients.meetings import told_apart
from unweave.gradients.outer import met_once
from unweave.reading.rest import at_rest
from unweave.reading.samples import Samples


class Odd(nn.Module):
    """Linear layers that are used in every way there is."""

    def __init__(self) -> None:
        super().__init__()
        self.once = nn.Linear(5, 6)
        self.inplace = nn.ReLU(inplace=True)
        self.twice = nn.Linear(6, 6)
        self.pixels = nn.Linear(3, 3)
        self.by_keyword = nn.Linear(6, 4)
        self.tied = nn.Linear(6, 4, bias=False)
        self.tied_too = nn.Linear(6, 4, bias=False)
        self.tied_too.weight = self.tied.weight
        self.idle = nn.Linear(6, 4)
        self.ignored = nn.Linear(6, 4)
        self.apart = nn.Linear(6, 4)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.inplace(self.once(x))
        x = self.twice(torch.tanh(self.twice(x)))
        x = self.pixels(x.view(len(x), 2, 3)).flatten(1)
        self.ignored(x)
        with torch.no_grad():
            apart = self.apart(x)
        return self.by_keyword(input=x) + self.tied(x) * self.tied_too(x) + apart


def odd() -> tuple[Odd, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Odd().eval(), torch.randn(7, 5, dtype=torch.float64), torch.arange(7) % 4


def weights_of(net: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in net.named_parameters() if p.dim() > 1}


def products_one_by_one(net: nn.Module, weight: Tensor, x: Tensor, v: Tensor, left: Tensor) -> Tensor:
    """⟨g_i P, g_j P⟩ for P = left [d, d]."""
    rows = []
    for one, cotangent in zip(x, v, strict=True):
        (found,) = torch.autograd.grad((net(one[None])[0] * cotangent).sum(), weight)
        rows.append((found @ left).flatten())
    return torch.stack(rows) @ torch.stack(rows).mT


@pytest.mark.parametrize("size", [2, 100])
@pytest.mark.parametrize(
    "given, expected",
    [
        (odd(), {"once.weight", "by_keyword.weight"}),
        ((small_cnn().eval(), *images(7)), {"7.weight"}),
        ((token_classifier().eval(), *sentences(7)), {"head.weight"}),
    ],
    ids=["odd", "images", "text"],
)
def test_products_are_those_of_single_samples(
    given: tuple[nn.Module, Tensor, Tensor], expected: set[str], size: int
) -> None:
    net, x, y = given
    generator = torch.Generator().manual_seed(4)
    v = torch.randn(len(x), net(x).shape[1], dtype=torch.float64, generator=generator)
    weights, samples = weights_of(net), Samples([(x[:3], y[:3]), (x[3:], y[3:])])
    with at_rest(net), torch.no_grad():
        found = met_once(net, told_apart(net, weights, samples, v, size), samples, v, size)
    # A layer that no logit hangs on meets every sample for nothing: its share is zero.
    assert set(found) - {"ignored.weight"} == expected
    for name, met in found.items():
        left = torch.randn(met.rows.shape[1], met.rows.shape[1], dtype=torch.float64, generator=generator)
        if name == "ignored.weight":
            assert not met.products(met.rows @ left).any()
            continue
        with torch.enable_grad():
            slow = products_one_by_one(net, weights[name], x, v, left)
        assert slow.abs().max() > 0
        assert gap(met.products(met.rows @ left), slow) < 1e-12


def test_batches_of_varying_width_keep_their_order() -> None:
    net = token_classifier().eval()
    (short, a), (long, b) = sentences(3, length=4), sentences(2, length=6, seed=1)
    v = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    with at_rest(net), torch.no_grad():
        met = met_once(net, {"head": [net.head]}, Samples([(short, a), (long, b)]), v, 2)["head"]
    whole = met.products(met.rows)
    for part, own in ((short, slice(0, 3)), (long, slice(3, 5))):
        slow = products_one_by_one(net, net.head.weight, part, v[own], torch.eye(16).double())
        assert gap(whole[own, own], slow) < 1e-12


def test_rows_that_are_a_part_of_something_larger_do_not_keep_it() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(torch.tanh(x)[:, 0])
            return out

    net, x = First().double().eval(), torch.randn(6, 50, 5, dtype=torch.float64)
    samples = Samples([(x, torch.zeros(6, dtype=torch.long))])
    with at_rest(net), torch.no_grad():
        met = met_once(net, {"head": [net.head]}, samples, torch.ones(6, 3).double(), 6)["head"]
    assert met.rows.untyped_storage().nbytes() == met.rows.numel() * 8
    assert gap(met.squares(), torch.tanh(x[:, 0]).square().sum(1) * net.head.weight.shape[0]) < 1e-12


def test_nothing_is_left_behind() -> None:
    net, x, y = odd()
    with at_rest(net), torch.no_grad():
        met_once(net, {"once.weight": [net.once]}, Samples([(x, y)]), torch.ones(7, 4).double(), 3)
    assert not any(module._forward_hooks for module in net.modules())
    assert all(p.grad is None for p in net.parameters())
