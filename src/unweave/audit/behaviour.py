"""Checks on behaviour: did anything change, does the network still work, are class and poison gone?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from scipy.stats import norm

from unweave.audit.checks import FAIL_CONFIDENCE, Allowed, Check, IntervalAt, Outcome, across, place
from unweave.audit.evidence import Evidence
from unweave.audit.limits import Thresholds
from unweave.audit.measure import Interval
from unweave.audit.outputs import Ensemble
from unweave.audit.readouts import paired_difference, proportion
from unweave.behaviour.label_shift import best_temperature, tempered_losses

UNCHANGED = 0.01
"""A median change of the margins below this share of their spread is no change."""
LEAST_LEFT = 1e-3
"""Of a class that nothing is left of; log 0 would be no answer."""
BROKEN = 10.0
"""A retrained network whose held-out error is so many points above the original's is no yardstick."""


def check_changed(evidence: Evidence) -> Check | None:
    """A network that says the same as one of the originals has forgotten nothing, whatever the attacks say."""
    if evidence.original is None:
        return None
    before, after = (group.forget.margins() for group in (evidence.original, evidence.unlearned))
    spread = np.subtract(*np.quantile(before, [0.75, 0.25])) or 1.0
    least = min(float(np.median(np.abs(new - old))) for new in after for old in before)
    if least < UNCHANGED * spread:
        sentence = "The network says the same about the forget set as before: nothing was forgotten."
        return Check("Something changed", "fail", sentence)
    return Check("Something changed", "pass", "The network's answers on the forget set have changed.")


def check_yardstick(evidence: Evidence) -> Check | None:
    """A retrained network that does not work would excuse everything; said only where that is so."""
    original, retrained = evidence.original, evidence.retrained
    if original is None or retrained is None or original.held_out is None or retrained.held_out is None:
        return None
    if not _is_broken(evidence, retrained.held_out, original.held_out):
        return None
    sentence = "The retrained network works far worse than the original, so nothing can be judged by it."
    return Check("A sound yardstick", "inconclusive", sentence)


def _is_broken(evidence: Evidence, retrained: Ensemble, original: Ensemble) -> bool:
    kept = ~np.isin(original.labels, evidence.removed)
    return paired_difference(retrained.where(kept), original.where(kept)).value > BROKEN


def check_held_out(evidence: Evidence, limits: Thresholds) -> Check:
    """Whether the network still works on samples it never saw: as well as the original, or as a retrained one.

    Retraining without the forget set may cost something too, and what it costs is no damage.
    """
    kept = ~np.isin(_labels(evidence), evidence.removed)
    words = {
        "pass": "On samples nobody trained on it errs about as often as the {} network.",
        "fail": "It errs more often than the {} network on samples nobody trained on: it was damaged.",
        "inconclusive": "The held-out error is {{}} above the {} network's",
        "question": "whether the network was damaged",
    }
    checks = [
        _rise(
            "Still works",
            paired(own.where(kept), theirs.where(kept)),
            limits.held_out_rise,
            int(kept.sum()),
            words,
            name,
            alone=len(own) == len(theirs) == 1,
        )
        for name, own, theirs in _comparisons(evidence)
    ]
    if not checks:
        sentence = "Whether the network still works is unknown: held-out outputs of it and of the original are needed."
        return Check("Still works", "inconclusive", sentence)
    return _most_lenient(checks)


def check_own_classes(evidence: Evidence, limits: Thresholds) -> Check | None:
    """Whether the classes of the forgotten samples still work, in the forget set's proportions.

    Their damage hides in the average over all classes, and attacks within a class do not see it.
    """
    if evidence.task != "samples":
        return None
    words = {
        "pass": "New samples of the forgotten samples' classes fare about as with the {} network.",
        "fail": "New samples of the forgotten samples' classes pay for it: they are wrong far more often than with the "
        "{} network.",
        "inconclusive": "The held-out error of the forgotten samples' classes is {{}} above the {} network's",
        "question": "whether they suffered",
    }
    own_classes = np.isin(_labels(evidence), evidence.forget_classes)
    checks = [
        _rise(
            "Their classes still work",
            by_class(own, theirs, evidence.unlearned.forget),
            limits.class_rise,
            int(own_classes.sum()),
            words,
            name,
            alone=len(own) == len(theirs) == 1,
        )
        for name, own, theirs in _comparisons(evidence)
    ]
    return _most_lenient(checks) if checks else None


def check_retained(evidence: Evidence, limits: Thresholds) -> Check | None:
    """Whether samples that were to stay have stayed."""
    own, original = evidence.unlearned.retained, evidence.original
    if own is None or original is None or original.retained is None:
        return None
    words = {
        "pass": "Retained samples are known as before.",
        "fail": "Retained samples were lost along with the forgotten ones.",
        "inconclusive": "The error on retained samples is {{}} above the {} network's",
        "question": "whether they suffered",
    }
    at, alone = paired(own, original.retained), len(own) == len(original.retained) == 1
    return _rise("Retained samples", at, limits.retained_rise, own.samples, words, "original", alone)


def check_forget_error(evidence: Evidence, limits: Thresholds) -> Check | None:
    """Whether the forget error is that of a network which never saw the samples."""
    if evidence.retrained is None or evidence.task != "samples":
        return None
    at = paired(evidence.unlearned.forget, evidence.retrained.forget)
    allowed = (-limits.forget_gap, limits.forget_gap)
    outcome = place(at, allowed, evidence.unlearned.forget.samples)
    words = {
        "pass": "It errs on the forget set about as often as a network that never saw it.",
        "fail": "Its error on the forget set is not that of a network that never saw it.",
        "inconclusive": "Too little data to compare the error on the forget set with a retrained network's.",
    }
    return _points("Error on the forget set", outcome, words[outcome], at, allowed)


def check_recognised(evidence: Evidence, limits: Thresholds) -> Check | None:
    """Classes: whether new samples of a removed class are still recognised."""
    held_out = evidence.unlearned.held_out
    if evidence.task != "classes" or held_out is None:
        return None
    gone = held_out.of_classes(evidence.removed)
    if not gone.samples:
        return None
    most = 100 / held_out.classes + limits.recognised
    words = {
        "pass": "New samples of the removed class are recognised no more often than by chance.",
        "fail": "New samples of the removed class are still recognised.",
        "inconclusive": "{} of the new samples of the removed class are recognised",
        "question": "whether the class is gone",
    }
    return _at_most("The class is gone", gone, most, words)


def check_followed(evidence: Evidence, limits: Thresholds) -> Check | None:
    """Poison: whether the poisoned samples still get their wrong label, as they did before."""
    if evidence.task != "poison":
        return None
    words = {
        "pass": "The wrong labels are no longer followed.",
        "fail": "The wrong labels are still followed.",
        "inconclusive": "{} of the wrong labels are still followed",
        "question": "whether they are gone",
    }
    check = _at_most("The poison is gone", evidence.unlearned.forget, limits.followed, words)
    before = None if evidence.original is None else right(evidence.original.forget)(FAIL_CONFIDENCE)
    if check.outcome != "pass" or (before is not None and before.low > limits.followed):
        return check
    sentence = "The original network is not known to have followed the wrong labels, so nothing shows that they left."
    return Check(check.name, "inconclusive", sentence, check.measured, check.allowed, check.unit)


# ------------------------------------------------------------------------------------------------------ measurements


def paired(a: Ensemble, b: Ensemble) -> IntervalAt:
    """Error of ``a`` less error of ``b`` on the same samples, in points."""
    return lambda confidence: paired_difference(a, b, confidence)


def by_class(a: Ensemble, b: Ensemble, wanted: Ensemble) -> IntervalAt:
    """Error of ``a`` less error of ``b``, in points, with the classes in the proportions of ``wanted``.

    d is a sample's mean error in a less that in b, d̄_c its mean in class c with share s_c: Σ s_c d̄_c, with variance
    Σ s_c² v_c. One disagreement is added to each class (Agresti and Min): none among a few samples is no certainty.
    """
    wrong = [np.stack([outputs.wrong() for outputs in group]).mean(0) for group in (a, b)]
    d = wrong[0] - wrong[1]
    value = variance = 0.0
    for label, count in zip(*np.unique(wanted.labels, return_counts=True), strict=True):
        own, share = d[a.labels == label], count / wanted.samples
        n = len(own) + 2
        value += share * float(own.mean())
        variance += share**2 * float((np.square(own).sum() + 1 - own.sum() ** 2 / n) / n**2)

    def at(confidence: float) -> Interval:
        reach = float(norm.ppf((1 + confidence) / 2)) * float(np.sqrt(variance))
        return Interval(100 * value, 100 * (value - reach), 100 * (value + reach))

    return at


def right(answers: Ensemble) -> IntervalAt:
    """Percent right."""
    hits = np.stack([~outputs.wrong() for outputs in answers])

    def at(confidence: float) -> Interval:
        share = proportion(hits, confidence)
        return Interval(100 * share.value, 100 * share.low, 100 * share.high)

    return at


def _labels(evidence: Evidence) -> np.typing.NDArray[np.int64]:
    held_out = evidence.unlearned.held_out
    return np.array([], dtype=np.int64) if held_out is None else held_out.labels


def _comparisons(evidence: Evidence) -> list[tuple[str, Ensemble, Ensemble]]:
    """The held-out outputs on trial beside the original's, and beside the retrained network's if that works itself.

    Where it is known what is left of the classes, also beside those of the original reweighted by it.
    """
    own = evidence.unlearned.held_out
    groups = {"original": evidence.original, "retrained": evidence.retrained}
    there = {n: g.held_out for n, g in groups.items() if own is not None and g is not None and g.held_out is not None}
    if "retrained" in there and (
        "original" not in there or _is_broken(evidence, there["retrained"], there["original"])
    ):
        del there["retrained"]
    if "original" in there and evidence.left and evidence.task == "samples":
        there["reweighted original"] = reweighted(there["original"], evidence.left)
    return [] if own is None else [(name, own, theirs) for name, theirs in there.items()]


def reweighted(original: Ensemble, left: Mapping[int, float]) -> Ensemble:
    """What networks would say had they been trained on these shares of their classes: z_c + T log share.

    See :mod:`unweave.behaviour.label_shift`; T is theirs on these samples.
    """
    labels = torch.from_numpy(np.tile(original.labels, len(original)))
    every = torch.from_numpy(original.logits.reshape(-1, original.classes))
    shares = np.array([max(left.get(c, 1.0), LEAST_LEFT) for c in range(original.classes)])
    shift = best_temperature(tempered_losses(every, labels)) * np.log(shares)
    return Ensemble(original.logits + shift, original.labels)


def _most_lenient(checks: list[Check]) -> Check:
    """The best outcome; of several alike, the one with the least to show for it."""

    def harm(check: Check) -> tuple[int, float]:
        outcome = ("pass", "inconclusive", "fail").index(check.outcome)
        return outcome, np.inf if check.measured is None else check.measured.value

    return min(checks, key=harm)


def _rise(
    name: str, at: IntervalAt, most: float, samples: int, words: dict[str, str], compared: str, alone: bool
) -> Check:
    outcome = place(at, (None, most), samples)
    sentence = words[outcome].format(compared)
    if outcome == "inconclusive":
        sentence = across(sentence, words["question"], at, most, "points", samples, alone)
    return _points(name, outcome, sentence, at, (None, most))


def _at_most(name: str, answers: Ensemble, most: float, words: dict[str, str]) -> Check:
    """Whether no more than so many percent of the samples are right."""
    at = right(answers)
    outcome = place(at, (None, most), answers.samples)
    sentence = words[outcome]
    if outcome == "inconclusive":
        sentence = across(sentence, words["question"], at, most, "%", answers.samples, alone=len(answers) == 1)
    return Check(name, outcome, sentence, at(FAIL_CONFIDENCE), (None, most), "percent")


def _points(name: str, outcome: Outcome, sentence: str, at: IntervalAt, allowed: Allowed) -> Check:
    measured = at(FAIL_CONFIDENCE)
    power = f"The interval reaches {(measured.high - measured.low) / 2:.1f} points to either side."
    return Check(name, outcome, sentence, measured, allowed, "points", power)
