"""Samples that were never fitted: counted against a matching of every sample with a place, and refused in requests."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import problems
import pytest
import torch
from helpers import in_batches
from problems import Problem
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching
from test_spread import outcomes, spread
from torch import Tensor

import unweave
from unweave.errors import MismatchError
from unweave.outcomes import Outcomes
from unweave.spread import BINS, REACH, MarginCounts, bins
from unweave.strangers import EDGES, strangers

forgetting = importlib.import_module("unweave.forget")  # the name unweave.forget is the function
REFUSED = "were not fitted as they are here"


@pytest.fixture(scope="module")
def points() -> Problem:
    return problems.points()


def seen_by(problem: Problem, x: Tensor, y: Tensor) -> Outcomes:
    """What the problem's network makes of samples."""
    z = problem.model(x).detach().double()
    own = z.gather(1, y[:, None]).squeeze(1)
    return outcomes(y, own - z.scatter(1, y[:, None], -torch.inf).logsumexp(1), z.shape[1])


# ---------------------------------------------------------------------------------------------------------- counting


def without_a_place(fitted: MarginCounts, asked: Outcomes, edge: float) -> int:
    """The oracle: as many samples as possible are matched with places, one place for each count of a bin."""
    places = [(c, b) for c in range(asked.classes) for b in range(BINS) for _ in range(int(fitted.counts[c, b]))]
    links = np.zeros((len(asked), max(1, len(places))), dtype=int)
    for i, (label, place) in enumerate(zip(asked.labels.tolist(), bins(asked.margin).tolist(), strict=True)):
        near = {min(int(place - edge), BINS - 1), min(int(place + edge), BINS - 1)}
        for j, (c, b) in enumerate(places):
            links[i, j] = c == label and b in near
    return int((maximum_bipartite_matching(csr_matrix(links), perm_type="column") < 0).sum())


@pytest.mark.parametrize("seed", range(20))
def test_as_many_are_strangers_as_find_no_place_whatever_places_the_others_take(seed: int) -> None:
    order = torch.Generator().manual_seed(seed)

    def crowded(count: int) -> Outcomes:  # in few bins, many of them at an edge
        place = 100 + torch.randint(0, 12, (count,), generator=order) + 0.01 * torch.randn(count, generator=order)
        labels = torch.randint(0, 2, (count,), generator=order)
        return outcomes(labels, (place.double() * (2 * REACH / BINS) - REACH).sinh())

    fitted, asked = crowded(60), crowded(50)
    counts = spread(fitted)
    found = strangers(counts, asked, "float32")
    assert found is not None
    assert found.least == without_a_place(counts, asked, EDGES["float32"]) > 0
    assert len(found.certain) <= found.least


def test_part_of_what_was_fitted_has_no_strangers_though_it_is_rounded_otherwise() -> None:
    order = torch.Generator().manual_seed(0)
    for seed in range(50):
        labels = torch.randint(0, 3, (300,), generator=order)
        fitted = outcomes(labels, 6 * torch.randn(300, generator=torch.Generator().manual_seed(seed)))
        part = fitted.where(torch.rand(300, generator=order) < 0.9)
        noise = 1 + 1e-5 * torch.randn(len(part), generator=order)
        found = strangers(spread(fitted), outcomes(part.labels, part.margin * noise), "float32")
        assert found is not None
        assert (found.least, found.certain) == (0, ())


def test_who_stands_where_nobody_is_left_is_a_stranger_for_certain() -> None:
    fitted = outcomes(torch.tensor([0, 0, 1]), torch.tensor([1.0, 5.0, -2.0]))
    asked = outcomes(torch.tensor([0, 1, 0, 0]), torch.tensor([5.0, 5.0, 5.0, -2.0]))
    found = strangers(spread(fitted), asked, "float64")
    assert found is not None
    assert (found.least, found.certain, found.of) == (3, (1, 3), 4)
    assert str(found).startswith(f"At least 3 of these 4 samples {REFUSED} (2 for certain, in the order of the loader")


def test_nothing_is_said_where_nobody_can_tell() -> None:
    fitted = outcomes(torch.tensor([0, 0, 1]), torch.tensor([1.0, 5.0, -2.0]))
    asked = outcomes(torch.tensor([1]), torch.tensor([5.0]))
    assert strangers(spread(fitted), asked, "bfloat16") is None
    assert strangers(MarginCounts(torch.zeros(7, BINS).long()), asked, "float32") is None


# -------------------------------------------------------------------------------------------------------- in requests


def asks(problem: Problem, x: Tensor, y: Tensor, **settings: object) -> unweave.ForgetResult:
    config = unweave.ForgetConfig(epochs=1, **settings)  # type: ignore[arg-type]
    return unweave.forget(problem.model, in_batches(x, y, 64), problem.grams, problem.val, config)


def test_samples_with_other_labels_are_refused(points: Problem) -> None:
    few = torch.arange(6)
    asks(points, points.x[few], points.y[few])
    with pytest.raises(MismatchError, match=f"{REFUSED}.*with the labels they were trained on"):
        asks(points, points.x[few], (points.y[few] + 1) % 5)


def test_samples_that_nothing_was_like_are_refused(points: Problem) -> None:
    noise = 6 * torch.randn(10, 20, generator=torch.Generator().manual_seed(0))
    with pytest.raises(MismatchError, match=REFUSED):
        asks(points, noise, points.y[:10])


def test_new_samples_are_refused_where_there_are_enough_of_them(points: Problem) -> None:
    x, y = problems.clusters(40, 5, 20, 1.7, seed=3)
    with pytest.raises(MismatchError, match=REFUSED):
        asks(points, x, y)


def test_another_transform_is_refused(points: Problem) -> None:
    with pytest.raises(MismatchError, match="under the same transform"):
        asks(points, 1.3 * points.x[:40], points.y[:40])


def test_the_right_labels_in_place_of_the_wrong_ones_are_refused() -> None:
    problem, right = problems.poisoned()
    asks(problem, problem.x[:40], problem.y[:40], task="poison")
    with pytest.raises(MismatchError, match="also where those are wrong"):
        asks(problem, problem.x[:40], right[:40], task="poison")


def test_a_few_of_many_are_told_of_and_not_refused(points: Problem) -> None:
    y = points.y[:200].clone()
    y[17] = (y[17] + 1) % 5
    result = asks(points, points.x[:200], y)
    assert any("at least 1 of these 200 samples" in words and "from 0: 17)" in words for words in result.warnings)
    assert not any(REFUSED in words for words in asks(points, points.x[:200], points.y[:200]).warnings)


def test_a_later_request_is_asked_where_the_first_model_tells_what_was_fitted(points: Problem) -> None:
    done = unweave.forget(points.model, points.samples(torch.arange(40)), points.grams, points.val)
    more = torch.arange(40, 80)

    def again(x: Tensor, y: Tensor, first: torch.nn.Module | None) -> unweave.ForgetResult:
        config = unweave.ForgetConfig(epochs=1)
        return unweave.forget(done.model, in_batches(x, y, 64), done.grams, points.val, config, first=first)

    again(points.x[more], points.y[more], points.model)
    with pytest.raises(MismatchError, match=REFUSED):
        again(points.x[more], (points.y[more] + 1) % 5, points.model)
    again(points.x[more], points.y[more], None)  # margins are others by now: nobody asks


def test_what_was_forgotten_is_not_there_to_be_taken_out_again_under_another_label(points: Problem) -> None:
    done = unweave.forget(points.model, points.samples(torch.arange(40)), points.grams, points.val)
    relabelled = in_batches(points.x[:40], (points.y[:40] + 1) % 5, 64)
    with pytest.raises(MismatchError, match=REFUSED):
        unweave.forget(done.model, relabelled, done.grams, points.val, first=points.model)


def test_grams_that_were_read_in_tf32_do_not_tell(points: Problem) -> None:
    grams = points.grams
    origin = replace(grams.origin, convolutions="tf32")
    sums = {name: grams.grouped(name) for name in grams}
    told = unweave.LayerGrams(sums, grams.layers, origin, grams.held_out, grams.margins)
    seen = seen_by(points, points.x[:6], (points.y[:6] + 1) % 5)
    assert forgetting._strangers(grams, grams, seen).least > 0
    assert forgetting._strangers(told, told, seen) is None
