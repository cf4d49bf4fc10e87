"""Threshold attacks: one number a sample, high where the sample looks like a member. They need no other model.

    margin      z_y − logsumexp of the others      monotone in the loss, and never saturates
    entropy     −log H                             whatever the label is
    confidence  the margin of the most likely class

Classes differ in how sure a model is of them, so ``fit`` learns each class's median among strangers (held-out samples)
and ``score`` counts from there: a threshold of its own for every class. Unfitted, all classes share one.
"""

from __future__ import annotations

from copy import copy
from typing import ClassVar, Self

import numpy as np

from unweave.audit.measure import DRAWS, Separation, class_weights, separate
from unweave.audit.outputs import Ensemble, Floats, Outputs, margins
from unweave.errors import DataError


class ThresholdAttack:
    """A number read off one model's outputs; subclasses say which."""

    name: ClassVar[str]
    title: ClassVar[str]
    explanation: ClassVar[str]

    def __init__(self) -> None:
        self._centres: dict[int, float] | None = None

    @staticmethod
    def read(outputs: Outputs) -> Floats:
        """The number itself, [n]."""
        raise NotImplementedError

    def fit(self, strangers: Outputs) -> Self:
        """Learn where each class lies among samples that nobody was trained on."""
        values = self.read(strangers)
        present = [int(c) for c in np.unique(strangers.labels)]
        self._centres = {c: float(np.median(values[strangers.labels == c])) for c in present}
        return self

    def score(self, outputs: Outputs) -> Floats:
        """[n], high for what looks like a member.

        Raises:
            DataError: a class of which there were no strangers.
        """
        values = self.read(outputs)
        if self._centres is None:
            return values
        missing = sorted({int(c) for c in np.unique(outputs.labels)} - set(self._centres))
        if missing:
            raise DataError(f"No stranger of class {', '.join(map(str, missing))} to compare with. Fit with some.")
        return np.asarray(values - np.array([self._centres[int(c)] for c in outputs.labels]))


class LossAttack(ThresholdAttack):
    """By the margin of the label, which is the loss without its saturation: loss = log(1 + e^−margin)."""

    name = "margin"
    title = "Margin"
    explanation = (
        "Somebody who sees the model's answers, but no other model, takes samples it is unusually sure of, and right "
        "about, for samples it was trained on."
    )

    @staticmethod
    def read(outputs: Outputs) -> Floats:
        return outputs.margins()


class EntropyAttack(ThresholdAttack):
    """By the entropy of the answer, which needs no label."""

    name = "entropy"
    title = "Entropy"
    explanation = (
        "Somebody who sees the model's answers, but neither labels nor another model, takes samples it hardly "
        "hesitates about for samples it was trained on."
    )

    @staticmethod
    def read(outputs: Outputs) -> Floats:
        return -outputs.log_entropies()


class ConfidenceAttack(ThresholdAttack):
    """By the log-odds of the most likely class: top-1 confidence without its saturation."""

    name = "confidence"
    title = "Confidence"
    explanation = (
        "Somebody who only sees the model's answer and how sure it is of it takes the surest answers for samples it "
        "was trained on."
    )

    @staticmethod
    def read(outputs: Outputs) -> Floats:
        return margins(outputs.logits, outputs.logits.argmax(-1))


def attack_held_out(
    attack: ThresholdAttack,
    forget: Outputs | Ensemble,
    held_out: Outputs | Ensemble,
    seed: int = 0,
    draws: int = DRAWS,
) -> Separation:
    """How well an attack tells forget samples from held-out samples of the same classes, in their proportions.

    Args:
        attack: left as it is; a copy of it is fitted to the held-out samples, for each model anew.
        forget: outputs of one model or of several.
        held_out: outputs of the same models on samples they were not trained on.
        seed: of the bootstrap.
        draws: of the bootstrap.

    Raises:
        DataError: a class of the forget set without held-out samples, or another number of models.
    """
    class_weights(forget.labels, held_out.labels)  # refuses a class without strangers
    strangers = held_out.of_classes(np.unique(forget.labels).tolist())
    members = [forget] if isinstance(forget, Outputs) else list(forget)
    others = [strangers] if isinstance(strangers, Outputs) else list(strangers)
    if len(members) != len(others):
        raise DataError(
            f"{len(members)} models on the forget set and {len(others)} on the held-out set. Give the same."
        )
    fitted = [copy(attack).fit(own) for own in others]
    return separate(
        np.stack([a.score(own) for a, own in zip(fitted, members, strict=True)]),
        np.stack([a.score(own) for a, own in zip(fitted, others, strict=True)]),
        classes=(forget.labels, strangers.labels),
        same_models=True,
        draws=draws,
        seed=seed,
    )
