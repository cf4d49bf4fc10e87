"""Solving for the margins of the forget set: its identities against slow float64 oracles, and requests that use it."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import problems
import pytest
import torch
from helpers import gap, images, sentences, small_cnn, state_of, token_classifier
from problems import Problem
from torch import Tensor, nn

import unweave
from unweave.behaviour.outcomes import margin
from unweave.errors import ConfigError
from unweave.gradients.jacobian import Plan, cut
from unweave.gradients.singles import Singles
from unweave.layers import find_layers
from unweave.reading.rest import at_rest
from unweave.reading.samples import Samples
from unweave.space import CoreSpace
from unweave.walking import solving
from unweave.walking.descent import Descent
from unweave.walking.loop import STRAIGHT, Request
from unweave.walking.prices import prices
from unweave.walking.solving import Solving
from unweave.walking.walk import Seen


@pytest.fixture(scope="module")
def points() -> Problem:
    return problems.points()


@pytest.fixture(scope="module")
def pictures() -> Problem:
    return problems.pictures()


class Small:
    """A network in float64 with its samples and spaces, ready to be solved for."""

    def __init__(self, net: nn.Module, x: Tensor, y: Tensor, gamma: float, protect: str) -> None:
        self.net, self.x, self.y = net, x, y
        grams = unweave.fit(net, [(x, y)])
        self.space = CoreSpace.from_grams(grams, gamma, protect=protect)
        layers = find_layers(net, grams.names)
        self.weights = {name: layers[name].parameter for name in grams}
        self.samples = Samples([(x[:6], y[:6])])
        self.solving = Solving(Descent(net, self.weights, self.space, "adam"), self.samples, 4)

    def gradients(self) -> list[tuple[Tensor, ...]]:
        """∇m_i of the samples, one at a time, by weight."""
        return [
            torch.autograd.grad(margin(self.net(x[None]), y[None]).sum(), list(self.weights.values()))
            for x, y in zip(self.x[:6], self.y[:6], strict=True)
        ]

    def roots(self) -> dict[str, Tensor]:
        """√s, in the shapes of the weights."""
        if all(layer.hard for layer in self.space.layers.values()):
            return {name: torch.ones_like(weight).detach() for name, weight in self.weights.items()}
        squares = torch.stack([torch.stack([part.square().sum() for part in own]) for own in self.gradients()])
        found = prices(self.space, dict(zip(self.weights, squares.mean(0).tolist(), strict=True)))
        return {name: _in_shape(self.space, name, price).rsqrt() for name, price in found.items()}

    def rows(self) -> Tensor:
        """√s P ∇m_i of the samples, [n, weights]."""
        roots, own = self.roots(), []
        for found in self.gradients():
            left = [
                root * self.space.project(name, part) for (name, root), part in zip(roots.items(), found, strict=True)
            ]
            own.append(torch.cat([part.reshape(-1) for part in left]))
        return torch.stack(own)

    def kernel(self) -> Tensor:
        with at_rest(self.net, gradients=True):
            return self.solving._linearised(solving._slopes(self.solving._logits(), self.samples.labels)).kernel


def _in_shape(space: CoreSpace, name: str, values: Tensor) -> Tensor:
    """A number for each group, in the weight's shape."""
    info = space.layers[name].info
    shape = info.as_matrix(torch.zeros(info.weight_shape)).shape
    return info.from_matrix(values[:, None, None].expand(shape))


def small(kind: str, gamma: float, protect: str) -> Small:
    if kind == "text":
        return Small(token_classifier().double().eval(), *sentences(12), gamma, protect)
    return Small(small_cnn().eval(), *images(12), gamma, protect)


@pytest.mark.parametrize("protect", ["hard", "soft"])
@pytest.mark.parametrize("kind", ["images", "text"])
def test_the_kernel_is_that_of_single_samples(kind: str, protect: str) -> None:
    given = small(kind, 0.7, protect)
    rows = given.rows()
    expected = rows @ rows.mT
    assert expected.diagonal().min() > 0
    assert gap(given.kernel(), expected) < 1e-11


@pytest.mark.parametrize("kind", ["images", "text"])
def test_the_kernel_may_be_made_in_slices(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, plans = small(kind, 0.7, "soft"), list[Plan]()
    rows, make = given.rows(), Plan.make

    def noted(weights: dict[str, Tensor], count: int, max_bytes: int, chunk: int) -> Plan:
        columns = sum(weight.numel() for weight in weights.values()) * 5 // 9  # the second slice begins inside a layer
        plans.append(dataclasses.replace(make(weights, count, max_bytes, chunk), slices=cut(_sizes(weights), columns)))
        return dataclasses.replace(plans[-1], chunks=[2, 2], width=columns)

    monkeypatch.setattr(Plan, "make", noted)
    assert gap(given.kernel(), rows @ rows.mT) < 1e-11
    assert [len(plan.slices) for plan in plans] == [2]
    first, second = plans[0].slices
    assert first[-1].name == second[0].name
    assert second[0].start == first[-1].stop > 0


def _sizes(weights: dict[str, Tensor]) -> dict[str, int]:
    return {name: weight.numel() for name, weight in weights.items()}


@pytest.mark.parametrize("protect", ["hard", "soft"])
def test_a_step_is_the_cheapest_change_that_brings_linear_margins_to_their_targets(
    protect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two classes the margins of a linear model are linear in its weights."""
    monkeypatch.setattr(solving, "RIDGE", 0.0)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(40, 12, dtype=torch.float64, generator=generator) * torch.arange(1, 13) ** -1.0
    y = torch.arange(40) % 2
    with torch.random.fork_rng():
        torch.manual_seed(0)
        given = Small(nn.Linear(12, 2).double().eval(), x, y, 0.5, protect)
    before, rows = given.net.weight.detach().clone(), given.rows()
    targets = torch.linspace(-2, 2, 6, dtype=torch.float64)
    gaps = targets - margin(given.net(x[:6]), y[:6]).detach()
    shortest = torch.linalg.lstsq(rows, gaps[:, None], driver="gelsd").solution.reshape(before.shape)
    expected = given.space.project("", shortest) * given.roots()[""]
    with at_rest(given.net, gradients=True):
        given.solving.step(targets, 1.0)
    assert gap(margin(given.net(x[:6]), y[:6]), targets) < 1e-8
    assert gap(given.net.weight - before, expected) < 1e-7


def test_a_share_of_a_step_goes_that_share_of_the_way() -> None:
    whole, half = small("images", 0.7, "soft"), small("images", 0.7, "soft")
    before = [weight.detach().clone() for weight in half.weights.values()]
    for given, share in ((whole, 1.0), (half, 0.5)):
        with at_rest(given.net, gradients=True):
            given.solving.step(torch.zeros(6, dtype=torch.float64), share)
    for start, far, near in zip(before, whole.weights.values(), half.weights.values(), strict=True):
        assert gap(near - start, (far - start) / 2) < 1e-9


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "nothing said, as before a nudge"])
def test_a_step_that_keeps_j_and_k_goes_by_those_of_where_they_were_taken(kept: bool) -> None:
    given = small("images", 0.7, "soft")
    rows, roots = given.rows(), given.roots()
    start = [weight.detach().clone() for weight in given.weights.values()]
    kernel = rows @ rows.mT
    kernel += solving.RIDGE * kernel.diagonal().mean() * torch.eye(6, dtype=torch.float64)
    targets = torch.zeros(6, dtype=torch.float64)
    with at_rest(given.net, gradients=True):
        given.solving.step(targets, 1.0)
        middle = [weight.detach().clone() for weight in given.weights.values()]
        a = torch.linalg.solve(kernel, targets - margin(given.net(given.x[:6]), given.y[:6]).detach())
        if kept:
            given.solving.keep()
        given.solving.step(targets, 1.0)
    gone = [weight.detach() - before for weight, before in zip(given.weights.values(), middle, strict=True)]
    for weight, before in zip(given.weights.values(), start, strict=True):
        weight.detach().copy_(before)  # where J was taken
    expected = (rows.mT @ a).split([part.numel() for part in gone])
    for (name, root), part, left in zip(roots.items(), gone, expected, strict=True):
        step = root * given.space.project(name, left.reshape(part.shape))
        assert gap(part, step) < 1e-9


@pytest.mark.parametrize("protect", ["hard", "soft"])
def test_with_gamma_one_retained_outputs_stay_where_they_were(protect: str) -> None:
    given = small("images", 0.7, protect)
    x, y = images(30, seed=3)
    retained = x[:3], y[:3]  # so few that every layer has directions that they do not use
    space = CoreSpace.from_grams(unweave.fit(given.net, [retained]), 1.0, protect=protect)
    forget = Samples([(x[3:9], y[3:9])])
    before, outputs = given.net(retained[0]).detach(), given.net(x[3:9]).detach()
    with at_rest(given.net, gradients=True):
        Solving(Descent(given.net, given.weights, space, "adam"), forget, 8).step(torch.zeros(6).double(), 1.0)
    assert gap(given.net(retained[0]), before) < 1e-9
    assert gap(given.net(x[3:9]), outputs) > 1e-3


@pytest.mark.parametrize("protect", [None, "hard"])
@pytest.mark.parametrize("which", ["points", "pictures"])
def test_a_request_lands_in_a_few_steps(which: str, protect: str | None, request: pytest.FixtureRequest) -> None:
    problem: Problem = request.getfixturevalue(which)
    before = state_of(problem.model)
    result = problem.run(way="solve", protect=protect)
    assert result.ok
    assert result.goal.reached(result.final.forget_error)
    assert result.final.epoch <= 6 < problem.run().final.epoch
    assert result.final.distance < 0.2 * result.history[0].distance
    assert result.config.protect == (protect or "soft")
    assert state_of(problem.model) == before
    assert len(result.grams.origin.forgotten) == len(problem.forget)


def test_the_same_request_gives_the_same_weights(points: Problem) -> None:
    one, other = (state_of(points.run(way="solve").model)["bytes"] for _ in range(2))
    assert one == other


def test_a_step_that_goes_too_far_is_halved(points: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = solving.solve

    def eightfold(*arguments: Any) -> Any:
        found = honest(*arguments)
        return dataclasses.replace(found, x=8 * found.x)

    monkeypatch.setattr(solving, "solve", eightfold)
    result = points.run(way="solve")
    assert result.ok
    assert 0 < result.history[1].lr < 1


def _counting(monkeypatch: pytest.MonkeyPatch) -> list[Solving]:
    """Notes who takes K, as often as it is taken."""
    taken = list[Solving]()
    made = Solving._linearised

    def counted(self: Solving, v: Tensor) -> Any:
        taken.append(self)
        return made(self, v)

    monkeypatch.setattr(Solving, "_linearised", counted)
    return taken


def test_after_a_straight_step_the_same_j_and_k_serve_again(points: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = _counting(monkeypatch)
    result = points.run(way="solve")
    first, second = (look.distance for look in result.history[:2])
    assert second < STRAIGHT * first
    assert result.final.epoch == 2
    assert len(taken) == 1


@pytest.mark.parametrize("times", [-1.0, -1e4, math.nan], ids=["back", "astray", "not finite"])
def test_what_has_grown_old_is_taken_anew_before_a_step_is_halved(
    points: Problem, monkeypatch: pytest.MonkeyPatch, times: float
) -> None:
    taken, honest = _counting(monkeypatch), solving.solve

    def wrong_where_old(*arguments: Any) -> Any:
        found = honest(*arguments)
        return dataclasses.replace(found, x=times * found.x) if taken[-1].old else found

    monkeypatch.setattr(solving, "solve", wrong_where_old)
    result = points.run(way="solve")
    assert result.ok
    assert [look.lr for look in result.history[1:]] == [1.0, 1.0]
    assert len(taken) == 2


def test_a_nudge_goes_by_what_brought_the_margins_there(points: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is told to: a ruin by old J and K has them taken anew before it halves the step."""
    old, matched = list[bool](), Request._matched

    def noted(self: Request, now: Seen, best: Seen) -> Any:
        assert self._solving is not None
        old.append(self._solving.old)
        return matched(self, now, best)

    monkeypatch.setattr(Request, "_matched", noted)
    assert points.run(way="solve").ok
    assert old == [True]


def test_no_more_samples_are_run_with_gradients_than_a_batch_has(pictures: Problem) -> None:
    met = list[int]()

    def note(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            met.append(len(given[0]))

    net = copy.deepcopy(pictures.model)
    net.register_forward_pre_hook(note)
    config = unweave.ForgetConfig(way="solve", batch_size=8)
    assert unweave.forget(net, pictures.forgotten, pictures.grams, val=pictures.val, config=config).ok
    assert max(met) == 8


def test_where_no_direction_is_left_nothing_is_changed(points: Problem) -> None:
    result = points.run(way="solve", gamma=1.0, layers=["0"])
    assert not result.ok
    assert "uses every direction" in result.stopped
    assert result.grams is points.grams


def test_equal_samples_are_solved_for(points: Problem) -> None:
    twice = dataclasses.replace(points, forget=points.forget.repeat_interleave(2)[:40])
    grams = unweave.fit(points.model, [*points.samples(torch.arange(300)), *points.forgotten], val=points.val)
    result = dataclasses.replace(twice, grams=grams).run(way="solve")
    assert result.ok


def test_low_precision_is_solved_in_full(points: Problem) -> None:
    net = copy.deepcopy(points.model).to(torch.bfloat16)
    data = [(x.to(torch.bfloat16), y) for x, y in points.samples(torch.arange(300))]
    val = [(x.to(torch.bfloat16), y) for x, y in points.val]
    grams = unweave.fit(net, data, val=val)
    gone = [(x.to(torch.bfloat16), y) for x, y in points.forgotten]
    result = unweave.forget(net, gone, grams, val=val, config=unweave.ForgetConfig(way="solve"))
    assert {p.dtype for p in result.model.parameters()} == {torch.bfloat16}
    assert result.final.distance < 0.2 * result.history[0].distance


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "classes"},
        {"task": "poison"},
        {"objective": "paper"},
        {"lam": 0.1},
        {"stop": "epochs"},
        {"lr": 0.1},
        {"dropout": True},
        {"rank_rule": "le"},
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"solve|soft"):
        unweave.ForgetConfig(way="solve", **settings)


def test_too_many_samples_are_refused(points: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "MOST_SAMPLES", 39)
    with pytest.raises(ConfigError, match="39 samples at most, these are 40"):
        points.run(way="solve")


class Peeking(nn.Module):
    """Reads a value, which torch.func.vmap does not allow."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * (1.0 if float(x.sum()) < math.inf else 2.0)


def test_models_that_vmap_does_not_allow_may_be_solved_for(pictures: Problem) -> None:
    net = Peeking(pictures.model)
    grams = unweave.fit(net, pictures.samples(torch.arange(len(pictures.y))), val=pictures.val)
    config = unweave.ForgetConfig(way="solve")
    result = unweave.forget(net, pictures.forgotten, grams, val=pictures.val, config=config)
    expected = pictures.run(way="solve")
    assert result.ok
    assert gap(result.model.net[0].weight, expected.model[0].weight) < 1e-6


@pytest.mark.parametrize("peeking", [False, True])
def test_layers_that_do_not_tell_are_solved_for_too(peeking: bool) -> None:
    given = small("text", 0.7, "soft")
    expected = given.rows() @ given.rows().mT
    if peeking:
        given.solving.descent.net = Peeking(given.net)
    with at_rest(given.net, gradients=True):
        v = solving._slopes(given.solving._logits(), given.samples.labels)
        users = Singles(given.solving.descent.net, given.weights, given.samples, v).users
        assert 0 < len(users) < len(given.weights)
        assert gap(given.solving._linearised(v).kernel, expected) < 1e-11


def test_linear_layers_that_meet_samples_once_need_no_single_gradients(points: Problem) -> None:
    config, ends = unweave.ForgetConfig(way="solve"), []
    for net in (points.model, Peeking(points.model)):
        grams = unweave.fit(net, points.samples(torch.arange(300)), val=points.val)
        result = unweave.forget(net, points.forgotten, grams, val=points.val, config=config)
        assert result.ok
        ends.append(dataclasses.replace(result.final, seconds=0.0))
    assert ends[0] == ends[1]
