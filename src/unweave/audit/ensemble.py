"""The audit with many models: N full, M retrained and K unlearned networks on one and the same forget set.

Shapes: three ensembles [·, n, C] with the same labels [n]. Positives and negatives of every attack are two groups of
models on the same samples; negatives are always retrained models.

    attack             unlearned           original (control)            retrained (floor)
    shadow classifier  K vs test models    test full vs test retrained   validation vs test retrained
    LiRA               K vs second half     second half of full vs that   none
    U-LiRA             K vs M              last min(K, N) full vs M      first f = min(K, ⌊M/2⌋) vs the other M − f
    KLoM               s vs s retrained    s full vs the same s          s other retrained vs the same s

Control and floor have the unlearned group's size where they can: a control with ten times the models would show eyes
that the attack did not have. The classifier's settings were chosen on the validation models of its floor, which is at
most one of 15 choices of optimism.

Assumption: the K unlearned models come from K different originals, which are among the last of the full ones. When they
come from one original (the paper's code does that), say ``same_original``: U-LiRA then recognises the common origin
rather than what is left of the forget set, and is reported without being judged. KLoM's distance holds it too.
So it is with removed classes: a margin is about the class's own output, which the paper takes out of its attack. The
U-LiRA and KLoM of removed classes say how the output of a forgotten class differs from that of one never learnt.
"""

from __future__ import annotations

from collections.abc import Collection

from unweave.audit.attack import AttackResult, DistanceResult
from unweave.audit.klom import klom
from unweave.audit.lira import FEWEST, LiRA, ULiRA
from unweave.audit.measure import Separation, separate
from unweave.audit.outputs import Ensemble, Floats, same_samples
from unweave.audit.shadow_classifier import ShadowClassifier
from unweave.errors import ConfigError, DataError

NEEDS = {
    "xgboost": {"full": 3, "retrained": 3, "unlearned": 1},
    "lira": {"full": 4, "retrained": 4, "unlearned": 1},
    "u-lira": {"full": 3, "retrained": 3, "unlearned": 3},
    "klom": {"full": 2, "retrained": 4, "unlearned": 2},
}
"""The fewest models of each kind. U-LiRA has a floor from six retrained models on."""


def audit_ensemble(
    full: Ensemble,
    retrained: Ensemble,
    unlearned: Ensemble,
    *,
    removed_classes: Collection[int] = (),
    same_original: bool = False,
    only: Collection[str] | None = None,
    seed: int = 0,
) -> tuple[list[AttackResult], list[DistanceResult]]:
    """Run the many-model attacks, each with its control and its floor.

    Args:
        full: models trained on everything, on the forget set.
        retrained: models trained on the retained data alone, on the same samples.
        unlearned: models that were trained on everything and made to forget, on the same samples.
        removed_classes: the classes forgotten as a whole; empty when samples were.
        same_original: all unlearned models were made of one original; see the module.
        only: some of xgboost, lira, u-lira and klom; None: all that there are enough models for, see :func:`lacking`.
        seed: of the classifier and of the bootstraps.

    Raises:
        DataError: too few models, other samples, or classes that do not fit. ConfigError: an unknown attack, or no
            XGBoost.
    """
    same_samples(full=full, retrained=retrained, unlearned=unlearned)
    wanted = _wanted(lacking(len(full), len(retrained), len(unlearned)), only)
    attacks: list[AttackResult] = []
    if "xgboost" in wanted:
        attacks.append(shadow_classifier(full, retrained, unlearned, removed_classes=removed_classes, seed=seed))
    if "lira" in wanted:
        attacks.append(lira(full, retrained, unlearned, seed=seed))
    if "u-lira" in wanted:
        judged = not same_original and not removed_classes
        attacks.append(u_lira(full, retrained, unlearned, judged=judged, seed=seed))
    return attacks, list(klom(unlearned, retrained, full, seed=seed)) if "klom" in wanted else []


def lacking(full: int, retrained: int, unlearned: int) -> dict[str, str]:
    """What is missing for the attacks that cannot be run with so many models, by the attack's name."""
    there = {"full": full, "retrained": retrained, "unlearned": unlearned}
    texts = {
        name: [f"{needs[kind]} {kind} models (there: {there[kind]})" for kind in needs if there[kind] < needs[kind]]
        for name, needs in NEEDS.items()
    }
    return {name: " and ".join(text) for name, text in texts.items() if text}


def _wanted(missing: dict[str, str], only: Collection[str] | None) -> Collection[str]:
    unknown = sorted(set(only or ()) - set(NEEDS))
    if unknown:
        raise ConfigError(f"Unknown attack {', '.join(unknown)}. Supported: {', '.join(NEEDS)}.")
    possible = [name for name in NEEDS if name not in missing]
    refused = missing.keys() & set(NEEDS if only is None and not possible else only or ())
    if refused:
        reasons = "; ".join(f"{name} needs at least {missing[name]}" for name in NEEDS if name in refused)
        raise DataError(f"Too few models: {reasons}.")
    return possible if only is None else only


def shadow_classifier(
    full: Ensemble, retrained: Ensemble, unlearned: Ensemble, *, removed_classes: Collection[int] = (), seed: int = 0
) -> AttackResult:
    """The paper's attack; the classifier that was fitted is the result's ``attack``."""
    attack = ShadowClassifier(seed=seed).fit(full, retrained, removed_classes=removed_classes)
    test_full, test_retrained = attack.held_out(full, retrained)
    negatives = attack.score(test_retrained)
    groups = unlearned, test_full, retrained.take(attack.splits["retrained"].validation)
    found, control, floor = (_separated((attack.score(group), negatives), seed) for group in groups)
    # With fewer models on a side their spread is unknown: retrained ones failed one time in ten where it was tried.
    judged = min(len(test_retrained), len(unlearned)) >= FEWEST
    return AttackResult(attack, found, control, floor, judged)


def lira(full: Ensemble, retrained: Ensemble, unlearned: Ensemble, *, seed: int = 0) -> AttackResult:
    """The likelihood ratio of members against strangers, learnt on the first half of the models, asked on the rest.

    It asks whether unlearned models still answer like full ones; that they answer like retrained ones is U-LiRA's
    question, which is the harder one, so this is shown and not judged.
    """
    half = len(full) // 2, len(retrained) // 2
    attack = LiRA().fit(full.take(slice(half[0])), retrained.take(slice(half[1])))
    negatives = attack.score(retrained.take(slice(half[1], None)))
    groups = unlearned, full.take(slice(half[0], None))
    found, control = (_separated((attack.score(group), negatives), seed) for group in groups)
    return AttackResult(attack, found, control, judged=False)


def u_lira(
    full: Ensemble, retrained: Ensemble, unlearned: Ensemble, *, judged: bool = True, seed: int = 0
) -> AttackResult:
    """The likelihood ratio of unlearned against retrained models; no floor with fewer than six retrained ones."""
    attack = ULiRA()
    found = _separated(attack.score(unlearned, retrained), seed)
    control = _separated(attack.score(full.take(slice(-min(len(unlearned), len(full)), None)), retrained), seed)
    pretend = min(len(unlearned), len(retrained) // 2)
    floor = None
    if pretend >= FEWEST:
        floor = _separated(attack.score(retrained.take(slice(pretend)), retrained.take(slice(pretend, None))), seed)
    return AttackResult(attack, found, control, floor, judged)


def _separated(scores: tuple[Floats, Floats], seed: int) -> Separation:
    return separate(*scores, same_samples=True, seed=seed)
