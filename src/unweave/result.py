"""What a request hands back: the model, the Grams for the next one, and the whole story in between."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from unweave.config import ForgetConfig
from unweave.grams import LayerGrams
from unweave.stopping import Goal

SHOWN_CLASSES = 20
"""How many classes a summary lists."""


def so_many(count: int, config: ForgetConfig) -> str:
    """Epochs, or steps where they are solved for, in words."""
    word = "solved step" if config.way == "solve" else "epoch"
    return f"{count} {word}{'s' * (count != 1)}"


@dataclass(frozen=True)
class Look:
    """The state of affairs after an epoch (epoch 0: before the first step). Errors are percentages."""

    epoch: int
    loss: float
    """Mean unlearning loss over the epoch; NaN at epoch 0."""
    forget_error: float
    val_error: float | None
    """On validation samples of the classes that stay; None without ``val=``."""
    val_error_by_class: dict[int, float] | None
    distance: float
    """How far the margins of the forget set are from where they should be."""
    auc: float | None
    """How often a forget sample has a larger margin than a validation sample of its class: 0.5 when they look alike.
    None without validation samples of those classes."""
    lr: float
    """The factor that multiplied a step's direction; chosen by the loop where none was given."""
    seconds: float
    """Since the request began."""


@dataclass(repr=False)
class ForgetResult:
    """The outcome of :func:`unweave.forget`; printed, it is its summary."""

    model: nn.Module
    """A new model; the one passed in is untouched."""
    grams: LayerGrams
    """What to keep for the next request, with the forget set's share taken out."""
    history: list[Look]
    stopped: str
    """Why it stopped, in plain words."""
    ok: bool
    """False when the target was not reached, or the weights had to be rolled back to where it was not."""
    goal: Goal
    config: ForgetConfig
    """The settings that were used, with every default filled in."""
    ranks: dict[str, int | list[int]]
    """Protected directions, per layer that could move: those that lose all of a step, or with soft protection more than
    half of it."""
    shift: dict[str, float]
    """How far the retained samples feel each layer's change, ‖R ΔWᵀ‖ / ‖R Wᵀ‖ over its retained rows R, from the Grams
    alone. A gauge to compare runs by, not a bound on errors."""
    seconds: float
    samples: int
    final: Look
    """How the returned model stands."""
    left: dict[int, float] = field(default_factory=dict)
    """Of each class that lost samples in this request, the share that is left of those there were before it; for an
    audit beside the model of before. Empty where nobody counted, and with ``label_shift=False``."""
    left_of_all: dict[int, float] = field(default_factory=dict)
    """The same of all that the model was trained on whose held-out samples are aimed at: the first, after several
    requests (unless its held-out samples lacked a class, and a later one's were taken). For an audit beside that."""
    warnings: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"ForgetResult({self.samples} samples, {'done' if self.ok else 'NOT DONE'}: {self.stopped})"

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """A few lines for a person: what was asked, what came out, and what it did to everything else."""
        first, count = self.history[0], f"{self.samples} sample{'s' * (self.samples != 1)}"
        lines = [
            f"{'done' if self.ok else 'NOT DONE'}: {self.stopped}",
            f"  forget set ({count}) error {first.forget_error:.2f} % -> {self.final.forget_error:.2f} %"
            f"   target {self.goal}",
        ]
        if first.val_error is not None and self.final.val_error is not None:
            lines.append(f"  validation set  error {first.val_error:.2f} % -> {self.final.val_error:.2f} %")
            lines += self._classes()
        else:
            lines.append("  no validation set: what this did to other samples was not watched")
        if self.ok and self.config.task == "classes":
            lines.append("  these classes are at chance level now; unweave.drop_classes cuts their rows off")
        lines.append(f"  {self.way_gone()}, {self.seconds:.2f} s")
        return "\n".join(lines + [f"  warning: {text}" for text in self.warnings])

    def way_gone(self) -> str:
        """How many epochs, or solved steps, it took; those that were tried and undone do not count."""
        return so_many(len(self.history) - 1, self.config)

    def _classes(self) -> list[str]:
        """The held-out error of each class, or of those that changed most where there are many."""
        before, after = self.history[0].val_error_by_class, self.final.val_error_by_class
        worst = self.worst_class()
        if not before or not after or worst is None:
            return []
        shown = sorted(before, key=lambda c: before[c] - after[c])[:SHOWN_CLASSES]
        cells = [f"{c}: {before[c]:.1f} -> {after[c]:.1f}" for c in shown]
        label, low, high = worst
        if high <= low:
            return ["  no class's held-out error rose"]
        return [
            f"  most affected class {label}: held-out error {low:.2f} % -> {high:.2f} %",
            f"  held-out error by class, most affected first: {', '.join(cells)}",
        ]

    def worst_class(self) -> tuple[int, float, float] | None:
        """The class whose held-out error rose most: (class, before, after); None without validation samples."""
        before, after = self.history[0].val_error_by_class, self.final.val_error_by_class
        if not before or not after:
            return None
        label = max(before, key=lambda c: after[c] - before[c])
        return label, before[label], after[label]
