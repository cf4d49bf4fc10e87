"""examine(): everything the evidence allows, in one call, down to the verdict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unweave.audit.attack import Attack, AttackResult, DistanceResult
from unweave.audit.evidence import Before, Evidence, Yardstick
from unweave.audit.inside import Inside
from unweave.audit.limits import Thresholds
from unweave.audit.measure import Separation, separate
from unweave.audit.outputs import Ints
from unweave.audit.verdict import Verdict, judge
from unweave.errors import ConfigError

Progress = Callable[[str], None]
"""Called with the name of what is begun."""

STRANGER_ATTACKS = ("margin", "entropy", "confidence")
ENSEMBLE_ATTACKS = ("xgboost", "lira", "u-lira", "klom")
ATTACKS = (*STRANGER_ATTACKS, "ks", "rmia", *ENSEMBLE_ATTACKS)
"""Every attack and distance by name, in the order they run."""


@dataclass(frozen=True, repr=False)
class Audit:
    """What an audit found; printed, it is its summary. ``unweave.audit.document`` makes the JSON of it."""

    evidence: Evidence
    limits: Thresholds
    attacks: list[AttackResult]
    distances: list[DistanceResult]
    earlier: dict[str, AttackResult]
    """Earlier requests, attacked again."""
    verdict: Verdict
    left_out: list[str]
    """What could not be looked at, and why."""
    seed: int

    def __repr__(self) -> str:
        return f"Audit({self.verdict.outcome}: {self.verdict.sentence})"

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """A few lines for a person: the verdict, every check it rests on, and what could not be looked at."""
        tier = self.evidence.tier()["name"]
        lines = [f"{self.verdict.outcome} ({tier}): {self.verdict.sentence}"]
        lines += [f"  {check.summary()}" for check in self.verdict.checks]
        return "\n".join(lines + [f"  left out: {text}" for text in self.left_out])


def examine(
    evidence: Evidence,
    limits: Thresholds | None = None,
    *,
    only: Collection[str] | None = None,
    inside: Inside | None = None,
    seed: int = 0,
    progress: Progress = lambda name: None,
) -> Audit:
    """Attack the unlearned model with all that the evidence allows, and judge.

    Args:
        evidence: outputs of models on samples.
        limits: what is allowed; the defaults are explained in :class:`~unweave.audit.limits.Thresholds`.
        only: names out of ``ATTACKS`` to restrict to.
        inside: from :func:`~unweave.audit.inside.look_inside`, where the networks are at hand.
        seed: of every bootstrap, permutation and fold.
        progress: told what is begun.

    Raises:
        ConfigError: an unknown name in ``only``, or one that needs evidence which is not there.
        DataError: outputs that cannot be compared.
    """
    limits = limits or Thresholds()
    wanted = _wanted(evidence, only)
    attacks: list[AttackResult] = []
    distances: list[DistanceResult] = []
    for name in [name for name in STRANGER_ATTACKS if name in wanted]:
        progress(name)
        attacks.append(_by_strangers(name, evidence, seed))
    if "ks" in wanted:
        progress("ks")
        distances += _kolmogorov_smirnov(evidence, seed)
    if "rmia" in wanted and evidence.references is not None:
        progress("rmia")
        attacks.append(_by_references(evidence, evidence.references, seed))
    chosen = [name for name in ENSEMBLE_ATTACKS if name in wanted]
    if chosen:
        progress(", ".join(chosen))
        found = _by_ensembles(evidence, chosen, seed)
        attacks, distances = attacks + found[0], distances + found[1]
    if inside is not None:
        attacks, distances = attacks + inside.attacks, distances + inside.distances
    earlier = {title: _again(evidence, before, seed) for title, before in evidence.earlier.items()}
    possible = _wanted(evidence, None)
    verdict = judge(evidence, attacks, earlier, limits, complete=len(wanted) == len(possible), seed=seed)
    left_out = [] if inside is None else list(inside.left_out)
    if len(wanted) < len(possible):
        left_out.append(
            f"Attacks that were possible but not asked for: {', '.join(sorted(set(possible) - set(wanted)))}."
        )
    return Audit(evidence, limits, attacks, distances, earlier, verdict, left_out, seed)


def _wanted(evidence: Evidence, only: Collection[str] | None) -> list[str]:
    """The attacks to run: those asked for, else all that the evidence allows."""
    unknown = sorted(set(only or ()) - set(ATTACKS))
    if unknown:
        raise ConfigError(f"Unknown attack {', '.join(unknown)}. Supported: {', '.join(ATTACKS)}.")
    strangers = evidence.unlearned.held_out is not None and evidence.task != "poison"
    missing = _missing_models(evidence)
    needs = {
        **dict.fromkeys((*STRANGER_ATTACKS, "ks"), (strangers, "held-out samples (and correct labels)")),
        "rmia": (strangers and evidence.references is not None, "reference models and held-out samples"),
        **{name: (name not in missing, f"at least {missing.get(name, '')}") for name in ENSEMBLE_ATTACKS},
    }
    for name in only or ():
        possible, what = needs[name]
        if not possible:
            raise ConfigError(f"The attack {name} needs {what}, which the evidence does not have.")
    return [name for name in ATTACKS if needs[name][0] and (only is None or name in only)]


def _missing_models(evidence: Evidence) -> dict[str, str]:
    """What each attack of many models lacks, by its name."""
    from unweave.audit.ensemble import lacking

    groups = (evidence.original, evidence.retrained, evidence.unlearned)
    full, retrained, unlearned = (0 if group is None else len(group.forget) for group in groups)
    return lacking(full, retrained, unlearned)


# ------------------------------------------------------------------------------------------- against strangers (T0)


def _by_strangers(name: str, evidence: Evidence, seed: int) -> AttackResult:
    """Tell forget samples from held-out samples of the same classes, by one number each."""
    from unweave.audit.thresholds import ConfidenceAttack, EntropyAttack, LossAttack, attack_held_out

    kinds = {"margin": LossAttack, "entropy": EntropyAttack, "confidence": ConfidenceAttack}
    found = {
        group: attack_held_out(kinds[name](), answers.forget, answers.held_out, seed=seed)
        for group, answers in evidence.groups()
        if answers.held_out is not None
    }
    return _result(kinds[name], found, judged=name != "confidence")


def _result(attack: type[Attack], found: Mapping[str, Separation], judged: bool = True) -> AttackResult:
    """The separations by group of models, of an attack that tells forget samples from strangers."""
    others = {group: found.get(group) for group in ("original", "retrained")}
    return AttackResult(attack, found["unlearned"], others["original"], others["retrained"], judged, strangers=True)


def _kolmogorov_smirnov(evidence: Evidence, seed: int) -> list[DistanceResult]:
    from unweave.audit.two_sample import two_sample

    return two_sample(evidence, seed=seed)


# -------------------------------------------------------------------------------------------- with references (T1)


def _by_references(evidence: Evidence, references: Yardstick, seed: int) -> AttackResult:
    """RMIA: half of the held-out samples is the population, the other half are the strangers to be scored."""
    from unweave.audit.rmia import RMIA

    strangers = _half_of_each_class(references.held_out.labels, evidence.forget_classes, seed)
    population = ~strangers
    found: dict[str, Separation] = {}
    for group, answers in evidence.groups():
        if answers.held_out is None:
            continue
        sides = []
        for model in range(len(answers.forget)):
            attack = RMIA().fit(answers.held_out[model].where(population), references.held_out.where(population))
            positives = attack.score(answers.forget[model], references.forget, references.out)
            rest = answers.held_out[model].where(strangers), references.held_out.where(strangers)
            sides.append((positives, attack.score(*rest)))
        positives, negatives = (np.stack(side) for side in zip(*sides, strict=True))
        classes = (answers.forget.labels, references.held_out.labels[strangers])
        found[group] = separate(positives, negatives, classes=classes, same_models=True, seed=seed)
    return _result(RMIA, found)


def _half_of_each_class(labels: Ints, classes: Collection[int], seed: int) -> NDArray[np.bool_]:
    """A random half of the samples of each of some classes, [n]."""
    chosen = np.zeros(len(labels), dtype=bool)
    rng = np.random.default_rng(seed)
    for label in classes:
        own = rng.permutation(np.flatnonzero(labels == label))
        chosen[own[: (len(own) + 1) // 2]] = True
    return chosen


# ---------------------------------------------------------------------------------------------- with ensembles (T2)


def _by_ensembles(
    evidence: Evidence, names: Collection[str], seed: int
) -> tuple[list[AttackResult], list[DistanceResult]]:
    from unweave.audit.ensemble import audit_ensemble

    assert evidence.original is not None  # _wanted has seen to it
    assert evidence.retrained is not None
    groups = evidence.original.forget, evidence.retrained.forget, evidence.unlearned.forget
    return audit_ensemble(
        *groups, removed_classes=evidence.removed, same_original=evidence.same_original, seed=seed, only=names
    )


# ------------------------------------------------------------------------------------------------ earlier requests


def _again(evidence: Evidence, before: Before, seed: int) -> AttackResult:
    """Test an earlier request's samples on the present model: a later request may bring them back, or mark them."""
    from unweave.audit.thresholds import LossAttack, attack_held_out

    found: dict[str, Separation] = {}
    for group, answers in (("unlearned", before.unlearned), ("original", before.original)):
        held_out = dict(evidence.groups())[group].held_out if answers is not None else None
        if answers is not None and held_out is not None:
            found[group] = attack_held_out(LossAttack(), answers, held_out, seed=seed)
    return _result(LossAttack, found)
