"""Samples that were never fitted: counted against a matching of every sample with a place, and refused in requests."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import problems
import pytest
import torch
from helpers import in_batches
from problems import Jittered, Problem
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching
from test_spread import outcomes, spread
from torch import Tensor

import unweave
from unweave.behaviour.outcomes import Outcomes
from unweave.behaviour.spread import BINS, REACH, MarginCounts, binned
from unweave.behaviour.strangers import Strangers, strangers
from unweave.errors import MismatchError

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


def at(place: Tensor) -> Tensor:
    """The margins that stand at these places on the scale of the bins."""
    return (place.double() * (2 * REACH / BINS) - REACH).sinh()


def without_a_place(counts: Tensor, asked: Outcomes) -> int:
    """The oracle: as many samples as possible are matched with places, one place for each count of a bin."""
    places = [(c, b) for c, b in counts.clamp(min=0).nonzero().tolist() for _ in range(int(counts[c, b]))]
    links = np.zeros((len(asked), max(1, len(places))), dtype=int)
    for i, (label, own) in enumerate(zip(asked.labels.tolist(), binned(asked.margin).tolist(), strict=True)):
        for j, (c, b) in enumerate(places):
            links[i, j] = c == label and abs(b - own) <= 2
    return int((maximum_bipartite_matching(csr_matrix(links), perm_type="column") < 0).sum())


@pytest.mark.parametrize("seed", range(40))
def test_as_many_are_strangers_as_find_no_place_whatever_places_the_others_take(seed: int) -> None:
    order = torch.Generator().manual_seed(seed)
    lowest = (0, 100, BINS - 15)[seed % 3]  # also at the ends of the scale

    def crowded(count: int) -> Outcomes:
        place = lowest + 15 * torch.rand(count, generator=order)
        return outcomes(torch.randint(0, 2, (count,), generator=order), at(place))

    counts, asked = spread(crowded(50)).counts, crowded(20 + seed)
    counts[:, lowest : lowest + 15] -= torch.randint(0, 4, (3, 15), generator=order)  # some are below zero
    found = strangers(MarginCounts(counts), asked, "float32")
    assert found is not None
    assert found.least == without_a_place(counts, asked) > 0
    alone = [without_a_place(counts, asked.where(torch.arange(len(asked)) == i)) for i in range(len(asked))]
    assert found.certain == tuple(i for i, lost in enumerate(alone) if lost)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", [1, 7, 40])
def test_requests_in_a_row_that_read_otherwise_than_fit_did_have_no_strangers(dtype: str, size: int) -> None:
    """What each takes out, half a bin away, is somebody else's count, and leaves its own."""
    for seed, count in enumerate((40, 200, 800)):
        order = torch.Generator().manual_seed(seed)
        labels, places = torch.randint(0, 3, (count,), generator=order), 150 + 12 * torch.randn(count, generator=order)
        counts = spread(outcomes(labels, at(places)))
        for part in torch.randperm(count, generator=order)[: count // 2].split(size):
            asked = outcomes(labels[part], at(places[part] + torch.rand(len(part), generator=order) - 0.5))
            found = strangers(counts, asked, dtype)
            assert found is not None
            assert (found.least, found.certain) == (0, ())
            left = counts.combined(spread(asked), -1)
            assert left is not None
            counts = left
        assert (counts.counts < 0).any()


def test_part_of_what_was_fitted_has_no_strangers_though_it_is_read_more_coarsely() -> None:
    order = torch.Generator().manual_seed(0)
    for seed in range(50):
        labels, places = torch.randint(0, 3, (300,), generator=order), 120 + 30 * torch.randn(300, generator=order)
        part = torch.rand(300, generator=torch.Generator().manual_seed(seed)) < 0.9
        moved = places[part] + 1.4 * (2 * torch.rand(int(part.sum()), generator=order) - 1)
        found = strangers(spread(outcomes(labels, at(places))), outcomes(labels[part], at(moved)), "float32")
        assert found is not None
        assert (found.least, found.certain) == (0, ())


def test_a_count_below_zero_is_none_and_takes_no_other_away() -> None:
    counts = torch.zeros(3, BINS).long()
    counts[0, 100:102] = torch.tensor([1, -1])
    found = strangers(MarginCounts(counts), outcomes(torch.tensor([0]), at(torch.tensor([100.5]))), "float32")
    assert found is not None
    assert (found.least, found.certain) == (0, ())


@pytest.mark.parametrize("of", [100, 700])
def test_a_hundredth_is_told_of_and_one_more_is_refused(of: int) -> None:
    Strangers(of // 100, (), of).require_few(0, False)
    with pytest.raises(MismatchError, match=f"At least {of // 100 + 1} of these {of} samples {REFUSED}"):
        Strangers(of // 100 + 1, (), of).require_few(0, False)


def test_the_likelier_reason_comes_first() -> None:
    many = Strangers(30, (), 80)
    for copies, unsteady, reason in (
        (30, False, "30 of these 80 samples are copies of others in the request, and at least 30 find no"),
        (30, True, "30 of these 80 samples are copies"),
        (29, True, "A sample of the request is another each time it is read"),
        (29, False, "At least 30 of these 80 samples were not fitted"),
    ):
        with pytest.raises(MismatchError, match=f"^{reason}.*only be told: strangers='tell'\\.$"):
            many.require_few(copies, unsteady)


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


def test_grams_that_were_read_in_tf32_or_have_drifted_do_not_tell(points: Problem) -> None:
    grams = points.grams
    seen = seen_by(points, points.x[:6], (points.y[:6] + 1) % 5)
    assert forgetting._strangers(grams, grams, seen).least > 0
    for origin in (replace(grams.origin, convolutions="tf32"), replace(grams.origin, drifted=True)):
        sums = {name: grams.grouped(name) for name in grams}
        other = unweave.LayerGrams(sums, grams.layers, origin, grams.held_out, grams.margins)
        assert forgetting._strangers(other, grams, seen) is None


def test_who_asks_to_be_told_is_not_refused(points: Problem) -> None:
    others = (points.y[:6] + 1) % 5
    with pytest.raises(MismatchError, match="only be told: strangers='tell'"):
        asks(points, points.x[:6], others)
    told = asks(points, points.x[:6], others, strangers="tell")
    assert any(REFUSED in words and "taken out all the same" in words for words in told.warnings)


def test_a_loader_that_repeats_samples_is_told_so(points: Problem) -> None:
    far = int(seen_by(points, points.x, points.y).margin.argmin())
    again = torch.tensor([far] * 12)
    with pytest.raises(MismatchError, match=r"^11 of these 12 samples are copies of others in the request"):
        asks(points, points.x[again], points.y[again])


def test_a_request_that_is_another_each_time_it_is_read_is_refused_for_that(points: Problem) -> None:
    loader = torch.utils.data.DataLoader(Jittered(points.x[:40], points.y[:40], 3.0), batch_size=16)
    with pytest.raises(MismatchError, match=r"^A sample of the request is another each time it is read"):
        unweave.forget(points.model, loader, points.grams, points.val, unweave.ForgetConfig(epochs=1))
