from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch
from helpers import (
    gap,
    grams_from,
    images,
    in_batches,
    sentences,
    small_cnn,
    spectrum_gram,
    token_classifier,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import unweave
from unweave import CoreSpace
from unweave.errors import ConfigError, LayerError
from unweave.layers import find_layers
from unweave.reading.batches import run

EXACT = 1e-10


def space_of(sigma: list[float], gamma: Any = 0.9, **options: Any) -> CoreSpace:
    return CoreSpace.from_grams(grams_from({"layer": spectrum_gram(sigma)}), gamma, **options)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -------------------------------------------------------------------------------------------------------- the projector


@pytest.fixture(params=[0.3, 0.9, 1.0], ids=lambda gamma: f"gamma={gamma}")
def fitted(request: pytest.FixtureRequest) -> tuple[CoreSpace, dict[str, Tensor]]:
    """A core space with plain, grouped and in-first layers, and a gradient for each."""
    net = token_classifier()
    grams = unweave.fit(net, in_batches(*sentences(3), 3))
    grads = {name: random(*info.weight_shape) for name, info in grams.layers.items()}
    return CoreSpace.from_grams(grams, request.param), grads


def test_projecting_twice_is_projecting_once(fitted: tuple[CoreSpace, dict[str, Tensor]]) -> None:
    space, grads = fitted
    for name, grad in grads.items():
        once = space.project(name, grad)
        assert gap(space.project(name, once), once) < EXACT


def test_the_projector_is_symmetric(fitted: tuple[CoreSpace, dict[str, Tensor]]) -> None:
    space, grads = fitted
    for name, grad in grads.items():
        other = random(*grad.shape, seed=1)
        here = (space.project(name, grad) * other).sum()
        there = (grad * space.project(name, other)).sum()
        assert abs(here - there) < EXACT * grad.norm() * other.norm()


def test_what_is_left_is_orthogonal_to_the_core(fitted: tuple[CoreSpace, dict[str, Tensor]]) -> None:
    space, grads = fitted
    for name, grad in grads.items():
        layer = space.layers[name]
        left = layer.info.as_matrix(space.project(name, grad))
        assert (left @ layer.core).abs().sum() < EXACT * grad.norm()


def test_core_and_complement_say_the_same(fitted: tuple[CoreSpace, dict[str, Tensor]]) -> None:
    space, grads = fitted
    for name, grad in grads.items():
        layer = space.layers[name]
        matrix = layer.info.as_matrix(grad)
        by_core = matrix - matrix @ layer.core @ layer.core.mT
        by_rest = matrix @ layer.rest @ layer.rest.mT
        assert (by_core - by_rest).abs().max() < EXACT
        assert (layer.info.from_matrix(by_core) - space.project(name, grad)).abs().max() < EXACT


@given(st.integers(1, 6), st.integers(0, 6), st.sampled_from(["out-first", "in-first"]))
def test_projection_agrees_with_a_projector_made_from_rows(d: int, count: int, layout: str) -> None:
    """Independent of eigenvectors: I − R⁺R for the rows R themselves."""
    rows = random(count, d)
    grams = grams_from({"layer": rows.mT @ rows})
    info = grams.layers["layer"]
    shape = (2, d) if layout == "out-first" else (d, 2)
    grams.layers["layer"] = info.__class__("Linear", layout, 1, d, shape, count)
    grad = random(*shape, seed=1)
    projector = torch.eye(d, dtype=torch.float64) - torch.linalg.pinv(rows) @ rows
    expected = grad @ projector if layout == "out-first" else projector @ grad
    assert (CoreSpace.from_grams(grams, 1.0).project("layer", grad) - expected).abs().max() < 1e-8


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_shape_and_dtype_stay(dtype: torch.dtype, tolerance: float) -> None:
    space, grad = space_of([9, 5, 3, 1, 0, 0]), random(2, 6)
    left = space.project("layer", grad.to(dtype))
    assert (left.shape, left.dtype) == (grad.shape, dtype)
    assert gap(left.double(), space.project("layer", grad)) < tolerance


def test_half_precision_gradients_are_projected_in_float32() -> None:
    """What rounding leaves in the core must come from the result's own precision, not from that of the basis."""
    space = space_of([3.0] * 32 + [0.0] * 224, 1.0)
    grad = random(2, 256).bfloat16()
    left = space.project("layer", grad).double()
    by_hand = space.project("layer", grad.double()).bfloat16().double()
    assert (left - by_hand).abs().max() <= 2**-7 * by_hand.abs().max()
    assert (left == by_hand).double().mean() > 0.95


def test_project_does_not_change_the_gradient() -> None:
    grad = random(2, 3)
    before = grad.clone()
    space_of([3, 2, 0]).project("layer", grad)
    assert torch.equal(grad, before)


# -------------------------------------------------------------------------------------------------------- the rank rule


def naive_rank(sigma: list[float], gamma: float, power: int, rule: str) -> int:
    """k by an explicit walk along the spectrum, as the paper and the authors' scripts define it."""
    descending = sorted(sigma, reverse=True)
    total, so_far = sum(s**power for s in descending), 0.0
    shares = []
    for s in descending:
        so_far += s**power
        shares.append(so_far / total)
    if rule == "le":
        return sum(share <= gamma for share in shares)
    if rule == "lt":
        return sum(share < gamma for share in shares)
    return next(k for k, share in enumerate(shares, start=1) if share >= gamma)


spectra = st.lists(st.floats(0.01, 10), min_size=2, max_size=8)


@given(spectra, st.floats(0.05, 0.99), st.sampled_from(["sigma", "sigma2"]), st.sampled_from(["paper", "le", "lt"]))
def test_the_rank_is_that_of_a_naive_loop(sigma: list[float], gamma: float, energy: str, rule: str) -> None:
    power = {"sigma": 1, "sigma2": 2}[energy]
    # Two roundings of one share may fall on either side of γ; those ties are tested by hand below.
    nearby = {naive_rank(sigma, gamma + shift, power, rule) for shift in (-1e-6, 0, 1e-6)}
    assert space_of(sigma, gamma, energy=energy, rank_rule=rule).ranks["layer"] in nearby


@pytest.mark.parametrize("rule, rank", [("paper", 2), ("le", 2), ("lt", 1)])
def test_a_share_of_exactly_gamma_counts_as_the_scripts_count_it(rule: str, rank: int) -> None:
    gram = torch.diag(torch.tensor([16.0, 16.0, 4.0, 4.0]).double())  # σ = 4, 4, 2, 2: shares 1/3, 2/3, 5/6, 1
    space = CoreSpace.from_grams(grams_from({"layer": gram}), 8 / 12, rank_rule=rule)
    assert space.ranks == {"layer": rank}


@pytest.mark.parametrize("rule, rank", [("paper", 3), ("le", 2), ("lt", 2)])
def test_between_two_shares_the_scripts_keep_one_fewer(rule: str, rank: int) -> None:
    assert space_of([4, 4, 2, 2], 0.7, rank_rule=rule).ranks == {"layer": rank}


def test_the_share_is_one_of_sigma_unless_asked_otherwise() -> None:
    sigma = [10.0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert space_of(sigma, 0.9).ranks["layer"] == 9
    assert space_of(sigma, 0.9, energy="sigma2").ranks["layer"] == 1


def test_gamma_one_leaves_exactly_the_null_space() -> None:
    rows = random(5, 12)
    space = CoreSpace.from_grams(grams_from({"layer": rows.mT @ rows}), 1.0)
    assert space.ranks == {"layer": 5}
    assert (space.project("layer", random(2, 12)) @ rows.mT).abs().max() < EXACT


def test_gamma_one_with_full_rank_leaves_nothing() -> None:
    assert space_of([3, 2, 1], 1.0).project("layer", random(2, 3)).abs().max() < EXACT


def test_data_that_was_all_zero_forbids_nothing() -> None:
    space = CoreSpace.from_grams(grams_from({"layer": torch.zeros(4, 4).double()}), 0.9)
    assert space.ranks == {"layer": 0}
    assert torch.equal(space.project("layer", torch.ones(2, 4).double()), torch.ones(2, 4).double())


def test_a_weak_direction_is_no_noise() -> None:
    assert space_of([1.0, 1e-4, 0, 0], 1.0).ranks == {"layer": 2}


def test_groups_have_ranks_of_their_own() -> None:
    gram = torch.stack([spectrum_gram([5, 4, 3, 2], seed=1), spectrum_gram([9, 0, 0, 0], seed=2)])
    space = CoreSpace.from_grams(grams_from({"layer": gram}), 1.0)
    assert space.ranks == {"layer": [4, 1]}
    left = space.project("layer", random(4, 4))
    assert left[:2].abs().max() < EXACT
    assert torch.linalg.matrix_rank(left[2:]) == 2
    assert (left[2:] @ gram[1]).abs().max() < EXACT


def test_no_group_borrows_the_core_of_another() -> None:
    """Ranks 1 and 2 of 4: the core form is used, with a column of zeros for the first group."""
    gram = torch.stack([spectrum_gram([9, 0, 0, 0], seed=1), spectrum_gram([5, 4, 0, 0], seed=2)])
    space, grad = CoreSpace.from_grams(grams_from({"layer": gram}), 1.0), random(4, 4)
    alone = [CoreSpace.from_grams(grams_from({"layer": g}), 1.0) for g in gram]
    expected = torch.cat([one.project("layer", part) for one, part in zip(alone, grad.split(2), strict=True)])
    assert (space.project("layer", grad) - expected).abs().max() < EXACT


def test_negative_eigenvalues_are_clipped_or_taken_as_an_svd_takes_them() -> None:
    sigma = [5.0, 3.0, 1.0, -4.0]  # the last stands for an eigenvalue of −16
    clipped, absolute = space_of(sigma, 1.0), space_of(sigma, 1.0, negative="abs")
    assert clipped.ranks == {"layer": 3}
    assert absolute.ranks == {"layer": 4}
    assert absolute.layers["layer"].sigma[0].tolist() == pytest.approx([5, 4, 3, 1])
    assert clipped.layers["layer"].sigma[0].tolist() == pytest.approx([5, 3, 1, 0])
    assert clipped.layers["layer"].clipped == pytest.approx(16 / 51)
    assert space_of([2, 1], 0.5).layers["layer"].clipped == 0


def test_vectors_stay_with_their_values_when_abs_reorders_them() -> None:
    gram = spectrum_gram([5.0, 3.0, 1.0, -4.0])
    space = CoreSpace.from_grams(grams_from({"layer": gram}), 0.6, negative="abs")  # keeps σ = 5 and 4
    values = torch.linalg.eigvalsh(space.layers["layer"].core[0].mT @ gram @ space.layers["layer"].core[0])
    assert values.tolist() == pytest.approx([-16, 25])


# --------------------------------------------------------------------------------------------------------- the settings


def two_layers(gamma: Any, **options: Any) -> CoreSpace:
    sigma = [4.0, 3.0, 2.0, 1.0]
    return CoreSpace.from_grams(grams_from({"a": spectrum_gram(sigma), "b": spectrum_gram(sigma)}), gamma, **options)


def test_gamma_per_layer_with_a_default() -> None:
    assert two_layers({"a": 0.35, "b": 0.85}).ranks == {"a": 1, "b": 3}
    assert two_layers({"a": 0.35, "default": 0.85}).ranks == {"a": 1, "b": 3}
    assert two_layers({"default": 0.85}).ranks == {"a": 3, "b": 3}


def test_a_layer_without_gamma_is_refused() -> None:
    with pytest.raises(ConfigError, match="no value for b and no 'default'"):
        two_layers({"a": 0.4})


def test_gamma_for_an_unknown_layer_is_refused() -> None:
    with pytest.raises(LayerError, match=r"unknown layers: c\. Known: a, b"):
        two_layers({"c": 0.4, "default": 0.9})


@pytest.mark.parametrize("gamma", [0, -0.1, 1.0001, float("nan"), float("inf"), "0.9", None, True, {"default": 2}])
def test_gamma_outside_its_range_is_refused(gamma: Any) -> None:
    with pytest.raises(ConfigError, match=r"Invalid gamma for 'a'.*\(0, 1\]"):
        two_layers(gamma)


def test_gamma_may_be_any_real_number() -> None:
    assert two_layers(numpy.float32(0.85)).ranks == two_layers(Fraction(17, 20)).ranks == {"a": 3, "b": 3}


@pytest.mark.parametrize("setting", [{"energy": "power"}, {"rank_rule": "gt"}, {"negative": "keep"}])
def test_an_unknown_rule_is_refused_with_the_known_ones(setting: dict[str, str]) -> None:
    ((name, value),) = setting.items()
    with pytest.raises(ConfigError, match=rf"Invalid {name}: '{value}'. Supported: "):
        two_layers(0.9, **setting)


def test_gamma_one_freezes_a_layer_on_demand() -> None:
    space = two_layers({"a": 1.0, "default": 0.4}, freeze_at_one=True)
    assert space.frozen == {"a"}
    assert space.project("a", random(2, 4)).abs().max() == 0
    assert space.project("b", random(2, 4)).abs().max() > 0


def test_an_unknown_layer_or_a_wrong_shape_is_refused() -> None:
    space = two_layers(0.9)
    with pytest.raises(LayerError, match=r"Unknown layer 'c'\. Known: a, b"):
        space.project("c", random(2, 4))
    with pytest.raises(LayerError, match=r"'a': gradient of shape \[4, 2\], expected \[2, 4\]"):
        space.project("a", random(4, 2))


# ---------------------------------------------------------------------------------------------------------- the theorem


class Residual(nn.Module):
    """A basic block of a ResNet, with a strided shortcut where the shape changes."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
        )
        same = inside == out and stride == 1
        self.shortcut = nn.Sequential() if same else nn.Conv2d(inside, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def cnn() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(
        nn.Conv2d(8, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, stride=2, padding=1, groups=2, padding_mode="reflect"),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 3),
    )
    return net, torch.randn(8, 8, 4, 4)


def resnet() -> tuple[nn.Module, Tensor]:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 3))
    stem = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    return nn.Sequential(stem, Residual(16, 16, 1), Residual(16, 24, 2), *head), torch.randn(8, 8, 4, 4)


def vit() -> tuple[nn.Module, Tensor]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=8,
        patch_size=4,
        num_labels=3,
        initializer_range=0.2,
    )
    return ViTForImageClassification(config), torch.randn(8, 3, 8, 8)


def bert() -> tuple[nn.Module, Tensor]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=11,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=4,
        type_vocab_size=1,
        num_labels=3,
        initializer_range=0.2,
    )
    return BertForSequenceClassification(config), torch.randint(1, 11, (8, 4))


def transformer() -> tuple[nn.Module, Tensor]:
    return token_classifier(width=32, layers=2), torch.randint(11, (8, 4))


def prepared(make: Callable[[], tuple[nn.Module, Tensor]], dtype: torch.dtype) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    net, x = make()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.3, 0.3)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    net = net.to(dtype).eval()
    return net, x if x.dtype == torch.int64 else x.to(dtype), torch.arange(len(x)) % 3


def forget_loss(net: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, reversed."""
    return -F.cross_entropy(run(net, x), labels)


def descend(net: nn.Module, x: Tensor, labels: Tensor, project: Callable[[str, Tensor], Tensor]) -> list[str]:
    """Ten steps of SGD on the forget loss, each a fiftieth of the weights long, with every layer moving.

    Returns the names of the layers that moved.
    """
    weights = {name: layer.parameter for name, layer in find_layers(net).items()}
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    size = length(before)
    for _ in range(10):
        grads = torch.autograd.grad(forget_loss(net, x, labels), list(weights.values()))
        steps = {name: project(name, grad) for name, grad in zip(weights, grads, strict=True)}
        lr = 0.02 * size / length(steps)
        with torch.no_grad():
            for name, weight in weights.items():
                weight -= lr * steps[name]
    return [name for name, weight in weights.items() if (weight - before[name]).norm() > 1e-4 * before[name].norm()]


def length(tensors: dict[str, Tensor]) -> Tensor:
    return torch.stack([tensor.norm() for tensor in tensors.values()]).norm()


RETAINED = 2  # few enough that every layer has more inputs than rows
MODELS = pytest.mark.parametrize("make", [cnn, resnet, vit, bert, transformer])


def assert_theorem(net: nn.Module, x: Tensor, labels: Tensor, space: CoreSpace, tolerance: float) -> None:
    kept, forgotten = x[:RETAINED], x[RETAINED:]
    with torch.no_grad():
        before, loss_before = run(net, kept), forget_loss(net, forgotten, labels[RETAINED:])
    moved = descend(net, forgotten, labels[RETAINED:], space.project)
    with torch.no_grad():
        after, loss_after = run(net, kept), forget_loss(net, forgotten, labels[RETAINED:])
    assert (after - before).abs().max() < tolerance
    assert loss_after < loss_before - 0.3
    free = [name for name, layer in space.layers.items() if (layer.rank < layer.info.d).any()]
    assert moved == free, "every layer takes part"
    assert len(free) >= len(space.layers) - 2  # BERT's embeddings of positions and types are all in use


@MODELS
def test_projected_steps_leave_the_outputs_on_retained_data_where_they_were(make: Any) -> None:
    net, x, labels = prepared(make, torch.float64)
    grams = unweave.fit(net, [(x[:RETAINED], labels[:RETAINED])])
    assert_theorem(net, x, labels, CoreSpace.from_grams(grams, 1.0), tolerance=1e-8)


@MODELS
def test_the_same_in_float32_to_its_rounding(make: Any) -> None:
    """Rounding is relative: weights and activations are off by 6e-8 of their size, in each of ten layers and steps.
    That makes up to 1e-5 of outputs of size 1 to 10; the unprojected steps below move them by more than 0.1."""
    net, x, labels = prepared(make, torch.float32)
    grams = unweave.fit(net, [(x[:RETAINED], labels[:RETAINED])])
    assert_theorem(net, x, labels, CoreSpace.from_grams(grams, 1.0), tolerance=1e-4)


@MODELS
def test_the_same_after_a_subtraction(make: Any) -> None:
    net, x, labels = prepared(make, torch.float64)
    full = unweave.fit(net, [(x, labels)])
    retained = full - unweave.fit(net, in_batches(x[RETAINED:], labels[RETAINED:], 4))
    before = run(net, x[:RETAINED]).detach()
    descend(net, x[RETAINED:], labels[RETAINED:], CoreSpace.from_grams(retained, 1.0).project)
    assert (run(net, x[:RETAINED]) - before).abs().max() < 1e-6


@MODELS
def test_unprojected_steps_do_move_the_outputs_on_retained_data(make: Any) -> None:
    """Without this the theorem could hold for want of motion."""
    net, x, labels = prepared(make, torch.float64)
    before = run(net, x[:RETAINED]).detach()
    descend(net, x[RETAINED:], labels[RETAINED:], lambda name, grad: grad)
    assert (run(net, x[:RETAINED]) - before).abs().max() > 0.1


def test_less_than_gamma_one_bounds_what_retained_inputs_see() -> None:
    """A step of length 1 off the core changes the layer's outputs by at most the first σ that was left out."""
    net = small_cnn()
    grams = unweave.fit(net, in_batches(*images(20), 10))
    space = CoreSpace.from_grams(grams, 0.8)
    for name, layer in space.layers.items():
        step = layer.info.as_matrix(space.project(name, random(*layer.info.weight_shape)))
        gram, rank = grams.grouped(name), layer.rank
        for group in range(layer.info.groups):
            seen = (step[group] @ gram[group] @ step[group].mT).diagonal().sum().sqrt() / step[group].norm()
            assert seen <= layer.sigma[group, rank[group]] * (1 + 1e-9)
