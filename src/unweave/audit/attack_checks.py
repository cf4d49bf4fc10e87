"""Checks on attacks: do forgotten samples still stand out, on the whole, in shape, or in their surest cases?

An attack is heard only if it sees the original network's memory of the samples. One that does not is blind.
"""

from __future__ import annotations

import numpy as np

from unweave.audit.attack import AttackResult
from unweave.audit.checks import FAIL_CONFIDENCE, Check, IntervalAt, Outcome, from_draws, place
from unweave.audit.evidence import Evidence
from unweave.audit.limits import Thresholds
from unweave.audit.measure import Interval, Separation
from unweave.audit.thresholds import LossAttack
from unweave.audit.two_sample import KolmogorovSmirnov, kolmogorov_smirnov


def check_attack(found: AttackResult, limits: Thresholds, tries: int, needs_control: bool = True) -> Check:
    """Whether an attack still tells the forgotten samples apart, provided that it sees the original."""
    centre, at = _against(found)
    allowed = (centre - limits.auc, centre + limits.auc)
    outcome = place(at, allowed, effective_samples(found.unlearned), tries)
    measured, blind = at(FAIL_CONFIDENCE), False
    if outcome == "fail" and measured.value < centre and _unlike_from_the_first(found):
        outcome, sentence = "inconclusive", _HARD
    elif outcome == "fail":
        sentence = _seen(found, above=measured.value > centre)
    elif needs_control or found.original is not None:
        outcome, sentence, blind = _with_control(found, outcome, centre, limits)
    else:
        sentence = _unseen(found) if outcome == "pass" else _TOO_FEW
    noticed = found.unlearned.detectable_auc - 0.5
    power = f"An AUC {noticed:.2f} off would have shown four times in five; to fail, it must be off by the limit too."
    return Check(found.attack.title, outcome, sentence, measured, allowed, "auc", power, blind)


def effective_samples(found: Separation) -> float:
    """The smaller side's number of samples, of which those that weigh little count little: 1 / Σ w² (Kish)."""
    sides = ((found.positive_weights, found.models[0]), (found.negative_weights, found.models[1]))
    return min(float(1 / (np.square(weights).sum() * models)) for weights, models in sides)


def _against(found: AttackResult) -> tuple[float, IntervalAt]:
    """Where a network that never saw the data stands, and the AUC with an interval that allows for not knowing that.

    The same seed draws the same samples for both, so the difference of the draws is a paired bootstrap.
    """
    floor = found.retrained if found.strangers else None
    if floor is None:
        return 0.5, found.unlearned.auc_at
    value, centre = found.unlearned.auc.value, floor.auc.value
    return centre, from_draws(value, found.unlearned.draws[:, 0] - floor.draws[:, 0] + centre)


def _unlike_from_the_first(found: AttackResult) -> bool:
    """Whether the original network, too, knew these samples less well than strangers: then the two are not alike.

    A retrained network says what is to be expected of them, and then nothing else is asked.
    """
    alone = found.strangers and found.retrained is None
    return alone and found.original is not None and found.original.auc.high < 0.5


_HARD = (
    "The forgotten samples look less familiar than strangers do, as they did to the original network: they are harder "
    "than strangers, or the two sets are swapped, and what forgetting did cannot be told. With a retrained network "
    "(--retrained) it can."
)
_TOO_FEW = "The measurement reaches across the limit: it cannot tell whether the forgotten samples still stand out."


def _with_control(
    found: AttackResult, outcome: Outcome, centre: float, limits: Thresholds
) -> tuple[Outcome, str, bool]:
    """The outcome once the positive control was asked, what to say, and whether the attack is blind."""
    if found.original is None:
        sentence = f"Without the original network nobody knows whether {found.attack.title} would notice it."
        return "inconclusive", sentence, True
    control = found.original.auc
    if found.strangers and control.high < centre - limits.auc:
        sentence = "The original network knows the forget set less well than strangers. Are the two sets swapped?"
        return "inconclusive", sentence, False
    if control.low <= centre + limits.auc:
        return "inconclusive", _blind(found.attack.title, control, centre, limits), True
    return outcome, _unseen(found) if outcome == "pass" else _TOO_FEW, False


def _blind(title: str, control: Interval, centre: float, limits: Thresholds) -> str:
    """Why an attack does not count: it sees nothing of the original's memory, or no more than is allowed anyway."""
    if control.low <= centre:
        return f"{title} does not see the original network's memory of the samples either, so it says nothing."
    most = centre + limits.auc
    enough = f"no more than is allowed ({most:.2f})"
    if control.value > most:
        enough = f"but not for certain more than is allowed ({most:.2f}; it may be {control.low:.2f})"
    return (
        f"{title} sees the original network's memory of the samples (AUC {control.value:.2f}) {enough}, so it cannot "
        "tell what is gone: a smaller auc= (--auc) asks more."
    )


def _unseen(found: AttackResult) -> str:
    if found.strangers:
        return "The forgotten samples cannot be told from samples the network never saw."
    return "On the forget set, unlearned networks cannot be told from retrained ones."


def _seen(found: AttackResult, above: bool) -> str:
    if not found.strangers:
        return "On the forget set, unlearned networks can be told from retrained ones."
    if above:
        return "The forgotten samples can still be told from samples the network never saw."
    return "The forgotten samples look less familiar than strangers do: forgetting left a mark of its own."


def check_surest(found: AttackResult, limits: Thresholds) -> Check | None:
    """Whether a few of the samples were not forgotten: many forgotten ones among the surest accusations.

    A mean such as the AUC hides them.
    """
    rate = found.unlearned.tpr_at(0.01)
    if rate is None or not found.strangers:
        return None
    floor = None if found.retrained is None else found.retrained.tpr_at(0.01)
    most = limits.surest + 100 * (0.0 if floor is None else max(0.0, floor.value - 0.01))
    at = from_draws(100 * rate.value, 100 * found.unlearned.draws[:, 1])
    outcome = place(at, (None, most), effective_samples(found.unlearned))
    words = {
        "pass": "No more forgotten samples than strangers are among the surest cases.",
        "fail": "Some of the samples were not forgotten: they are among the surest cases far too often.",
        "inconclusive": "Too little data to tell whether some of the samples were not forgotten.",
    }
    name = f"{found.attack.title}: the surest cases"
    return Check(name, outcome, words[outcome], at(FAIL_CONFIDENCE), (None, most), "percent")


def check_shape(evidence: Evidence, limits: Thresholds, seed: int) -> Check | None:
    """Whether the margins are spread as a network's that never saw the samples; equal means are not enough.

    Compared with the retrained network's on the same samples where there is one, else with strangers of the classes.
    """
    held_out, retrained = evidence.unlearned.held_out, evidence.retrained
    if evidence.task == "poison" or (held_out is None and retrained is None):
        return None
    if retrained is not None:
        found, samples = _unlike_retrained(evidence, seed), evidence.unlearned.forget.samples
    else:
        assert held_out is not None
        strangers = held_out.of_classes(evidence.forget_classes)
        classes = (evidence.unlearned.forget.labels, strangers.labels)
        fitted = [LossAttack().fit(own) for own in strangers]
        scores = [
            np.stack([a.score(own) for a, own in zip(fitted, group, strict=True)])
            for group in (evidence.unlearned.forget, strangers)
        ]
        found = kolmogorov_smirnov(scores[0], scores[1], classes, permutations=1, seed=seed)
        samples = min(evidence.unlearned.forget.samples, strangers.samples)
    return _shape(found, limits, samples)


def _unlike_retrained(evidence: Evidence, seed: int) -> KolmogorovSmirnov:
    """All margins of the unlearned networks against all of the retrained ones, on the same samples."""
    assert evidence.retrained is not None
    ours, theirs = (answers.forget.margins().ravel() for answers in (evidence.unlearned, evidence.retrained))
    return kolmogorov_smirnov(ours, theirs, permutations=1, seed=seed)


def _shape(found: KolmogorovSmirnov, limits: Thresholds, samples: int) -> Check:
    """D never falls short by chance but exceeds by chance, so it is its own upper bound; below, chance is taken off."""
    chance = 1.36 * np.sqrt(2 / samples)  # the 95 % quantile of D for two samples of this size
    measured = Interval(found.statistic, max(0.0, found.statistic - chance), found.statistic)
    outcome = place(lambda confidence: measured, (None, limits.shape), samples)
    words = {
        "pass": "The margins on the forget set are spread as those of a network that never saw it.",
        "fail": "The margins on the forget set are not spread as those of a network that never saw it.",
        "inconclusive": "Too little data to tell whether the margins are spread as they should be.",
    }
    return Check("Shape of the margins", outcome, words[outcome], measured, (None, limits.shape), "share")
