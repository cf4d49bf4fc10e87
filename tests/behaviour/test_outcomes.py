from __future__ import annotations

import numpy
import pytest
import torch
from helpers import images, in_batches, small_cnn
from torch import Tensor

from unweave.behaviour.outcomes import LEVELS, ClassProfile, Outcomes, entropy, margin, membership_auc, observe, read
from unweave.errors import DataError

LOGITS = 3 * torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TRUTH = torch.arange(40) % 4


def softmax(logits: Tensor) -> numpy.ndarray:
    powers = numpy.exp(logits.numpy())
    return powers / powers.sum(1, keepdims=True)


# ---------------------------------------------------------------------------------------------------------- read-outs


def test_the_margin_is_the_log_odds_of_the_label() -> None:
    p = softmax(LOGITS)[numpy.arange(40), TRUTH]
    numpy.testing.assert_allclose(margin(LOGITS, TRUTH), numpy.log(p / (1 - p)), rtol=1e-10)


def test_the_margin_survives_probabilities_that_round_to_one() -> None:
    """log(p / (1 − p)) would be infinite here."""
    certain = torch.tensor([[200.0, 0.0, 0.0]])
    assert margin(certain, torch.tensor([0])).item() == pytest.approx(200 - numpy.log(2))
    assert margin(certain, torch.tensor([1])).item() == pytest.approx(-200)


def test_the_entropy_is_that_of_the_softmax() -> None:
    p = softmax(LOGITS)
    numpy.testing.assert_allclose(entropy(LOGITS), -(p * numpy.log(p)).sum(1), rtol=1e-10)
    assert entropy(torch.zeros(1, 8)).item() == pytest.approx(numpy.log(8))


@pytest.mark.parametrize("readout", [entropy, lambda z: margin(z, torch.tensor([0]))])
def test_saturated_logits_have_finite_readouts_and_gradients(readout) -> None:
    logits = torch.tensor([[1e5, -1e5, 0.0]], requires_grad=True)
    value = readout(logits)
    value.sum().backward()
    assert value.isfinite().all()
    assert logits.grad.isfinite().all()


def test_read_is_exact_in_any_dtype() -> None:
    outcomes = read(LOGITS.bfloat16(), TRUTH)
    assert outcomes.margin.dtype == outcomes.loss.dtype == torch.float64
    numpy.testing.assert_allclose(outcomes.loss, -numpy.log(softmax(LOGITS.bfloat16().double())[range(40), TRUTH]))


def test_errors_are_percentages_by_class_and_over_all() -> None:
    outcomes = read(LOGITS, TRUTH)
    wrong = LOGITS.argmax(1) != TRUTH
    assert outcomes.error == pytest.approx(100 * wrong.double().mean().item())
    assert outcomes.error_by_class() == {
        c: pytest.approx(100 * wrong[c == TRUTH].double().mean().item()) for c in range(4)
    }
    assert set(outcomes.where(TRUTH != 2).error_by_class()) == {0, 1, 3}


def test_outcomes_in_parts_are_those_of_the_whole() -> None:
    whole = read(LOGITS, TRUTH)
    parts = Outcomes.concat([read(LOGITS[:7], TRUTH[:7]), read(LOGITS[7:], TRUTH[7:])])
    assert len(parts) == 40
    assert parts.classes == 4
    for name in ("labels", "wrong", "loss", "margin", "entropy"):
        assert torch.equal(getattr(parts, name), getattr(whole, name))


def test_observing_a_model_is_reading_its_logits() -> None:
    net, (x, labels) = small_cnn().eval(), images(9)
    with torch.no_grad():
        outcomes = observe(net, in_batches(x, labels, 4))
        expected = read(net(x), labels)
    torch.testing.assert_close(outcomes.margin, expected.margin)
    assert outcomes.wrong.tolist() == expected.wrong.tolist()


# ----------------------------------------------------------------------------------------------------------- profiles


@pytest.fixture
def profile() -> ClassProfile:
    return ClassProfile.of(read(LOGITS, TRUTH))


def test_a_profile_counts_and_averages_by_class(profile: ClassProfile) -> None:
    outcomes = read(LOGITS, TRUTH)
    assert profile.classes == 4
    assert profile.count.tolist() == [10, 10, 10, 10]
    for c in range(4):
        own = outcomes.where(c == TRUTH)
        assert profile.error[c] == own.wrong.double().mean()
        assert profile.loss[c] == own.loss.mean()
        numpy.testing.assert_allclose(profile.margin[c], numpy.quantile(own.margin, numpy.linspace(0, 1, LEVELS)))
        numpy.testing.assert_allclose(profile.entropy[c], numpy.quantile(own.entropy, numpy.linspace(0, 1, LEVELS)))


def test_outcomes_by_class_are_those_of_its_samples_in_their_order() -> None:
    outcomes = read(LOGITS, TRUTH).where(TRUTH != 1)
    for c, own in enumerate(outcomes.by_class()):
        expected = outcomes.where(outcomes.labels == c)
        assert own.classes == 4
        assert all(torch.equal(getattr(own, name), getattr(expected, name)) for name in ("labels", "wrong", "margin"))
    assert list(Outcomes.none().by_class()) == []


def test_a_profile_is_float64_with_nan_for_an_absent_class() -> None:
    profile = ClassProfile.of(read(LOGITS, TRUTH).where(TRUTH != 1))
    assert profile.count.tolist() == [10, 0, 10, 10]
    assert all(column.dtype == torch.float64 for column in vars(profile).values())
    assert profile.error[1].isnan()
    assert profile.entropy[1].isnan().all()
    assert not profile.margin[[0, 2, 3]].isnan().any()


def test_the_expected_error_weighs_classes_by_the_labels(profile: ClassProfile) -> None:
    labels = torch.tensor([0, 0, 0, 3])
    expected = 100 * (3 * profile.error[0] + profile.error[3]).item() / 4
    assert profile.expected_error(labels) == pytest.approx(expected)


def test_the_margin_at_a_rank_is_the_quantile(profile: ClassProfile) -> None:
    own = read(LOGITS, TRUTH).where(TRUTH == 2).margin.numpy()
    ranks = torch.tensor([0.0, 0.1, 0.5, 0.77, 1.0]).double()
    got = profile.margin_at(torch.full((5,), 2), ranks)
    numpy.testing.assert_allclose(got, numpy.quantile(own, ranks.numpy()), rtol=1e-9)


def test_a_rank_between_two_kept_quantiles_is_interpolated(profile: ClassProfile) -> None:
    low, high = profile.margin[2, 30], profile.margin[2, 31]
    got = profile.margin_at(torch.tensor([2]), torch.tensor([0.3025]).double())
    assert got.item() == pytest.approx((low + 0.25 * (high - low)).item())


def test_ranks_beyond_the_ends_are_the_ends(profile: ClassProfile) -> None:
    got = profile.margin_at(torch.tensor([1, 1]), torch.tensor([-0.5, 1.5]))
    assert got.tolist() == [profile.margin[1, 0], profile.margin[1, -1]]


def test_a_class_with_one_sample_has_a_margin_at_every_rank() -> None:
    one = ClassProfile.of(read(LOGITS[:4], TRUTH[:4]))
    assert one.margin_at(torch.tensor([2]), torch.tensor([0.3])).item() == one.margin[2, 0]


@pytest.mark.parametrize("ask", ["expected_error", "margin_at"])
def test_a_class_that_was_not_held_out_is_refused_by_name(ask: str) -> None:
    profile = ClassProfile.of(read(LOGITS, TRUTH).where(TRUTH % 2 == 0))
    more = () if ask == "expected_error" else (torch.tensor([0.5, 0.5, 0.5]),)
    with pytest.raises(DataError, match=r"No held-out sample of class 1, 3.*val="):
        getattr(profile, ask)(torch.tensor([0, 3, 1]), *more)


# ---------------------------------------------------------------------------------------------------------- membership


def outcomes_of(labels: list[int], margins: list[float]) -> Outcomes:
    values = torch.tensor(margins, dtype=torch.float64)
    return Outcomes(torch.tensor(labels), values < 0, values, values, values, classes=3)


def test_the_membership_auc_counts_strangers_of_the_same_class_below() -> None:
    members = outcomes_of([0, 0, 2, 2, 2], [1.0, 2.0, -1.0, 5.0, 2.0])
    strangers = outcomes_of([2, 0, 1, 0, 2, 0, 2], [2.0, 2.0, -9.0, 0.5, -3.0, 1.0, 4.0])
    won = []
    for c, m in zip(members.labels.tolist(), members.margin.tolist(), strict=True):
        own = [s for k, s in zip(strangers.labels.tolist(), strangers.margin.tolist(), strict=True) if k == c]
        won.append(sum((m > s) + 0.5 * (m == s) for s in own) / len(own))
    assert membership_auc(members, strangers) == pytest.approx(sum(won) / len(won), abs=1e-15)


def test_there_is_no_membership_auc_without_a_stranger_of_a_class() -> None:
    assert membership_auc(outcomes_of([0, 1], [1.0, 2.0]), outcomes_of([0, 2], [1.0, 2.0])) is None
