"""Where samples stand in their class: among themselves, among the training samples, and as if never seen."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unweave import ranking
from unweave.outcomes import Outcomes
from unweave.ranking import ALIKE, FEW, Unseen, odd, places, unlike_a_draw, within


def even(n: int) -> Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def seen(labels: Tensor, margins: Tensor, classes: int = 3) -> Outcomes:
    nothing = torch.zeros_like(margins)
    return Outcomes(labels, margins < 0, nothing, margins, nothing, classes)


# ----------------------------------------------------------------------------------------------------- random or not


def test_random_draws_are_hardly_ever_odd() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = [torch.rand(n, generator=generator, dtype=torch.float64) for n in (20, 100, 500) for _ in range(1000)]
    assert sum(map(unlike_a_draw, draws)) <= 3, "once in 8,000 times"


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
    assert unlike_a_draw(ranks[torch.randperm(len(ranks))]) == expected


def test_how_far_is_odd() -> None:
    """All ranks moved up by s: the distance of Kolmogorov and Smirnov is s + ½ / n."""
    n = 400
    for factor, expected in ((0.98, False), (1.02, True)):
        assert unlike_a_draw(even(n) + factor * ranking.ODD / math.sqrt(n) - 0.5 / n) == expected


def test_one_odd_class_is_found_beside_others() -> None:
    labels = torch.tensor([0] * 400 + [1] * 40)
    assert odd(labels, torch.cat([even(400), 0.3 * even(40)])).tolist() == [False] * 400 + [True] * 40
    assert odd(labels, 0.6 * torch.cat([even(400), even(40)])).all()
    assert not odd(labels, torch.cat([even(400), even(40)])).any()


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
    aim = places(before, within(before), ERROR, same_model=True)
    assert torch.equal(aim.ranks, within(before))
    assert torch.equal(aim.wrong, ERROR[labels])
    assert not aim.by_training.any()


def test_nobody_gets_better() -> None:
    """Of a class with more wrong in the request than held out, what is wrong stays so."""
    labels, margins = torch.zeros(50, dtype=torch.long), torch.linspace(-1, 4, 50, dtype=torch.float64)
    before = seen(labels, margins)
    aim = places(before, torch.full((50,), torch.nan, dtype=torch.float64), ERROR, same_model=True)
    assert aim.wrong.mean().item() == pytest.approx(before.error / 100)
    assert before.error / 100 > ERROR[0]


def test_odd_ones_are_placed_as_unseen_in_the_order_of_their_margins() -> None:
    labels = torch.cat([torch.zeros(600, dtype=torch.long), torch.ones(60, dtype=torch.long)])
    margins = torch.rand(660, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 1
    before = seen(labels, margins)
    learnt = within(before)
    learnt[labels == 1] *= 0.4
    aim = places(before, learnt, ERROR, same_model=True)
    hard = labels == 1
    assert aim.by_training.tolist() == hard.tolist()
    as_unseen = Unseen(learnt[hard])
    order = margins[hard].argsort()
    assert torch.allclose(aim.ranks[hard][order], as_unseen.quantiles().clamp(min=0.1))
    assert aim.wrong[hard].mean().item() == pytest.approx(as_unseen.below(0.2))
    assert torch.equal(aim.ranks[~hard], within(before)[~hard])
    unknown = places(before, learnt, ERROR, same_model=False)
    assert torch.equal(unknown.ranks, within(before)), "ranks by another model say nothing"


def test_a_few_go_by_their_own_rank_and_no_lower_than_the_middle_of_what_is_wrong() -> None:
    labels = torch.tensor([0] * (FEW - 1) + [2] * 200)
    margins = torch.cat([torch.linspace(1, 2, FEW - 1), torch.linspace(1, 9, 200)]).double()
    before = seen(labels, margins)
    learnt = within(before)
    learnt[:3] = torch.tensor([0.0, 0.09, 0.11], dtype=torch.float64)
    aim = places(before, learnt, ERROR, same_model=True)
    assert aim.by_training.tolist() == [True] * (FEW - 1) + [False] * 200
    assert aim.ranks[:3].tolist() == pytest.approx([0.05, 0.09, 0.11])
    assert aim.wrong[:3].tolist() == [1.0, 1.0, 0.0]
    nobody = places(before, torch.full_like(learnt, torch.nan), ERROR, same_model=True)
    assert not nobody.by_training.any()
