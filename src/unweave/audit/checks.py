"""The questions a verdict rests on. Each compares an interval with what is allowed and says how it came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from unweave.audit.attack import AttackResult
from unweave.audit.evidence import Evidence
from unweave.audit.limits import Thresholds
from unweave.audit.measure import Interval
from unweave.audit.outputs import Ensemble
from unweave.audit.readouts import paired_difference, proportion

Outcome = Literal["pass", "fail", "inconclusive"]

PASS_CONFIDENCE = 0.90
"""Two one-sided tests at 5 %: the interval that has to lie inside to pass."""
FAIL_CONFIDENCE = 0.95
"""The interval that has to lie outside to fail; wider where several attacks each have a chance of a false alarm."""
FEW = 20
"""With fewer samples on either side no check passes: the intervals themselves are not to be trusted."""
UNCHANGED = 0.01
"""A median change of the margins below this share of their spread is no change."""

IntervalAt = Callable[[float], Interval]
"""The interval of a measured value at any confidence."""


@dataclass(frozen=True)
class Check:
    """One question and its answer."""

    name: str
    outcome: Outcome
    sentence: str
    measured: Interval | None = None
    allowed: tuple[float | None, float | None] | None = None
    unit: Literal["auc", "percent", "points"] | None = None
    power: str | None = None
    blind: bool = False
    """An attack that could not see the original either: it neither speaks for nor against."""

    def document(self) -> dict[str, Any]:
        """As the report's schema wants it."""
        plain = {"name": self.name, "outcome": self.outcome, "sentence": self.sentence}
        more = {
            "measured": self.measured and self.measured.document(),
            "allowed": self.allowed and list(self.allowed),
            "unit": self.unit,
            "power": self.power,
        }
        return plain | {key: value for key, value in more.items() if value is not None}


def place(at: IntervalAt, allowed: tuple[float | None, float | None], samples: int, tries: int = 1) -> Outcome:
    """Where an interval lies: inside (pass), outside (fail), or across the border (inconclusive).

    Args:
        at: the interval at a confidence.
        allowed: lowest and highest value that passes; None for no border.
        samples: on the smaller side.
        tries: how many checks of this kind there are; each gets its share of the 5 % of false alarms.
    """
    low, high = (-np.inf if allowed[0] is None else allowed[0], np.inf if allowed[1] is None else allowed[1])
    outside = at(1 - (1 - FAIL_CONFIDENCE) / tries)
    if outside.low > high or outside.high < low:
        return "fail"
    inside = at(PASS_CONFIDENCE)
    return "pass" if samples >= FEW and low <= inside.low and inside.high <= high else "inconclusive"


# --------------------------------------------------------------------------------------------------------- attacks


def check_attack(found: AttackResult, limits: Thresholds, tries: int) -> Check:
    """Whether an attack still tells the forgotten samples apart, provided that it sees the original."""
    centre, at = _against(found)
    allowed = (centre - limits.auc, centre + limits.auc)
    samples = min(found.unlearned.samples)
    outcome = place(at, allowed, samples, tries)
    outcome, sentence, blind = _with_control(found, at(FAIL_CONFIDENCE), outcome, centre, limits)
    power = f"An AUC of {found.unlearned.detectable_auc:.2f} or more would have been noticed four times in five."
    return Check(found.attack.title, outcome, sentence, at(FAIL_CONFIDENCE), allowed, "auc", power, blind)


def _against(found: AttackResult) -> tuple[float, IntervalAt]:
    """Where a network that never saw the data stands, and the AUC with an interval that allows for not knowing that.

    The same seed draws the same samples for both, so the difference of the draws is a paired bootstrap.
    """
    floor = found.retrained if found.strangers else None
    if floor is None:
        return 0.5, found.unlearned.auc_at
    value, centre = found.unlearned.auc.value, floor.auc.value
    draws = found.unlearned.draws[:, 0] - floor.draws[:, 0] + centre

    def at(confidence: float) -> Interval:
        tail = (1 - confidence) / 2
        low, high = np.quantile(draws, [tail, 1 - tail])
        return Interval(value, float(min(low, value)), float(max(high, value)))

    return centre, at


def _with_control(
    found: AttackResult, measured: Interval, outcome: Outcome, centre: float, limits: Thresholds
) -> tuple[Outcome, str, bool]:
    """The outcome once the positive control was asked, what to say, and whether the attack is blind."""
    if outcome == "fail":
        return outcome, _seen(found, above=measured.value > centre), False
    if found.original is None:
        return "inconclusive", "Without the original network nobody knows whether this attack would notice it.", True
    control = found.original.auc
    if found.strangers and control.high < centre - limits.auc:
        sentence = "The original network knows the forget set less well than strangers. Are the two sets swapped?"
        return "inconclusive", sentence, False
    if control.low <= centre + limits.auc:
        sentence = "This attack does not see the original network's memory of the samples either, so it says nothing."
        return "inconclusive", sentence, True
    if outcome == "inconclusive":
        return outcome, "Too few samples to tell whether the forgotten ones still stand out.", False
    if found.strangers:
        return outcome, "The forgotten samples cannot be told from samples the network never saw.", False
    return outcome, "On the forget set, unlearned networks cannot be told from retrained ones.", False


def _seen(found: AttackResult, above: bool) -> str:
    if not found.strangers:
        return "On the forget set, unlearned networks can be told from retrained ones."
    if above:
        return "The forgotten samples can still be told from samples the network never saw."
    return "The forgotten samples look less familiar than strangers do: forgetting left a mark of its own."


# ------------------------------------------------------------------------------------------------------- behaviour


def check_changed(evidence: Evidence) -> Check | None:
    """A network that says the same as before has forgotten nothing, whatever the attacks say."""
    if evidence.original is None:
        return None
    before, after = (group.forget.margins() for group in (evidence.original, evidence.unlearned))
    if before.shape != after.shape:
        return None
    spread = np.subtract(*np.quantile(before, [0.75, 0.25])) or 1.0
    if np.median(np.abs(after - before)) < UNCHANGED * spread:
        sentence = "The network says the same about the forget set as before: nothing was forgotten."
        return Check("Something changed", "fail", sentence)
    return Check("Something changed", "pass", "The network's answers on the forget set have changed.")


def check_held_out(evidence: Evidence, limits: Thresholds) -> Check:
    """Whether the network still works on samples it never saw: as well as the original, or as a retrained one.

    Retraining without the forget set may cost something too, and what it costs is no damage.
    """
    own = evidence.unlearned.held_out
    others = {"original": evidence.original, "retrained": evidence.retrained}
    checks = [
        _check_against(name, own, answers.held_out, evidence, limits)
        for name, answers in others.items()
        if own is not None and answers is not None and answers.held_out is not None
    ]
    if not checks:
        sentence = "Whether the network still works is unknown: held-out outputs of it and of the original are needed."
        return Check("Still works", "inconclusive", sentence)
    return min(checks, key=lambda check: ("pass", "inconclusive", "fail").index(check.outcome))


def _check_against(name: str, own: Ensemble, theirs: Ensemble, evidence: Evidence, limits: Thresholds) -> Check:
    kept = ~np.isin(own.labels, evidence.removed)
    at = difference(own.where(kept), theirs.where(kept))
    outcome = place(at, (None, limits.held_out_rise), int(kept.sum()))
    words = {
        "pass": f"On samples nobody trained on it errs about as often as the {name} network.",
        "fail": f"It errs more often than the {name} network on samples nobody trained on: it was damaged.",
        "inconclusive": "Too few held-out samples to tell whether the network was damaged.",
    }
    return _points("Still works", outcome, words[outcome], at, (None, limits.held_out_rise))


def check_retained(evidence: Evidence, limits: Thresholds) -> Check | None:
    """Whether samples that were to stay have stayed."""
    own, original = evidence.unlearned.retained, evidence.original
    if own is None or original is None or original.retained is None:
        return None
    at = difference(own, original.retained)
    outcome = place(at, (None, limits.retained_rise), own.samples)
    words = {
        "pass": "Retained samples are known as before.",
        "fail": "Retained samples were lost along with the forgotten ones.",
        "inconclusive": "Too few retained samples to tell whether they suffered.",
    }
    return _points("Retained samples", outcome, words[outcome], at, (None, limits.retained_rise))


def check_forget_error(evidence: Evidence, limits: Thresholds) -> Check | None:
    """Whether the forget error is that of a network which never saw the samples."""
    if evidence.retrained is None or evidence.task != "samples":
        return None
    at = difference(evidence.unlearned.forget, evidence.retrained.forget)
    allowed = (-limits.forget_gap, limits.forget_gap)
    outcome = place(at, allowed, evidence.unlearned.forget.samples)
    words = {
        "pass": "It errs on the forget set about as often as a network that never saw it.",
        "fail": "Its error on the forget set is not that of a network that never saw it.",
        "inconclusive": "Too few forgotten samples to compare the error with a retrained network's.",
    }
    return _points("Error on the forget set", outcome, words[outcome], at, allowed)


def check_recognised(evidence: Evidence, limits: Thresholds) -> Check | None:
    """Classes: whether new samples of a removed class are still recognised."""
    held_out = evidence.unlearned.held_out
    if evidence.task != "classes" or held_out is None:
        return None
    gone = held_out.where(np.isin(held_out.labels, evidence.removed))
    if not gone.samples:
        return None
    most = 100 / held_out.classes + limits.recognised
    at = _right(gone)
    outcome = place(at, (None, most), gone.samples)
    words = {
        "pass": "New samples of the removed class are recognised no more often than by chance.",
        "fail": "New samples of the removed class are still recognised.",
        "inconclusive": "Too few samples of the removed class to tell whether it is still recognised.",
    }
    return Check("The class is gone", outcome, words[outcome], at(FAIL_CONFIDENCE), (None, most), "percent")


def check_followed(evidence: Evidence, limits: Thresholds) -> Check | None:
    """Poison: whether the poisoned samples still get their wrong label."""
    if evidence.task != "poison":
        return None
    at = _right(evidence.unlearned.forget)
    outcome = place(at, (None, limits.followed), evidence.unlearned.forget.samples)
    words = {
        "pass": "The wrong labels are no longer followed.",
        "fail": "The wrong labels are still followed.",
        "inconclusive": "Too few poisoned samples to tell whether the wrong labels are still followed.",
    }
    return Check("The poison is gone", outcome, words[outcome], at(FAIL_CONFIDENCE), (None, limits.followed), "percent")


# ------------------------------------------------------------------------------------------------------ measurements


def difference(a: Ensemble, b: Ensemble) -> IntervalAt:
    """Error of ``a`` less error of ``b`` on the same samples, in points, paired by sample."""
    return lambda confidence: paired_difference(a, b, confidence)


def _right(answers: Ensemble) -> IntervalAt:
    """Percent right."""
    hits = np.stack([~outputs.wrong() for outputs in answers])

    def at(confidence: float) -> Interval:
        share = proportion(hits, confidence)
        return Interval(100 * share.value, 100 * share.low, 100 * share.high)

    return at


def _points(
    name: str, outcome: Outcome, sentence: str, at: IntervalAt, allowed: tuple[float | None, float | None]
) -> Check:
    measured = at(FAIL_CONFIDENCE)
    power = f"The interval reaches {(measured.high - measured.low) / 2:.1f} points to either side."
    return Check(name, outcome, sentence, measured, allowed, "points", power)
