"""Where samples stand in their class: among themselves, among the training samples, and as if never seen."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unweave.behaviour import ranking
from unweave.behaviour.outcomes import Outcomes
from unweave.behaviour.ranking import ALIKE, FEW, Unseen, farthest, odd, places, unlike_a_draw, within
from unweave.behaviour.spread import MarginCounts, Standing


def even(n: int) -> Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def seen(labels: Tensor, margins: Tensor, classes: int = 3) -> Outcomes:
    nothing = torch.zeros_like(margins)
    return Outcomes(labels, margins < 0, nothing, margins, nothing, classes)


def exactly(ranks: Tensor) -> Standing:
    """As if every sample had a bin of its own."""
    return Standing(ranks, ranks, ranks)


# ----------------------------------------------------------------------------------------------------- random or not


def test_random_draws_are_hardly_ever_odd() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = [torch.rand(n, generator=generator, dtype=torch.float64) for n in (20, 100, 500) for _ in range(1000)]
    assert sum(map(unlike_a_draw, map(exactly, draws))) <= 3, "once in 8,000 times"


@pytest.mark.parametrize("values", ["narrow", "four columns of 0 and 1"])
@pytest.mark.parametrize("n", [200, 1000])
def test_margins_of_a_few_bins_are_no_reason_to_find_a_draw_odd(values: str, n: int) -> None:
    """Within a bin nobody knows how they are spread."""
    generator = torch.Generator().manual_seed(n)
    if values == "narrow":
        margins = 3 + 0.05 * torch.randn(20_000, generator=generator, dtype=torch.float64)
    else:
        weights = torch.tensor([1.0, 0.7, 0.3, 0.1], dtype=torch.float64)
        margins = torch.randint(2, (20_000, 4), generator=generator).double() @ weights
    labels = torch.zeros(20_000, dtype=torch.long)
    counts = MarginCounts.of(seen(labels, margins))
    assert counts is not None
    draws = [torch.randperm(20_000, generator=generator)[:n] for _ in range(100)]
    assert not any(unlike_a_draw(counts.standing(labels[:n], margins[chosen])) for chosen in draws)
    easiest = (margins > margins.quantile(0.6)).nonzero().squeeze(1)[:n]
    assert unlike_a_draw(counts.standing(labels[:n], margins[easiest])), "a coarse look still sees that"


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (even(200), False),
        (0.5 * even(200), True),
        (1 - 0.5 * even(200), True),
        (torch.cat([0.02 * even(40), even(60)]), True),
        (0.5 + 0.02 * even(200), True),
        (0.5 * even(10), False),
        (torch.zeros(0), False),
    ],
    ids=[
        "even",
        "the hard half",
        "the easy half",
        "some doubtful labels",
        "all in the middle",
        "too few to tell",
        "none",
    ],
)
def test_what_is_odd(ranks: Tensor, expected: bool) -> None:
    assert unlike_a_draw(exactly(ranks[torch.randperm(len(ranks))])) == expected


def test_how_far_is_odd() -> None:
    """All ranks moved up by s: the distance of Kolmogorov and Smirnov is s + ½ / n."""
    n = 400
    for factor, expected in ((0.98, False), (1.02, True)):
        assert unlike_a_draw(exactly(even(n) + factor * farthest(n) - 0.5 / n)) == expected
    assert farthest(n) * math.sqrt(n) == pytest.approx(2.2, abs=0.001)


def test_the_more_classes_are_asked_the_farther_one_must_be() -> None:
    labels = torch.arange(1000).repeat_interleave(20)
    ranks = even(20_000)[torch.randperm(20_000, generator=torch.Generator().manual_seed(3))]
    ranks[:20] = 0.5 * even(20)
    assert unlike_a_draw(exactly(ranks[:20]))
    assert not unlike_a_draw(exactly(ranks[:20]), among=1000)
    assert not odd(labels, exactly(ranks)).any()
    ranks[:20] = 0.3 * even(20)
    assert odd(labels, exactly(ranks)).nonzero().squeeze(1).tolist() == list(range(20))


def test_one_odd_class_is_found_beside_others() -> None:
    labels = torch.tensor([0] * 400 + [1] * 40)
    assert odd(labels, exactly(torch.cat([even(400), 0.3 * even(40)]))).tolist() == [False] * 400 + [True] * 40
    assert odd(labels, exactly(0.6 * torch.cat([even(400), even(40)]))).all()
    assert not odd(labels, exactly(torch.cat([even(400), even(40)]))).any()


# ---------------------------------------------------------------------------------------------------------- as unseen


def simulated(ranks: Tensor, draws: int) -> Tensor:
    """Ranks in networks that never saw the samples, [draws, n]."""
    noise = torch.randn(draws, len(ranks), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.special.ndtr(ALIKE * torch.special.ndtri(ranks) + math.sqrt(1 - ALIKE**2) * noise)


def test_as_unseen_ranks_are_spread_as_drawn() -> None:
    ranks = torch.cat([0.05 * even(30), 0.2 + 0.3 * even(50)])
    drawn = simulated(ranks, 4000)
    for share in (0.02, 0.1, 0.3, 0.7):
        assert Unseen(ranks).below(share) == pytest.approx((drawn < share).double().mean().item(), abs=0.005)
    expected = drawn.flatten().quantile(even(80))
    assert float((Unseen(ranks).quantiles() - expected).abs().max()) < 0.01


def test_of_a_random_draw_it_is_ranking_among_themselves() -> None:
    found = Unseen(even(5000)).quantiles()
    assert float((found - even(5000)).abs().max()) < 0.003
    assert Unseen(even(5000)).below(0.13) == pytest.approx(0.13, abs=0.001)


def test_many_samples_are_taken_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Unseen(even(100)).quantiles()
    monkeypatch.setattr(ranking, "TOGETHER", 7)
    assert torch.allclose(Unseen(even(100)).quantiles(), whole, atol=1e-12)


def test_ranks_at_the_ends_are_no_infinity() -> None:
    found = Unseen(torch.tensor([0.0, 1.0, 0.0])).quantiles()
    assert found.isfinite().all()
    assert 0 < Unseen(torch.tensor([0.0, 1.0])).below(0.5) < 1


# ------------------------------------------------------------------------------------------------------------- places

ERROR = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)


def test_many_drawn_at_random_are_ranked_among_themselves() -> None:
    labels, margins = torch.tensor([0, 1]).repeat(50), torch.linspace(1, 5, 100, dtype=torch.float64)
    before = seen(labels, margins)
    aim = places(before, exactly(within(before)), ERROR, same_model=True)
    assert torch.equal(aim.ranks, within(before))
    assert torch.equal(aim.wrong, ERROR[labels])
    assert not aim.by_training.any()


def test_nobody_gets_better() -> None:
    """Of a class with more wrong in the request than held out, what is wrong stays so."""
    labels, margins = torch.zeros(50, dtype=torch.long), torch.linspace(-1, 4, 50, dtype=torch.float64)
    before = seen(labels, margins)
    aim = places(before, Standing.unknown(50), ERROR, same_model=True)
    assert aim.wrong.mean().item() == pytest.approx(before.error / 100)
    assert before.error / 100 > ERROR[0]


def test_odd_ones_are_placed_as_unseen_in_the_order_of_their_margins() -> None:
    labels = torch.cat([torch.zeros(600, dtype=torch.long), torch.ones(60, dtype=torch.long)])
    margins = torch.rand(660, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 1
    before = seen(labels, margins)
    learnt = within(before)
    learnt[labels == 1] *= 0.4
    aim = places(before, exactly(learnt), ERROR, same_model=True)
    hard = labels == 1
    assert aim.by_training.tolist() == hard.tolist()
    as_unseen = Unseen(learnt[hard])
    order = margins[hard].argsort()
    assert torch.allclose(aim.ranks[hard][order], as_unseen.quantiles().clamp(min=0.1))
    assert aim.wrong[hard].mean().item() == pytest.approx(as_unseen.below(0.2))
    assert torch.equal(aim.ranks[~hard], within(before)[~hard])
    unknown = places(before, exactly(learnt), ERROR, same_model=False)
    assert torch.equal(unknown.ranks, within(before)), "ranks by another model say nothing"


def test_a_few_go_by_their_own_rank_and_no_lower_than_the_middle_of_what_is_wrong() -> None:
    labels = torch.tensor([0] * (FEW - 1) + [2] * 200)
    margins = torch.cat([torch.linspace(1, 2, FEW - 1), torch.linspace(1, 9, 200)]).double()
    before = seen(labels, margins)
    learnt = within(before)
    learnt[:3] = torch.tensor([0.0, 0.09, 0.11], dtype=torch.float64)
    aim = places(before, exactly(learnt), ERROR, same_model=True)
    assert aim.by_training.tolist() == [True] * (FEW - 1) + [False] * 200
    assert aim.ranks[:3].tolist() == pytest.approx([0.05, 0.09, 0.11])
    assert aim.wrong[:3].tolist() == [1.0, 1.0, 0.0]
    nobody = places(before, Standing.unknown(len(learnt)), ERROR, same_model=True)
    assert not nobody.by_training.any()


def test_a_few_stand_for_themselves_though_the_request_is_odd() -> None:
    """Two of each of 60 classes, all among the hardest third: as many are wrong as are aimed below zero."""
    labels, margins = torch.arange(60).repeat(2), torch.rand(120, dtype=torch.float64) + 1
    before = seen(labels, margins, classes=60)
    learnt, error = exactly(0.33 * even(120)), torch.full((60,), 0.1, dtype=torch.float64)
    assert odd(labels, learnt).all()
    aim = places(before, learnt, error, same_model=True)
    assert aim.by_training.all()
    assert torch.equal(aim.ranks, learnt.rank.clamp(min=0.05))
    assert torch.equal(aim.wrong, (learnt.rank < 0.1).double())
