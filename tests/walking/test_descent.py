from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from helpers import gap, images, in_batches, small_cnn
from torch import Tensor, nn
from torch.nn import functional as F

import unweave
from unweave.layers import find_layers
from unweave.reading.rest import at_rest, only_moving
from unweave.reading.samples import Samples
from unweave.space import CoreSpace
from unweave.trust import TrustRegion
from unweave.walking.descent import Descent

RULES = ["sgd", "adam"]


def loss(logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
    return -F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, labels)


class Walk:
    """A descent over a small network, with what it may not touch."""

    def __init__(self, net: nn.Module, data: tuple[Tensor, Tensor], rule: str = "sgd", **space: Any) -> None:
        self.net = net.eval()
        self.samples = Samples(in_batches(*data, 4))
        grams = unweave.fit(net, in_batches(*data, 4))
        self.space = CoreSpace.from_grams(grams, **{"gamma": 0.8, **space})
        layers = find_layers(net)
        weights = {name: layers[name].parameter for name in grams if name not in self.space.frozen}
        self.descent = Descent(net, weights, self.space, rule)
        self.start = self.descent.snapshot()

    def epoch(self, size: float = 0.1, relative: bool = False) -> None:
        with only_moving(self.net, self.descent.weights.values()):
            self.descent.epoch(self.samples, loss, size, 4, None, relative)

    def in_core(self, name: str) -> float:
        """The part of the way gone so far that lies in the core space, relative to the way."""
        way = self.descent.snapshot()[name] - self.start[name]
        matrix = self.space.layers[name].info.as_matrix(way).double()
        core = self.space.layers[name].core.to(matrix.device)
        return ((matrix @ core).norm() / matrix.norm()).item()


def walk_on_cnn(rule: str = "sgd", **space: Any) -> Walk:
    return Walk(small_cnn(), images(8), rule, **space)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_every_step_lies_in_the_complement_of_the_core_space(rule: str, relative: bool) -> None:
    walk = walk_on_cnn(rule)
    with mock.patch.object(Descent, "_keep_clear_of_the_core"):  # it would hide a step that does not
        for _ in range(3):
            walk.epoch(relative=relative)
            assert all(walk.in_core(name) < 1e-12 for name in walk.descent.weights)


@pytest.mark.parametrize("rule", RULES)
def test_every_point_between_two_snapshots_lies_there_too(rule: str) -> None:
    walk = walk_on_cnn(rule)
    walk.epoch()
    one = walk.descent.snapshot()
    walk.epoch()
    other = walk.descent.snapshot()
    for share in (0.0, 0.3, 1.0):
        walk.descent.between(one, other, share)
        assert all(walk.in_core(name) < 1e-12 for name in walk.descent.weights)
        expected = torch.lerp(one["7"], other["7"], share)
        assert gap(walk.net[7].weight.detach(), expected) < 1e-15


def nearly_all_in_the_core() -> Walk:
    net = nn.Sequential(nn.Linear(30, 3, bias=False))
    x = torch.randn(8, 30)
    x[:, 12:] *= 1e-5
    return Walk(net, (x, torch.arange(8) % 3), gamma=0.999)


def test_a_step_of_given_length_keeps_clear_of_the_core_where_hardly_any_gradient_is_left() -> None:
    """All but rounding of this gradient lies in the core: stretching what is left must not stretch the rounding."""
    walk = nearly_all_in_the_core()
    assert 2 * walk.space.ranks["0"] <= 30
    walk.epoch(size=1.0, relative=True)
    assert walk.in_core("0") < 1e-5


@pytest.mark.parametrize(
    "rule, relative, space, coarse",
    [
        ("sgd", True, {}, True),
        ("sgd", False, {}, False),
        ("adam", True, {}, False),
        ("sgd", True, {"protect": "soft"}, False),
    ],
)
def test_only_steps_whose_way_is_cleared_afterwards_are_projected_in_few_digits(
    rule: str, relative: bool, space: dict[str, str], coarse: bool
) -> None:
    walk, times = walk_on_cnn(rule, **space), 2 if coarse else 0
    with mock.patch("unweave.walking.descent.products_as_convolutions", side_effect=lambda _: nullcontext()) as few:
        walk.epoch(relative=relative)
        assert few.call_count == times // 2, "the first of two steps tells how much of a gradient is left"
        walk.epoch(relative=relative)
    assert few.call_count == times // 2 + times
    assert walk.descent._few_digits is (True if coarse else None)


def test_steps_of_which_hardly_anything_is_left_are_projected_in_full() -> None:
    walk = nearly_all_in_the_core()
    with mock.patch("unweave.walking.descent.products_as_convolutions", side_effect=AssertionError):
        walk.epoch(relative=True)
        walk.epoch(relative=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_few_digits_lead_the_same_way_and_leave_nothing_in_the_core() -> None:
    x, labels = images(8)
    ways = []
    for convolutions in ("tf32", "ieee"):
        walk = Walk(small_cnn().float().cuda(), (x.float().cuda(), labels.cuda()))
        with at_rest(walk.net, gradients=True, convolutions=convolutions):
            for _ in range(4):
                walk.epoch(relative=True)
                assert all(walk.in_core(name) < 1e-5 for name in walk.descent.weights)
        state = walk.descent.snapshot()
        ways.append(torch.cat([(state[name] - walk.start[name]).flatten() for name in walk.start]))
    assert torch.cosine_similarity(*ways, dim=0) > 0.99


def test_sgd_takes_the_projected_gradient_times_the_learning_rate() -> None:
    walk = Walk(small_cnn(), images(4))
    x, labels = images(4)
    gradient = torch.autograd.grad(loss(walk.net(x), labels, labels), walk.net[7].weight)[0]
    walk.epoch(size=0.3)
    expected = walk.start["7"] - 0.3 * walk.space.project("7", gradient)
    assert gap(walk.net[7].weight.detach(), expected) < 1e-12


def test_a_relative_step_is_as_long_as_asked() -> None:
    walk = Walk(small_cnn(), images(4))
    walk.epoch(size=0.3, relative=True)
    ways = [walk.descent.snapshot()[name] - walk.start[name] for name in walk.start]
    assert torch.stack([way.norm() for way in ways]).norm().item() == pytest.approx(0.3)


@pytest.mark.parametrize("rule", RULES)
def test_biases_norms_and_buffers_never_move(rule: str) -> None:
    walk = walk_on_cnn(rule)
    before = copy.deepcopy(walk.net.state_dict())
    walk.epoch()
    moved = {name for name, value in walk.net.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"0.weight", "3.weight", "7.weight"}


@pytest.mark.parametrize("rule", RULES)
def test_frozen_layers_never_move(rule: str) -> None:
    walk = walk_on_cnn(rule, gamma={"default": 0.8, "3": 1.0}, freeze_at_one=True)
    before = walk.net[3].weight.detach().clone()
    walk.epoch()
    assert torch.equal(walk.net[3].weight, before)
    assert "3" not in walk.descent.moving()


@pytest.mark.parametrize("rule", RULES)
def test_a_layer_whose_every_direction_is_used_stays_where_it_is(rule: str) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    walk = Walk(net, (torch.randn(40, 3, dtype=torch.float64), torch.arange(40) % 3), rule, gamma=1.0)
    walk.epoch(relative=True)
    assert torch.equal(walk.descent.snapshot()["0"], walk.start["0"])


@pytest.mark.parametrize("rule", RULES)
def test_small_steps_of_half_precision_weights_add_up(rule: str) -> None:
    """A single such step is less than half of what bfloat16 can tell from 1."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 3, bias=False))
    x, labels = torch.randn(4, 12), torch.arange(4) % 3
    exact = Walk(copy.deepcopy(net.bfloat16()).float(), (x, labels), rule, gamma=0.5)
    coarse = Walk(net.bfloat16(), (x.bfloat16(), labels), rule, gamma=0.5)
    for _ in range(50):
        exact.epoch(size=1e-4)
        coarse.epoch(size=1e-4)
    gone = (coarse.descent.snapshot()["0"] - coarse.start["0"]).norm()
    expected = (exact.descent.snapshot()["0"] - exact.start["0"]).norm()
    assert gone.item() == pytest.approx(expected.item(), rel=0.1)
    assert torch.equal(net[0].weight, coarse.descent.snapshot()["0"].bfloat16())


def test_snapshots_are_copies_and_come_back_to_the_bit() -> None:
    walk = walk_on_cnn("adam")
    walk.epoch()
    there = walk.descent.snapshot()
    weight = walk.net[7].weight.detach().clone()
    walk.epoch()
    assert not torch.equal(walk.net[7].weight, weight)
    walk.descent.restore(there)
    assert torch.equal(walk.net[7].weight, weight)


def test_a_reset_adam_takes_its_first_step_again() -> None:
    walk = walk_on_cnn("adam")
    walk.epoch()
    first = walk.descent.snapshot()["7"]
    walk.descent.restore(walk.start)
    walk.descent.reset_moments()
    walk.epoch()
    assert torch.equal(walk.descent.snapshot()["7"], first)


def test_requires_grad_flags_come_back_even_after_an_error() -> None:
    net = small_cnn()
    net[0].weight.requires_grad_(False)
    flags = {name: p.requires_grad for name, p in net.named_parameters()}

    def break_off() -> None:
        with only_moving(net, [net[0].weight]):
            assert {name for name, p in net.named_parameters() if p.requires_grad} == {"0.weight"}
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    assert {name: p.requires_grad for name, p in net.named_parameters()} == flags


def test_no_gradient_is_left_on_the_parameters() -> None:
    walk = walk_on_cnn()
    walk.epoch()
    assert all(p.grad is None for p in walk.net.parameters())


def test_the_trust_region_scales_at_a_tenth_of_the_learning_rate() -> None:
    net = nn.Sequential(nn.Linear(10, 3)).double()
    x, labels = torch.randn(4, 10, dtype=torch.float64), torch.arange(4) % 3
    walk = Walk(net, (x, labels), gamma=0.9)
    weight = net[0].weight
    trust = TrustRegion("0", weight, walk.space.layers["0"], 400)
    descent = Descent(net, {"0": weight}, walk.space, "sgd", trust, "0.weight")
    value = loss(F.linear(x, trust.effective(), net[0].bias), labels, labels)
    gradient = torch.autograd.grad(value, trust.scale)[0]
    with only_moving(net, descent.weights.values()):
        descent.epoch(walk.samples, loss, 0.2, 4, None, False)
    assert gradient.abs().max() > 0
    assert gap(trust.scale.detach(), torch.eye(len(trust.scale), dtype=torch.float64) - 0.02 * gradient) < 1e-12


def test_a_folded_scale_outlives_what_ranks_agree_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of few digits is walked in more of them: those must know of the fold, or aligning takes it back."""
    net = nn.Sequential(nn.Linear(10, 3)).bfloat16()
    walk = Walk(nn.Sequential(nn.Linear(10, 3)), (torch.randn(4, 10), torch.arange(4) % 3), gamma=0.9)
    trust = TrustRegion("0", net[0].weight, walk.space.layers["0"], 400)
    descent = Descent(net, {"0": net[0].weight}, walk.space, "sgd", trust, "0.weight")
    with torch.no_grad():
        trust.scale.mul_(2.0)
    folded = trust.effective().detach().clone()
    assert not torch.equal(folded, net[0].weight)
    monkeypatch.setattr("unweave.walking.descent.ranks", lambda: 2)
    monkeypatch.setattr("unweave.walking.descent.broadcast", lambda value, source: value)
    descent.fold()
    descent.align()
    assert torch.equal(net[0].weight, folded)


def test_values_that_are_not_finite_are_noticed() -> None:
    walk = walk_on_cnn()
    assert walk.descent.finite()
    with torch.no_grad():
        walk.net[7].weight[0, 0] = float("inf")
    assert not walk.descent.finite()
