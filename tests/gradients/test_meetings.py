"""Single samples' gradients from what layers meet, against gradients taken one sample at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import gap, images, sentences, small_cnn, token_classifier
from torch import Tensor, nn
from torch.nn import functional as F

from unweave.arithmetic import patches
from unweave.gradients.meetings import gradients_from_meetings, told_apart
from unweave.gradients.singles import TRIED, Singles
from unweave.reading.rest import at_rest
from unweave.reading.samples import Samples

N, SIDE, WORDS = 5, 7, 4


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make().double().eval()


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def one_by_one(net: nn.Module, weights: dict[str, nn.Parameter], x: Any, v: Tensor) -> dict[str, Tensor]:
    rows: dict[str, list[Tensor]] = {name: [] for name in weights}
    for one, cotangent in zip(x, v, strict=True):
        pulled = (net(one[None])[0] * cotangent).sum()
        found = torch.autograd.grad(pulled, list(weights.values()), allow_unused=True)
        for (name, weight), part in zip(weights.items(), found, strict=True):
            rows[name].append(torch.zeros_like(weight) if part is None else part)
    return {name: torch.stack(own) for name, own in rows.items()}


def told(net: nn.Module, x: Tensor, size: int = 3) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Single gradients of the weights that can be told, and the same one by one."""
    weights = {name: p for name, p in net.named_parameters() if p.dim() > 1}
    v = noise(len(x), net(x[:1]).shape[1])
    samples = Samples([(x, torch.zeros(len(x), dtype=torch.long))])
    with at_rest(net):
        users = told_apart(net, weights, samples, v, size)
        found = gradients_from_meetings(net, users, {name: weights[name] for name in users}, x, v)
    return found, one_by_one(net, {name: weights[name] for name in found}, x, v)


def check(net: nn.Module, x: Tensor, names: set[str]) -> None:
    found, slow = told(net, x)
    assert set(found) == names
    for name, own in found.items():
        assert slow[name].abs().max() > 0
        assert gap(own, slow[name]) < 1e-12


class Maps(nn.Module):
    """A layer over maps or words, and the means of what it makes as logits."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)).flatten(2).square().mean(2)


@pytest.mark.parametrize(
    "make, axes",
    [
        (lambda: nn.Conv2d(4, 6, 3, padding=1), 2),
        (lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False), 2),
        (lambda: nn.Conv2d(4, 4, (2, 3), padding=(1, 0), dilation=2, groups=4), 2),
        (lambda: nn.Conv2d(4, 6, 3, padding="same", padding_mode="reflect"), 2),
        (lambda: nn.Conv2d(4, 6, 1, stride=3), 2),
        (lambda: nn.Conv1d(4, 6, 3, padding=2, groups=2), 1),
        (lambda: nn.Conv3d(4, 2, 2, stride=2), 3),
    ],
)
@pytest.mark.parametrize("elements", [1, 700, 1 << 22], ids=["lines", "few samples", "whole"])
def test_convolutions(make: Callable[[], nn.Module], axes: int, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(patches.PATCH_ELEMENTS, "cpu", elements)
    check(seeded(lambda: Maps(make())), noise(N, 4, *[SIDE] * axes), {"layer.weight"})


def test_networks_of_several_layers() -> None:
    check(small_cnn().eval(), images(N)[0], {"0.weight", "3.weight", "7.weight"})


def test_the_conv1d_of_transformers_is_the_other_way_round() -> None:
    from transformers.pytorch_utils import Conv1D

    check(seeded(lambda: Words(Conv1D(6, 4))), noise(N, WORDS, 4), {"layer.weight", "head.weight"})


class Words(nn.Module):
    """A layer over words, and a head on their mean."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.layer(x)).mean(1))
        return out


class WordsFirst(Words):
    """As its layer sees it, the first axis is that of the words."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.layer(x.transpose(0, 1))).mean(0))
        return out


class Together(Words):
    """Its layer sees the words of all samples along one axis."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.layer(x.flatten(0, 1))).view(*x.shape[:2], -1).mean(1))
        return out


class Elsewhere(Words):
    """Its weight is used where no hook sees it."""

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.layer, nn.Linear)
        return super().forward(x) + F.linear(x.mean(1), self.layer.weight)[:, :3].square()


class ChangesItsInput(Words):
    """What its layer saw is something else afterwards. (Without gradients of weights, autograd allows that.)"""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        hidden = torch.tanh(self.layer(x))
        x.mul_(3)
        out: Tensor = self.head((hidden * x.mean((1, 2), keepdim=True)).mean(1))
        return out


class Sorting(Words):
    """Its layer sees one sample after the other, in an order of its own."""

    def forward(self, x: Tensor) -> Tensor:
        order = x.sum((1, 2)).argsort(descending=True)
        hidden = torch.tanh(self.layer(x[order]))[order.argsort()]
        out: Tensor = self.head(hidden.mean(1))
        return out


class Experts(Words):
    """A layer for samples of positive sum, where there is one, and a head for all."""

    def forward(self, x: Tensor) -> Tensor:
        chosen = x.sum((1, 2)) > 0
        hidden = x.new_zeros(*x.shape[:2], 6)
        hidden[chosen] = torch.tanh(self.layer(x[chosen]))
        out: Tensor = self.head(hidden.mean(1))
        return out


class Positions(Words):
    """Its layer sees the same rows however many samples there are."""

    def forward(self, x: Tensor) -> Tensor:
        places = torch.linspace(0, 1, 4, dtype=x.dtype).expand(x.shape[1], 4)
        out: Tensor = self.head(torch.tanh(self.layer(places)[None] + x.sum(2, keepdim=True)).mean(1))
        return out


class Twice(nn.Module):
    """A layer that is called twice, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.twice(torch.tanh(self.twice(x))).mean(1)
        out: Tensor = self.one(hidden) * self.other(input=x[:, 0])
        return out


@pytest.mark.parametrize("words", [WORDS, N])
@pytest.mark.parametrize(
    "kind, names",
    [
        (Words, {"layer.weight", "head.weight"}),
        (WordsFirst, {"head.weight"}),
        (Together, {"head.weight"}),
        (Elsewhere, {"head.weight"}),
        (Positions, {"head.weight"}),
        (ChangesItsInput, {"head.weight"}),
        (Sorting, {"head.weight"}),
        (Experts, {"head.weight"}),
    ],
)
def test_only_layers_that_tell_are_asked(kind: type[Words], names: set[str], words: int) -> None:
    check(seeded(lambda: kind(nn.Linear(4, 6))), noise(N, words, 4), names)


def test_an_expert_that_met_all_of_the_first_samples_tells_no_more_once_it_meets_fewer() -> None:
    net = seeded(lambda: Experts(nn.Linear(4, 6)))
    x = torch.cat([noise(TRIED, WORDS, 4).abs(), noise(N, WORDS, 4)])
    weights = {name: p for name, p in net.named_parameters() if p.dim() > 1}
    v = noise(len(x), 3)
    with at_rest(net):
        singles = Singles(net, weights, Samples([(x, torch.zeros(len(x), dtype=torch.long))]), v)
        assert set(singles.users) == {"layer.weight", "head.weight"}
        found = singles(weights, x[TRIED:], v[TRIED:])
    assert set(singles.users) == {"head.weight"}
    slow = one_by_one(net, weights, x[TRIED:], v[TRIED:])
    assert slow["layer.weight"].abs().amax((1, 2)).min() == 0 < slow["layer.weight"].abs().max()
    assert max(gap(found[name], slow[name]) for name in weights) < 1e-12


class FlatExperts(Words):
    """A layer for the words of a few samples, which it sees along one axis, and a head for all."""

    def forward(self, x: Tensor) -> Tensor:
        chosen = x.sum((1, 2)) > 0
        hidden = torch.tanh(x).repeat_interleave(2, 2)[..., :6]
        if bool(chosen.any()):
            hidden = hidden.clone()
            hidden[chosen] = torch.tanh(self.layer(x[chosen].flatten(0, 1))).view(-1, x.shape[1], 6)
        out: Tensor = self.head(hidden.mean(1))
        return out


def test_a_layer_that_the_first_samples_do_not_call_is_not_told() -> None:
    net = seeded(lambda: FlatExperts(nn.Linear(4, 6)))
    first, later = (
        -noise(TRIED, WORDS, 4).abs(),
        torch.cat([noise(1, WORDS, 4).abs(), -noise(WORDS - 1, WORDS, 4).abs()]),
    )
    x = torch.cat([first, later])  # one of the last four calls it, with as many words as there are samples
    weights = {name: p for name, p in net.named_parameters() if p.dim() > 1}
    v = noise(len(x), 3)
    with at_rest(net):
        singles = Singles(net, weights, Samples([(x, torch.zeros(len(x), dtype=torch.long))]), v)
        assert set(singles.users) == {"head.weight"}
        found = singles(weights, later, v[TRIED:])
    slow = one_by_one(net, weights, later, v[TRIED:])
    assert slow["layer.weight"].abs().amax((1, 2)).count_nonzero() == 1
    assert max(gap(found[name], slow[name]) for name in weights) < 1e-12


class Doubled(torch.autograd.Function):
    """Written as before torch.func, which does not take it."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(context: Any, slope: Tensor) -> Tensor:
        return 2 * slope


class OldFashioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(Doubled.apply(torch.tanh(self.words(ids))).mean(1))
        return out


def test_functions_that_torch_func_does_not_take_are_run_one_sample_at_a_time() -> None:
    net, ids = seeded(OldFashioned), torch.arange(N * WORDS).view(N, WORDS) % 9
    weights, v = {name: p for name, p in net.named_parameters() if p.dim() > 1}, noise(N, 3)
    with at_rest(net):
        singles = Singles(net, weights, Samples([(ids, torch.zeros(N, dtype=torch.long))]), v)
        assert set(singles.users) == {"head.weight"}
        found = singles(weights, ids, v)
    slow = one_by_one(net, weights, ids, v)
    assert max(gap(found[name], slow[name]) for name in weights) < 1e-12


def test_calls_and_layers_of_one_weight_add_up() -> None:
    check(seeded(Twice), noise(N, WORDS, 4), {"twice.weight", "one.weight"})


def test_other_kinds_are_left_to_others() -> None:
    net, (ids, _) = token_classifier().eval(), sentences(N)
    found, slow = told(net, ids)
    assert "head.weight" in found
    assert not any("embed" in name for name in found)
    assert max(gap(own, slow[name]) for name, own in found.items()) < 1e-12


class OwnForward(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


def test_a_forward_of_ones_own_is_not_read() -> None:
    check(seeded(lambda: Words(OwnForward(4, 6))), noise(N, WORDS, 4), {"head.weight"})


def test_half_precision_is_told_in_float32() -> None:
    net = seeded(lambda: Words(nn.Linear(4, 6))).bfloat16()
    found, slow = told(net, noise(N, WORDS, 4).bfloat16())
    assert {own.dtype for own in found.values()} == {torch.float32}
    assert max(gap(own, slow[name].float()) for name, own in found.items()) < 0.05


def test_frozen_weights_are_told_and_nothing_is_left_behind() -> None:
    net, x = seeded(lambda: Words(nn.Linear(4, 6))), noise(N, WORDS, 4)
    slow = one_by_one(net, {"layer.weight": net.layer.weight}, x, noise(N, 3))
    net.idle = nn.Linear(2, 2).double()
    net.requires_grad_(False)
    samples = Samples([(x, torch.zeros(N, dtype=torch.long))])
    weights = {"layer.weight": net.layer.weight, "idle.weight": net.idle.weight}
    with at_rest(net):
        users = told_apart(net, weights, samples, noise(N, 3), 2)
        found = gradients_from_meetings(net, users, {name: weights[name] for name in users}, x, noise(N, 3))
    assert set(found) == {"layer.weight"}, "a layer that is not called tells nothing yet"
    assert gap(found["layer.weight"], slow["layer.weight"]) < 1e-12
    assert not any(p.requires_grad or p.grad is not None for p in net.parameters())
    assert not any(module._forward_hooks for module in net.modules())


def test_where_no_logit_hangs_on_any_weight_none_is_told() -> None:
    net = seeded(lambda: Words(nn.Linear(4, 6)))
    net.idle = nn.Linear(2, 2).double()
    samples = Samples([(noise(N, WORDS, 4), torch.zeros(N, dtype=torch.long))])
    with at_rest(net):
        assert told_apart(net, {"idle.weight": net.idle.weight}, samples, noise(N, 3), 2) == {}
