from __future__ import annotations

import math
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor

from unweave.behaviour.outcomes import entropy, margin
from unweave.losses import (
    among,
    elsewhere_loss,
    match_loss,
    paper_loss,
    poison_loss,
    reverse_cross_entropy,
    second_choice,
)

LOGITS = 2 * torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 0, 1])
TARGETS = torch.tensor([0.5, -1.0, 3.0, 0.0, -6.0, 8.0], dtype=torch.float64)

LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "reverse": lambda z: reverse_cross_entropy(z, LABELS, 0.05),
    "paper": lambda z: paper_loss(z, LABELS, 0.2, 0.05),
    "paper, printed sign": lambda z: paper_loss(z, LABELS, -0.2, 0.05),
    "poison": lambda z: poison_loss(z, LABELS, -0.2, 0.1),
    "match": lambda z: match_loss(z, LABELS, TARGETS),
    "match, classes": lambda z: elsewhere_loss(z, among(LOGITS.flip(0), torch.tensor([0, 2]))),
    "match, classes, odds": lambda z: elsewhere_loss(z, among(LOGITS.flip(0), torch.tensor([0, 2, 3])), 0.7),
}


def softmax(logits: Tensor) -> numpy.ndarray:
    powers = numpy.exp(logits.numpy() - logits.numpy().max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def gradient(loss: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(loss(logits), logits)[0]


# ------------------------------------------------------------------------------------------------------- closed forms


def test_reverse_cross_entropy_is_the_mean_of_minus_log_of_one_minus_p() -> None:
    p = softmax(LOGITS)[range(6), LABELS]
    assert reverse_cross_entropy(LOGITS, LABELS, 0.05).item() == pytest.approx(-numpy.log(1 - p + 0.05).mean())


@pytest.mark.parametrize("lam", [0.2, -0.2, 0.0])
def test_the_paper_s_loss_subtracts_lambda_times_the_entropy(lam: float) -> None:
    p = softmax(LOGITS)
    spread = -(p * numpy.log(p)).sum(1).mean()
    away = -numpy.log(1 - p[range(6), LABELS] + 0.05).mean()
    assert paper_loss(LOGITS, LABELS, lam, 0.05).item() == pytest.approx(away - lam * spread)


def test_a_sample_that_does_not_follow_its_wrong_label_keeps_what_it_is_taken_for() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 2.5]])
    assert second_choice(logits, torch.tensor([1, 0, 0])).tolist() == [0, 1, 2]
    assert second_choice(among(logits, torch.tensor([0, 2])), torch.tensor([1, 0, 0])).tolist() == [0, 2, 2]


def test_the_poison_loss_takes_the_entropy_without_the_label_s_logit() -> None:
    away, decided = [], []
    for logits, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True):
        powers = [math.exp(z) for z in logits]
        away.append(-math.log(1 - powers[label] / sum(powers) + 0.1))
        others = [power for c, power in enumerate(powers) if c != label]
        q = [power / sum(others) for power in others]
        decided.append(-sum(share * math.log(share) for share in q))
    expected = sum(away) / 6 + 0.2 * sum(decided) / 6
    assert poison_loss(LOGITS, LABELS, -0.2, 0.1).item() == pytest.approx(expected)


def test_the_poison_loss_of_two_classes_has_no_entropy_left() -> None:
    two, labels = LOGITS[:, :2], LABELS % 2
    assert poison_loss(two, labels, -0.2, 0.1).item() == pytest.approx(reverse_cross_entropy(two, labels, 0.1).item())


def test_what_is_said_among_the_classes_that_stay() -> None:
    stay, found = [0, 2], among(LOGITS, torch.tensor([0, 2]))
    assert bool(found[:, [1, 3]].isneginf().all())
    numpy.testing.assert_allclose(found[:, stay].exp(), softmax(LOGITS[:, stay]), rtol=1e-12)


def test_matching_classes_is_the_cross_entropy_with_what_is_said_among_the_others() -> None:
    stay = torch.tensor([0, 2])
    q, log_p = among(LOGITS.flip(0), stay).exp().numpy(), numpy.log(softmax(LOGITS))
    expected = -(q * log_p).sum(1).mean()
    assert elsewhere_loss(LOGITS, among(LOGITS.flip(0), stay)).item() == pytest.approx(expected)


def test_a_matched_class_leaves_the_others_as_they_stand_to_each_other() -> None:
    """At its own outputs the loss only takes from the forgotten classes, and gives to the others in proportion."""
    stay = torch.tensor([0, 2])
    slope = gradient(lambda z: elsewhere_loss(z, among(LOGITS, stay)), LOGITS)
    assert bool((slope[:, [1, 3]] > 0).all())
    shares = slope[:, stay] / among(LOGITS, stay)[:, stay].exp()
    torch.testing.assert_close(shares[:, 0], shares[:, 1])


def test_held_odds_are_half_the_mean_square_of_what_log_probabilities_are_off() -> None:
    stay = torch.tensor([0, 2, 3])
    target = among(LOGITS.flip(0), stay)
    off = numpy.log(softmax(LOGITS[:, stay])) - numpy.log(softmax(LOGITS.flip(0)[:, stay]))
    expected = 0.5 * 0.7 * (off**2).mean()
    found = elsewhere_loss(LOGITS, target, 0.7) - elsewhere_loss(LOGITS, target)
    assert found.item() == pytest.approx(expected)
    moved = LOGITS.clone()
    moved[:, 1] += 3.0  # what the forgotten class itself says is not among them
    assert (elsewhere_loss(moved, target, 0.7) - elsewhere_loss(moved, target)).item() == pytest.approx(expected)


def test_odds_of_outputs_far_apart_are_finite() -> None:
    """Logits 300 apart: in float32 the softmax is exactly 0 there, and its logarithm is not."""
    logits = torch.tensor([[0.0, 300.0, -300.0]], requires_grad=True)
    loss = elsewhere_loss(logits, among(logits.detach().flip(1), torch.tensor([0, 2])), 0.5)
    loss.backward()
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(logits.grad).all())


def test_the_match_loss_is_smooth_l1_of_the_margins() -> None:
    off = (margin(LOGITS, LABELS) - TARGETS).abs()
    expected = torch.where(off < 1, off**2 / 2, off - 0.5).mean()
    assert match_loss(LOGITS, LABELS, TARGETS).item() == pytest.approx(expected.item())


def test_the_match_loss_is_zero_at_its_targets_and_has_no_slope_there() -> None:
    targets = margin(LOGITS, LABELS)
    assert match_loss(LOGITS, LABELS, targets) == 0
    assert gradient(lambda z: match_loss(z, LABELS, targets), LOGITS).abs().max() == 0


# ---------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    assert torch.autograd.gradcheck(LOSSES[name], LOGITS.clone().requires_grad_())


@pytest.mark.parametrize("height", [20.0, 40.0])
def test_the_gradient_is_exact_where_the_probability_rounds_to_one(height: float) -> None:
    """With p_y ≈ 1 the slope in z_y is p_y (1 − p_y) / (1 − p_y + ε); 1 − p_y as a difference would be 0."""
    logits = torch.tensor([[height, 0.0, -height]], dtype=torch.float64)
    left = (1 + math.exp(-height)) * math.exp(-height)
    expected = left / (1 + left) / (left / (1 + left) + 0.05) / (1 + left)
    got = gradient(lambda z: reverse_cross_entropy(z, torch.tensor([0]), 0.05), logits)
    assert got[0, 0].item() == pytest.approx(expected, rel=1e-12)
    single = gradient(lambda z: reverse_cross_entropy(z, torch.tensor([0]), 0.05), logits.float())
    assert single[0, 0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("eps", [0.05, 0.1])
def test_the_slope_in_the_probability_is_at_most_one_over_epsilon(eps: float) -> None:
    logits = torch.linspace(-40, 40, 161, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.0])
    p = logits.softmax(1)[:, 0]
    slope = len(logits) * gradient(lambda z: reverse_cross_entropy(z, torch.zeros(161).long(), eps), logits)[:, 0]
    inside = (p > 1e-6) & (p < 1 - 1e-6)
    in_p = (slope / (p * (1 - p)))[inside]
    assert in_p.max() <= 1 / eps
    assert in_p.max() > 0.9 / eps


@pytest.mark.parametrize("lam, sign", [(0.2, 1), (-0.2, -1)])
def test_lambda_above_zero_raises_the_entropy_and_below_zero_lowers_it(lam: float, sign: int) -> None:
    away = gradient(lambda z: reverse_cross_entropy(z, LABELS, 0.05), LOGITS)
    step = gradient(lambda z: paper_loss(z, LABELS, lam, 0.05), LOGITS) - away
    change = entropy(LOGITS - 0.01 * step).mean() - entropy(LOGITS).mean()
    assert sign * change > 0


@pytest.mark.parametrize("name", LOSSES)
def test_saturated_logits_give_finite_losses_and_gradients(name: str) -> None:
    logits = torch.full((6, 4), -1e5).scatter(1, LABELS[:, None], 1e5)
    assert LOSSES[name](logits).isfinite()
    assert gradient(LOSSES[name], logits).isfinite().all()
