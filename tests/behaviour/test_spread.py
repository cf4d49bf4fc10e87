"""How training margins are spread: counts against sorting, and what becomes of them in sums, files and requests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from problems import Problem, without_counts
from torch import Tensor

import unweave
from unweave import LayerGrams
from unweave.behaviour.outcomes import Outcomes
from unweave.behaviour.ranking import FEW
from unweave.behaviour.spread import BINS, MOST_CLASSES, MarginCounts
from unweave.config import ForgetConfig
from unweave.errors import StoreError
from unweave.request import remarks
from unweave.stopping import choose_goal


def outcomes(labels: Tensor, margins: Tensor, classes: int = 3) -> Outcomes:
    margins = margins.double()
    nothing = torch.zeros_like(margins)
    return Outcomes(labels, margins < 0, nothing, margins, nothing, classes)


def drawn(count: int, seed: int, scale: float = 4.0) -> Outcomes:
    order = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (count,), generator=order)  # the third class has none
    return outcomes(labels, scale * torch.randn(count, generator=order) + 3 * labels)


def spread(seen: Outcomes) -> MarginCounts:
    counts = MarginCounts.of(seen)
    assert counts is not None
    return counts


@pytest.mark.parametrize("scale", [0.5, 1.0, 20.0])
def test_ranks_are_those_of_sorting_but_for_the_width_of_a_bin(scale: float) -> None:
    seen, asked = drawn(4000, 0, scale), drawn(300, 1, scale)
    found = spread(seen).standing(asked.labels, asked.margin).rank
    for label in (0, 1):
        own, mine = seen.margin[seen.labels == label].sort().values, asked.labels == label
        exact = torch.searchsorted(own, asked.margin[mine]).double() / len(own)
        wide = spread(seen).counts[label].max() / len(own)
        assert (found[mine] - exact).abs().max() <= wide
        assert (found[mine] - exact).abs().mean() < 0.03


def test_ranks_rise_with_the_margin_from_nobody_to_everybody() -> None:
    counts = spread(drawn(500, 0))
    margins = torch.tensor([-1e9, -50.0, -1.0, 0.0, 0.5, 3.0, 60.0, 1e9])
    ranks = counts.standing(torch.zeros(8, dtype=torch.long), margins).rank
    assert (ranks.diff() >= 0).all()
    assert (ranks[0].item(), ranks[-1].item()) == (0.0, 1.0)


def test_what_is_beyond_the_scale_is_counted_and_nothing_is_lost() -> None:
    seen = outcomes(torch.zeros(3, dtype=torch.long), torch.tensor([-1e12, 0.0, 1e12]))
    counts = spread(seen).counts
    assert counts.shape == (3, BINS)
    assert counts[0, 0] == counts[0, -1] == counts[0, BINS // 2] == 1
    assert counts.sum() == 3


def test_counts_add_and_subtract_as_their_samples_do() -> None:
    whole, part = drawn(200, 0), torch.arange(200) < 70
    both = spread(whole.where(part)).combined(spread(whole.where(~part)), +1)
    assert both == spread(whole)
    assert both.combined(spread(whole.where(part)), -1) == spread(whole.where(~part))
    assert both.combined(MarginCounts(torch.zeros(4, BINS).long()), +1) is None, "of another number of classes"


def test_counts_below_zero_are_read_as_none() -> None:
    counts = spread(drawn(50, 0))
    counts.counts[0, 3] = -2
    ranks = counts.standing(torch.zeros(2, dtype=torch.long), torch.tensor([-1e9, 1e9])).rank
    assert ranks.tolist() == [0.0, 1.0]


def test_which_classes_are_known() -> None:
    asked = torch.tensor([0, 1, 2, 3, 700])
    assert spread(drawn(50, 0)).known(asked).tolist() == [True, True, False, False, False]


def test_of_very_many_classes_nothing_is_counted() -> None:
    assert MarginCounts.of(outcomes(torch.tensor([0]), torch.tensor([1.0]), MOST_CLASSES + 1)) is None


# ------------------------------------------------------------------------------------------------------- in Grams


def test_fit_counts_the_margins_of_the_training_samples(points: Problem) -> None:
    assert points.grams.margins is not None
    assert points.grams.margins.counts.sum(1).tolist() == points.y.bincount().tolist()
    z = points.model(points.x).detach().double()
    own = z.gather(1, points.y[:, None]).squeeze(1)
    others = z.scatter(1, points.y[:, None], -torch.inf).logsumexp(1)
    assert points.grams.margins == MarginCounts.of(outcomes(points.y, own - others, 5))


def test_a_request_takes_its_samples_out_of_the_counts(points: Problem) -> None:
    result = points.run(epochs=1)
    rest = torch.ones(len(points.y), dtype=torch.bool)
    rest[points.forget] = False
    alone = unweave.fit(points.model, [(points.x[rest], points.y[rest])])
    assert result.grams.margins == alone.margins


def test_grams_that_know_them_keep_them_through_everything_else(points: Problem, tmp_path: Path) -> None:
    points.grams.save(tmp_path / "grams.safetensors")
    kept = LayerGrams.load(tmp_path / "grams.safetensors"), points.grams.to("cpu"), points.grams.restricted(["0"])
    assert all(grams.margins == points.grams.margins for grams in kept)


def test_grams_that_do_not_know_them_stay_so(points: Problem, tmp_path: Path) -> None:
    old = without_counts(points.grams)
    old.save(tmp_path / "grams.safetensors")
    assert LayerGrams.load(tmp_path / "grams.safetensors").margins is None
    part = unweave.fit(points.model, points.samples(torch.arange(10)))
    assert (old - part).margins is None
    assert (points.grams - without_counts(part)).margins is None


def test_counts_of_the_wrong_shape_in_a_file_are_refused(points: Problem, tmp_path: Path) -> None:
    wrong = without_counts(points.grams)
    wrong.margins = MarginCounts(torch.zeros(5, BINS - 1).long())
    wrong.save(tmp_path / "grams.safetensors")
    with pytest.raises(StoreError, match=r"margins\.counts has the wrong shape or type\. Fit again"):
        LayerGrams.load(tmp_path / "grams.safetensors")


# ------------------------------------------------------------------------------------------------------- in a goal


def test_few_samples_go_by_their_rank_among_the_training_samples_and_many_by_their_own(points: Problem) -> None:
    trained, held_out = points.grams.margins, points.grams.held_out
    assert trained is not None
    assert held_out is not None
    before = outcomes(torch.tensor([0] * FEW + [1] * (FEW - 1)), torch.linspace(2, 30, 2 * FEW - 1), 5)
    goal = choose_goal(ForgetConfig().resolved(), before, held_out, trained)
    alone = choose_goal(ForgetConfig().resolved(), before, held_out, None)
    assert goal.margins is not None
    assert alone.margins is not None
    assert torch.equal(goal.margins[:FEW], alone.margins[:FEW])
    few = slice(FEW, None)
    ranks = trained.standing(before.labels[few], before.margin[few]).rank
    assert torch.equal(goal.margins[few], held_out.margin_at(before.labels[few], ranks).minimum(before.margin[few]))
    expected = held_out.error[0] * FEW + (ranks < held_out.error[1]).sum()
    assert goal.error == pytest.approx(100 * expected.item() / len(before))
    assert (goal.few, alone.few) == (False, False)
    assert choose_goal(ForgetConfig().resolved(), before.where(before.labels == 1), held_out, trained).few


def test_where_nobody_knows_how_hard_few_samples_were_it_is_said(points: Problem) -> None:
    few, many = torch.arange(5), torch.arange(5 * FEW)
    config = ForgetConfig(epochs=1)
    told = unweave.forget(points.model, points.samples(few), without_counts(points.grams), points.val, config).warnings
    assert any("middle of their class" in words and "fit again" in words for words in told)
    for grams, chosen in ((points.grams, few), (without_counts(points.grams), many)):
        result = unweave.forget(points.model, points.samples(chosen), grams, points.val, config)
        assert not any("middle of their class" in words for words in result.warnings)
    seen = outcomes(torch.tensor([0]), torch.tensor([1.0]))
    assert remarks.ranked_by_chance(without_counts(points.grams), seen, ForgetConfig(task="classes").resolved()) == []


def test_no_target_is_above_the_margin_and_what_is_wrong_already_stays_so(points: Problem) -> None:
    trained, held_out = points.grams.margins, points.grams.held_out
    assert trained is not None
    before = outcomes(torch.tensor([0, 1]), torch.tensor([-0.01, 8.0], dtype=torch.float64), 5)
    told = MarginCounts(torch.zeros(5, BINS).long())
    told.counts[:, :2] = 1  # nobody was learnt as badly as either of the two
    goal = choose_goal(ForgetConfig().resolved(), before, held_out, told)
    assert goal.margins is not None
    assert goal.margins.tolist() == [-0.01, 8.0]
    assert goal.error == 50
    assert goal.met(before)
    raised, lowered = goal.shifted(2.0).margins, goal.shifted(-2.0).margins
    assert raised is not None
    assert lowered is not None
    assert raised.tolist() == [-0.01, 8.0], "a nudge upwards would teach them"
    assert lowered.tolist() == pytest.approx([-2.01, 6.0])


def test_few_samples_of_a_network_that_knows_unseen_ones_as_well_are_forgotten_with_hardly_a_change() -> None:
    order = torch.Generator().manual_seed(0)
    centres = 1.2 * torch.randn(3, 8, generator=order)

    def drawn_from(count: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(count) % 3
        return centres[y] + torch.randn(count, 8, generator=order), y

    x, y = drawn_from(600)
    val = [drawn_from(300)]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    grams = unweave.fit(net.eval(), [(x, y)], val=val)
    asked = torch.randperm(600, generator=order)[:120].split(10)
    done = [unweave.forget(net, [(x[some], y[some])], grams, val) for some in asked]
    assert sum(result.ok for result in done) >= 10, [result.stopped for result in done if not result.ok]
    assert all(result.grams.samples == 590 for result in done if result.ok)


def test_the_validation_set_is_not_doubted_for_the_sake_of_one_sample_that_stays_right(points: Problem) -> None:
    result = unweave.forget(points.model, points.samples(torch.tensor([7])), points.grams)
    assert result.goal.error == 0
    assert not any("really held out" in words for words in result.warnings)
