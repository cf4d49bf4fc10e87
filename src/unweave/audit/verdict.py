"""One word at the end: pass, fail or inconclusive.

*Fail* if any check fails. *Pass* only if none fails, all that can see pass, and at least one attack could see: it tells
the original network's memory of the samples from strangers, so its silence about the unlearned one means something.
Everything else is *inconclusive*. A failed attack is no proof of forgetting, and the sentence never says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unweave.audit.attack import AttackResult
from unweave.audit.attack_checks import check_attack, check_shape, check_surest
from unweave.audit.behaviour import (
    check_changed,
    check_followed,
    check_forget_error,
    check_held_out,
    check_own_classes,
    check_recognised,
    check_retained,
    check_yardstick,
)
from unweave.audit.checks import Check, Outcome
from unweave.audit.evidence import Evidence
from unweave.audit.limits import Thresholds

EARLIER = "Earlier request: "
"""Before the title of an earlier request that was tested again."""
OTHER_TASK = "No retained sample is of the forgotten classes: if these were to go altogether, the task is 'classes'."
"""Said where samples of every other class were retained. That is no proof, so it is a hint and no refusal."""


@dataclass(frozen=True)
class Verdict:
    """How it came out, in one sentence, and the checks it rests on."""

    outcome: Outcome
    sentence: str
    checks: tuple[Check, ...]

    def document(self) -> dict[str, Any]:
        """As the report's schema wants it."""
        checks = [check.document() for check in self.checks]
        return {"outcome": self.outcome, "sentence": self.sentence, "checks": checks}


def judge(
    evidence: Evidence,
    attacks: Sequence[AttackResult],
    earlier: Mapping[str, AttackResult],
    limits: Thresholds,
    *,
    complete: bool = True,
    seed: int = 0,
) -> Verdict:
    """Ask every question that the evidence can answer, and sum up.

    Args:
        evidence: what is on the table.
        attacks: what they found.
        earlier: earlier requests, attacked again.
        limits: what is allowed.
        complete: whether every attack was run that could be; if not, nothing passes.
        seed: of permutations.
    """
    judged = [found for found in attacks if found.judged]
    attacked = [check_attack(found, limits, tries=max(1, len(judged))) for found in judged]
    asked = [
        *(check_surest(found, limits) for found in judged if found.attack.name == "margin"),
        check_shape(evidence, limits, seed),
        check_changed(evidence),
        check_yardstick(evidence),
        check_held_out(evidence, limits),
        check_own_classes(evidence, limits),
        check_retained(evidence, limits),
        check_forget_error(evidence, limits),
        check_recognised(evidence, limits),
        check_followed(evidence, limits),
    ]
    again = [
        replace(check_attack(found, limits, len(earlier), needs_control=False), name=f"{EARLIER}{title}", blind=False)
        for title, found in earlier.items()
    ]
    checks = (*attacked, *(check for check in asked if check is not None), *again)
    outcome = _outcome(evidence, attacked, checks)
    if outcome == "pass" and not complete:
        return Verdict("inconclusive", "Only some of the possible attacks were run, by request; those passed.", checks)
    return Verdict(outcome, _sentence(evidence, outcome, checks), checks)


def _outcome(evidence: Evidence, attacked: Sequence[Check], checks: Sequence[Check]) -> Outcome:
    if any(check.outcome == "fail" for check in checks):
        return "fail"
    # What a request is about: for poison the labels, which no attack by strangers can test; else an attack that sees.
    answered = evidence.task == "poison" or any(not check.blind for check in attacked)
    sighted = [check for check in checks if not check.blind]
    return "pass" if answered and all(check.outcome == "pass" for check in sighted) else "inconclusive"


def _sentence(evidence: Evidence, outcome: Outcome, checks: Sequence[Check]) -> str:
    what = {
        "samples": "the forgotten samples",
        "classes": "the removed class" if len(evidence.removed) == 1 else "the removed classes",
        "poison": "the wrong labels",
    }[evidence.task]
    if outcome == "pass":
        return f"As far as this audit can see, the network behaves as if it had never learnt {what}."
    hint = f" {OTHER_TASK}" if evidence.may_be_classes else ""
    if outcome == "fail":
        failed = next(check for check in checks if check.outcome == "fail")
        return f"The network does not behave as if it had never learnt {what}. {failed.sentence}{hint}"
    unclear = sorted((check for check in checks if check.outcome == "inconclusive"), key=lambda check: check.blind)
    why = unclear[0].sentence if unclear else "No attack could be run: held-out samples of the same classes are needed."
    return f"This audit cannot tell whether the network has forgotten {what}. {why}{hint}"
