"""Made-up evidence with a known truth: margins are normal, and training moves those of members up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import logsumexp

from unweave.audit.evidence import Answers, Evidence
from unweave.audit.outputs import Ensemble, Floats, Ints

CLASSES = 10


def with_margins(margins: Floats, labels: Ints, rng: np.random.Generator) -> Floats:
    """Logits [..., n, C] whose margins [..., n] are these: the label's logit is the margin, the others sum to one."""
    logits = rng.normal(size=(*margins.shape, CLASSES))
    np.put_along_axis(logits, np.broadcast_to(labels, margins.shape)[..., None], -np.inf, -1)
    logits = logits - logsumexp(logits, axis=-1, keepdims=True)
    np.put_along_axis(logits, np.broadcast_to(labels, margins.shape)[..., None], margins[..., None], -1)
    return np.asarray(logits)


class World:
    """Samples with a difficulty of their own; a model adds noise, and what it was trained on gains ``memory``."""

    def __init__(self, forget: int = 300, held_out: int = 1500, retained: int = 500, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        sizes = {"forget": forget, "held_out": held_out, "retained": retained}
        self.labels = {part: self.rng.integers(0, CLASSES, size) for part, size in sizes.items()}
        self.ease = {part: self.rng.normal(1.5, 2.0, size) for part, size in sizes.items()}

    def answers(self, *, memory: float, models: int = 1, kept: float = 3.0, skill: float = 0.0) -> Answers:
        """What models say that gained ``memory`` on the forget set and ``kept`` on the retained one."""
        gains = {"forget": memory, "held_out": 0.0, "retained": kept}

        def logits(part: str, labels: Ints) -> Floats:
            margins = self.ease[part] + gains[part] + skill + self.rng.normal(0, 0.5, (models, len(labels)))
            return with_margins(margins, labels, self.rng)

        return self._answers(logits)

    def random(self) -> Answers:
        """A model that has lost its mind."""
        return self._answers(lambda part, labels: self.rng.normal(size=(1, len(labels), CLASSES)))

    def constant(self) -> Answers:
        """A model that says the same whatever it sees."""
        logits = np.linspace(0, 3, CLASSES)
        return self._answers(lambda part, labels: np.broadcast_to(logits, (1, len(labels), CLASSES)).copy())

    def _answers(self, logits: Callable[[str, Ints], Floats]) -> Answers:
        """``logits`` [models, n, C] of a part, by its name and its labels [n]."""
        forget, held_out, retained = (
            Ensemble.of(logits(part, self.labels[part]), self.labels[part])
            for part in ("forget", "held_out", "retained")
        )
        return Answers(forget, held_out, retained)


def fair(world: World) -> Evidence:
    """An original that remembers, and an unlearned model that has forgotten."""
    return Evidence(world.answers(memory=0.0), world.answers(memory=3.0))
