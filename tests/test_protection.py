"""What each direction keeps of a step: the identities of unweave.protection, against slow float64 oracles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import grams_from
from problems import Problem
from torch import Tensor
from torch.nn import functional as F

import unweave
from unweave.errors import ConfigError
from unweave.protection import FAINT, PROTECTIONS, faint_share, hard, soft, uses_all_alike
from unweave.reading.samples import Samples
from unweave.walking.descent import Descent

GAMMAS = [0.05, 0.5, 0.9, 0.99, 0.999999]


def spectrum(d: int, fall: float, seed: int = 0) -> Tensor:
    noise = torch.rand(d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (torch.arange(1, d + 1) ** -fall * (1 + noise)).sort(descending=True).values[None]


def everything(sigma: Tensor) -> Tensor:
    return torch.tensor([sigma.shape[1]] * len(sigma))


def gram_and_gradient(d: int = 12, m: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(40, d, dtype=torch.float64, generator=generator) * torch.arange(1, d + 1) ** -1.5
    return rows.mT @ rows, torch.randn(m, d, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("fall", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_protected_share_of_the_energy_is_gamma(gamma: float, fall: float, power: int) -> None:
    sigma = spectrum(50, fall)
    left = soft(sigma, gamma, power, everything(sigma))
    assert ((1 - left) * sigma**power).sum() / (sigma**power).sum() == pytest.approx(gamma, rel=1e-12)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_all_directions_share_one_mu(gamma: float) -> None:
    sigma = spectrum(30, 1.0)
    left = soft(sigma, gamma, 1, everything(sigma))
    mu = sigma**2 * left / (1 - left)
    np.testing.assert_allclose(mu, mu.mean().expand_as(mu), rtol=1e-9)
    assert bool((left.diff() >= 0).all())  # what is used more keeps less


def test_the_scale_of_the_rows_does_not_matter() -> None:
    sigma = spectrum(30, 1.0)
    np.testing.assert_allclose(soft(1e6 * sigma, 0.9, 1, everything(sigma)), soft(sigma, 0.9, 1, everything(sigma)))


def test_equal_directions_all_keep_the_same() -> None:
    sigma = torch.ones(1, 8, dtype=torch.float64)
    np.testing.assert_allclose(soft(sigma, 0.75, 1, everything(sigma)), 0.25)


def test_a_group_of_its_own_has_a_mu_of_its_own() -> None:
    pair = torch.cat([spectrum(20, 1.0), 100 * spectrum(20, 2.0, seed=1)])
    both = soft(pair, 0.8, 1, everything(pair))
    for i in range(2):
        np.testing.assert_array_equal(both[i], soft(pair[i : i + 1], 0.8, 1, torch.tensor([20]))[0])


def test_directions_that_the_data_does_not_have_are_free() -> None:
    sigma = torch.cat([spectrum(10, 1.0), 1e-12 * torch.ones(1, 5)], 1)
    left = soft(sigma, 0.9, 1, torch.tensor([10]))
    assert bool((left[0, 10:] == 1).all())
    np.testing.assert_allclose(left[:, :10], soft(sigma[:, :10], 0.9, 1, torch.tensor([10])), rtol=1e-9)
    assert bool((soft(torch.zeros(1, 6).double(), 0.9, 1, torch.tensor([0])) == 1).all())


def test_gamma_one_and_groups_of_one_direction_are_hard() -> None:
    sigma = spectrum(10, 1.0)
    np.testing.assert_array_equal(soft(sigma, 1.0, 1, torch.tensor([7])), hard(torch.tensor([7]), 10))
    ids = torch.tensor([[2.0], [0.0]]).double()
    np.testing.assert_array_equal(soft(ids, 0.5, 1, torch.tensor([1, 0])), [[0.0], [1.0]])


# --------------------------------------------------------------------------------------------------------------- auto


def space_of(grams: dict[str, Tensor], protect: str) -> unweave.CoreSpace:
    return unweave.CoreSpace.from_grams(grams_from(grams), 0.9, protect=protect)


def from_the_faintest(sigma: list[float]) -> float:
    """What the last tenth of Σ σ holds of Σ λ, gathered from the faintest direction on; the first has no part in it."""
    room, held = FAINT * sum(sigma), 0.0
    for one in reversed(sigma[1:]):
        held += min(one, room) * one
        room -= min(one, room)
    return held / sum(one**2 for one in sigma)


def test_what_is_faint_is_gathered_from_the_faintest_on() -> None:
    gram, _ = gram_and_gradient()
    layer = unweave.CoreSpace.from_grams(grams_from({"layer": gram}), 1 - FAINT, protect="hard").layers["layer"]
    outside = layer.rest[0]  # all of the last tenth, but for the direction that it begins in
    free = float(torch.trace(outside.mT @ gram @ outside) / torch.trace(gram))
    assert free < faint_share(layer.sigma) == pytest.approx(from_the_faintest(layer.sigma[0].tolist()), rel=1e-9)
    assert faint_share(torch.zeros(1, 3)) == 0.0
    assert faint_share(torch.tensor([[2.0], [0.0]])) == 0.0, "groups of one direction are used whole or not at all"
    assert faint_share(torch.tensor([[1.0, 0.01, 0.0]])) < 2e-4, "one holds nine tenths alone, and is not faint"
    assert faint_share(torch.tensor([[3.0, 3.0], [1.0, 0.1]])) == pytest.approx((0.6 * 3 + 0.1 * 0.1) / 19.01)


@pytest.mark.parametrize("d", [2, 3, 8, 9, 10, 20])
def test_of_directions_that_are_used_alike_a_tenth_is_faint(d: int) -> None:
    assert faint_share(torch.ones(1, d)) == pytest.approx(FAINT)


@pytest.mark.parametrize(("share", "alike"), [(0.019, False), (0.021, True)])
def test_from_where_on_directions_are_used_alike(share: float, alike: bool) -> None:
    """Of σ = (1, s) with s > 1/9 a part of the second is faint: FAINT (1 + s) s of 1 + s²."""
    s = (-FAINT + (FAINT**2 + 4 * (FAINT - share) * share) ** 0.5) / (2 * (FAINT - share))
    sigma = torch.tensor([[1.0, s]], dtype=torch.float64)
    assert faint_share(sigma) == pytest.approx(share)
    assert uses_all_alike(sigma) == alike


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
def test_auto_is_hard_where_directions_are_used_unlike_and_soft_where_alike(gamma: float) -> None:
    steep, flat, narrow = (
        torch.diag(torch.arange(1, 31.0) ** -3).double(),
        torch.eye(20).double(),
        torch.eye(4).double(),
    )
    grams = grams_from({"steep": steep, "flat": flat, "narrow": narrow})
    of = {name: unweave.CoreSpace.from_grams(grams, gamma, protect=name).layers for name in PROTECTIONS}
    for name, like in (("steep", "hard"), ("flat", "soft"), ("narrow", "soft")):
        assert torch.equal(of["auto"][name].left, of[like][name].left)
        assert torch.equal(of["auto"][name].rank, of[like][name].rank)
    assert not torch.equal(of["auto"]["flat"].left, of["hard"]["flat"].left)
    assert not torch.equal(of["auto"]["steep"].left, of["soft"]["steep"].left)


def test_auto_is_the_default_where_samples_or_classes_are_matched() -> None:
    for settings, protect in (
        ({}, "auto"),
        ({"task": "classes"}, "auto"),
        ({"task": "poison"}, "hard"),
        ({"objective": "paper"}, "hard"),
        ({"rank_rule": "le"}, "hard"),
        ({"way": "solve"}, "soft"),
        ({"way": "solve", "protect": "auto"}, "auto"),
        ({"task": "poison", "protect": "auto"}, "auto"),
    ):
        assert unweave.ForgetConfig(**settings).resolved().protect == protect


# ---------------------------------------------------------------------------------------------------- as a projection


def projected(gram: Tensor, gradient: Tensor, gamma: float, protect: str) -> tuple[Tensor, Tensor]:
    """What is left of a gradient, and w."""
    space = unweave.CoreSpace.from_grams(grams_from({"layer": gram}), gamma, protect=protect)
    return space.project("layer", gradient), space.layers["layer"].left[0]


@pytest.mark.parametrize("gamma", [0.3, 0.9, 0.99])
def test_the_step_is_the_ridge_step(gamma: float) -> None:
    gram, gradient = gram_and_gradient()
    found, left = projected(gram, gradient, gamma, "soft")
    lam = torch.linalg.eigvalsh(gram).flip(0)
    mu = (lam * left / (1 - left)).mean()
    oracle = torch.linalg.solve(torch.eye(len(gram)).double() + gram / mu, gradient, left=False)
    np.testing.assert_allclose(found, oracle, atol=1e-11)


def test_no_other_step_is_better_for_its_length_and_what_is_felt_of_it() -> None:
    gram, gradient = gram_and_gradient()
    found, left = projected(gram, gradient, 0.9, "soft")
    lam = torch.linalg.eigvalsh(gram).flip(0)
    mu = (lam * left / (1 - left)).mean()

    def worth(step: Tensor) -> float:
        felt = (step @ gram * step).sum()
        return float((gradient * step).sum() + 0.5 * step.square().sum() + felt / (2 * mu))

    noise = torch.randn(100, *gradient.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert all(worth(-found) < worth(-found + size * step) for step in noise for size in (1e-3, 1.0))
    assert worth(-found) < worth(-projected(gram, gradient, 0.9, "hard")[0])


@pytest.mark.parametrize("protect", ["soft", "hard"])
def test_at_gamma_one_hard_and_soft_move_in_the_null_space_alone(protect: str) -> None:
    gram, gradient = gram_and_gradient()
    few = gram[:, :4] @ gram[:4]  # rank 4
    found, _ = projected(few, gradient, 1.0, protect)
    assert float((found @ few).norm()) < 1e-6 * float((gradient @ few).norm())
    assert float(found.norm()) > 0.1 * float(gradient.norm())


@pytest.mark.parametrize("dtype, off", [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_a_soft_projection_comes_in_the_gradients_own_type(dtype: torch.dtype, off: float) -> None:
    gram, gradient = gram_and_gradient()
    exact, _ = projected(gram, gradient.to(dtype).double(), 0.9, "soft")
    found, _ = projected(gram, gradient.to(dtype), 0.9, "soft")
    assert found.dtype == dtype
    assert float((found.double() - exact).norm() / exact.norm()) < off


@pytest.mark.parametrize("protect", ["soft", "hard"])
@pytest.mark.parametrize("stored", ["float64", "float32"])
def test_few_digits_in_a_file_do_not_set_used_directions_free(stored: str, protect: str) -> None:
    """Most of the energy here is in directions below the root of what float32 tells from nothing."""
    sigma = torch.cat([torch.tensor([1.0]), torch.full((200,), 1e-3)]).double()
    grams = grams_from({"layer": torch.diag(sigma**2)}, stored=stored)
    layer = unweave.CoreSpace.from_grams(grams, 0.98, protect=protect).layers["layer"]
    protected = float(((1 - layer.left[0]) * sigma).sum() / sigma.sum())
    assert protected == pytest.approx(0.98, abs=1e-3)


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("protect", ["soft", "hard"])
def test_a_step_of_sgd_is_weighed_twice_whoever_chose_its_length(protect: str, relative: bool) -> None:
    """Soft projections weigh anew each time; for hard a second one only mends rounding."""
    gram, gradient = gram_and_gradient()
    net = torch.nn.Linear(12, 2, bias=False).double()
    space = unweave.CoreSpace.from_grams(grams_from({"": gram}), 0.9, protect=protect)
    descent, before = Descent(net, {"": net.weight}, space, "sgd"), net.weight.detach().clone()
    descent._size.fill_(0.1)
    descent._step({"": gradient}, relative=relative)
    way = -(net.weight.detach() - before)
    expected = space.project("", space.project("", gradient))
    np.testing.assert_allclose(way, 0.1 * expected / (expected.norm() if relative else 1.0), atol=1e-12)


class Two(torch.nn.Module):
    """Layers of which auto protects one hard and the other softly."""

    def __init__(self) -> None:
        super().__init__()
        self.steep, self.flat = torch.nn.Linear(30, 2).double(), torch.nn.Linear(20, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        steep: Tensor = self.steep(x[:, :30])
        return steep + self.flat(x[:, 30:])


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_each_layer_is_stepped_by_its_own_protection(rule: str) -> None:
    """Of two layers each moves as it would beside one that is protected like itself."""
    torch.manual_seed(0)
    net = Two()
    grams = {"steep": torch.diag(torch.arange(1, 31.0) ** -3).double(), "flat": torch.eye(20).double()}
    grads = {name: torch.randn_like(getattr(net, name).weight) for name in grams}
    ways = {}
    for protect in PROTECTIONS:
        space = space_of(grams, protect)
        weights = {name: getattr(net, name).weight for name in grams}
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        descent = Descent(net, weights, space, rule)
        descent._size.fill_(0.1)
        descent._step(dict(grads), relative=False)
        ways[protect] = {name: weight.detach() - before[name] for name, weight in weights.items()}
        descent.restore(before)
    np.testing.assert_allclose(ways["auto"]["steep"], ways["hard"]["steep"], atol=1e-14)
    np.testing.assert_allclose(ways["auto"]["flat"], ways["soft"]["flat"], atol=1e-14)
    assert float((ways["auto"]["flat"] - ways["hard"]["flat"]).norm()) > 1e-3


def test_only_hard_layers_are_cleared_of_what_lies_in_the_core() -> None:
    """A soft layer's way lies in the core too, and to project it once more would take of it what it was given."""
    torch.manual_seed(0)
    net = Two()
    grams = {"steep": torch.diag(torch.arange(1, 31.0) ** -3).double(), "flat": torch.eye(20).double()}
    weights = {name: getattr(net, name).weight for name in grams}
    space = space_of(grams, "auto")
    descent, before = Descent(net, weights, space, "sgd"), {n: w.detach().clone() for n, w in weights.items()}
    samples = Samples([(torch.randn(64, 50).double(), torch.randint(2, (64,)))])
    descent.epoch(samples, lambda logits, labels, _: F.cross_entropy(logits, labels), 0.1, 64, None, relative=True)
    way = {name: weight.detach() - before[name] for name, weight in weights.items()}
    core = space.layers["steep"].core[0]
    assert float((way["steep"] @ core).norm()) < 1e-15
    # one step: P P g, so what w has left of it once more is what it is, divided by w's only value
    np.testing.assert_allclose(space.project("flat", way["flat"]), 0.1 * way["flat"], atol=1e-14)
    assert float(torch.stack([part.norm() for part in way.values()]).norm()) == pytest.approx(0.1)


# -------------------------------------------------------------------------------------------------------- as a request


@pytest.mark.parametrize("problem", ["points", "pictures"])
def test_retained_samples_feel_less_of_a_soft_request(problem: str, request: pytest.FixtureRequest) -> None:
    case: Problem = request.getfixturevalue(problem)
    felt = {}
    for protect in ("soft", "hard"):
        result = case.run(protect=protect)
        assert result.ok
        felt[protect] = max(result.shift.values())
    assert felt["soft"] < felt["hard"]


def test_a_first_layer_of_flat_rows_is_felt_less_by_default(points: Problem) -> None:
    """Columns of a table without any structure: what hard leaves free is used like the rest."""
    result, hardly = points.run(), points.run(protect="hard")
    assert result.config.protect == "auto"
    assert result.ok
    assert hardly.ok
    assert max(result.shift.values()) < 0.8 * max(hardly.shift.values())


@pytest.mark.parametrize("protect", ["soft", "auto"])
def test_counting_directions_is_for_hard(protect: str) -> None:
    with pytest.raises(ConfigError, match=f"protect='{protect}' does not .*protect='hard'"):
        unweave.ForgetConfig(protect=protect, rank_rule="le")
    with pytest.raises(ConfigError, match="Invalid protect"):
        unweave.ForgetConfig(protect="firm")
