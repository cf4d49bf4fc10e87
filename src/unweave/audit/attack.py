"""What an attack is, and what it found.

An attack is a class with ``fit`` (what the attacker may learn from) and ``score`` (one number a sample, or [N, n] for N
models). Whatever it computes, a high score means "looks like a member": one direction for all of them, but for those
that compare unlearned with retrained models and say so in ``direction``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from unweave.audit.measure import Separation

MEMBER = "A high score means: looks as if it had been trained on."


class Attack(Protocol):
    """What every attack says about itself; ``fit`` and ``score`` take what the attack needs."""

    name: ClassVar[str]
    title: ClassVar[str]
    explanation: ClassVar[str]
    """One sentence for somebody who is not an engineer: who attacks, knowing what, and how."""


@dataclass(frozen=True)
class AttackResult:
    """What one attack says of the unlearned model, beside its positive control and its floor."""

    attack: type[Attack] | Attack
    unlearned: Separation
    original: Separation | None = None
    """The positive control: an attack that does not see the original network is blind; its silence means nothing."""
    retrained: Separation | None = None
    """The floor: what it says of a network that never saw the data."""
    judged: bool = True
    """Whether the verdict rests on it."""
    strangers: bool = False
    """Whether forget samples are told from held-out ones (True), or unlearned models from retrained ones (False). In
    the first case even a retrained network need not stand at 0.5: the forget set may be harder than its strangers."""

    def document(self) -> dict[str, Any]:
        """As the report's schema wants it."""
        found = {"unlearned": self.unlearned, "original": self.original, "retrained": self.retrained}
        return {
            "name": self.attack.name,
            "title": self.attack.title,
            "explanation": self.attack.explanation,
            "direction": getattr(self.attack, "direction", MEMBER),
            "judged": self.judged,
            **{name: separation.document() for name, separation in found.items() if separation is not None},
        }


@dataclass(frozen=True)
class Distance:
    """A number that says how far apart two groups of outputs are, with what is known about it."""

    value: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    models: int | None = None
    samples: int | None = None

    def document(self) -> dict[str, float | int]:
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class DistanceResult:
    """One distance for the unlearned model, beside the original's and the retrained floor."""

    name: str
    title: str
    explanation: str
    unlearned: Distance
    original: Distance | None = None
    retrained: Distance | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """Whatever else a caller may want; not part of the document."""

    def document(self) -> dict[str, Any]:
        """As the report's schema wants it."""
        found = {"unlearned": self.unlearned, "original": self.original, "retrained": self.retrained}
        return {
            "name": self.name,
            "title": self.title,
            "explanation": self.explanation,
            **{name: distance.document() for name, distance in found.items() if distance is not None},
        }
