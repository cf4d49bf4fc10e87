"""How a model behaves on samples: one number per sample, and what is kept of them per class.

For logits z [N, C] and labels y [N], in float64:

    margin   m = z_y − logsumexp over c ≠ y of z_c      (positive: more than half of the probability is on y)
    entropy  H = −Σ p log p                             in nats
    loss     −log p_y
    wrong    argmax z ≠ y
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn

from unweave.batches import Doubts, Inputs, logits_of
from unweave.errors import DataError

LEVELS = 101
"""Quantiles kept per class: 0 %, 1 %, …, 100 %."""


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """z_y − logsumexp of the other logits, [N], in the dtype of the logits; differentiable."""
    own = logits.gather(1, labels[:, None]).squeeze(1)
    others = logits.scatter(1, labels[:, None], float("-inf"))
    return own - others.logsumexp(1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax, [N], in nats; differentiable, and 0 rather than NaN where a probability is 0."""
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p.clamp_min(-1e4)).sum(1)


@dataclass(frozen=True)
class Outcomes:
    """Per-sample read-outs on the CPU, all [N]: float64, except the labels (int64) and ``wrong`` (bool)."""

    labels: Tensor
    wrong: Tensor
    loss: Tensor
    margin: Tensor
    entropy: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def error(self) -> float:
        """Percent wrong."""
        return 100.0 * self.wrong.double().mean().item() if len(self) else float("nan")

    def error_by_class(self) -> dict[int, float]:
        """Percent wrong for each class that has samples."""
        counts = self.labels.bincount()
        wrong = self.labels.bincount(self.wrong.double())
        return {c: 100.0 * (wrong[c] / counts[c]).item() for c in counts.nonzero().flatten().tolist()}

    def where(self, mask: Tensor) -> Outcomes:
        """The outcomes of some of the samples."""
        kept = {f.name: getattr(self, f.name)[mask] for f in fields(self) if f.name != "classes"}
        return Outcomes(**kept, classes=self.classes)

    def by_class(self) -> Iterator[Outcomes]:
        """The outcomes of every class there is, in their order; sorted once, not searched once for each class."""
        ordered, counts = self.where(self.labels.argsort(stable=True)), self.labels.bincount(minlength=self.classes)
        columns = {name: getattr(ordered, name).split(counts.tolist()) for name in _COLUMNS}
        for c in range(self.classes):
            yield Outcomes(**{name: parts[c] for name, parts in columns.items()}, classes=self.classes)

    @staticmethod
    def none() -> Outcomes:
        """The outcomes of no sample."""
        none = torch.empty(0, dtype=torch.float64)
        return Outcomes(none.long(), none.bool(), none, none, none, classes=0)

    @staticmethod
    def concat(parts: Iterable[Outcomes]) -> Outcomes:
        """All of them in one, on the CPU. One copy fetches everything: each would wait for the device anew."""
        parts = list(parts)
        if not parts:
            return Outcomes.none()
        columns = [torch.cat([getattr(p, name) for p in parts]).double() for name in _COLUMNS]
        labels, wrong, loss, margins, entropies = torch.stack(columns).cpu()
        return Outcomes(labels.long(), wrong.bool(), loss, margins, entropies, parts[0].classes)


def read(logits: Tensor, labels: Tensor) -> Outcomes:
    """The read-outs of one batch, on the device of the logits."""
    z = logits.detach().double()
    return Outcomes(
        labels=labels,
        wrong=z.argmax(1) != labels,
        loss=-z.log_softmax(1).gather(1, labels[:, None]).squeeze(1),
        margin=margin(z, labels),
        entropy=entropy(z),
        classes=z.shape[1],
    )


def read_batch(model: nn.Module, inputs: Inputs, labels: Tensor, doubts: Doubts) -> Outcomes:
    """Run a model on one batch and read its outputs, on its device."""
    logits = logits_of(model, inputs, labels, doubts)
    # A label that is still in doubt must not be looked up on a GPU, which would not survive it.
    return read(logits, labels.clamp(0, logits.shape[1] - 1))


def observe(model: nn.Module, batches: Iterable[tuple[Inputs, Tensor]], doubts: Doubts | None = None) -> Outcomes:
    """Run a model (already at rest) over checked batches and read its outputs.

    Args:
        model: maps a batch to logits.
        batches: from :func:`unweave.batches.checked`, with the same ``doubts``.
        doubts: collects what is still to be asked of a device; it is settled here, at the end.
    """
    found = []
    for inputs, labels in batches:
        doubts = Doubts(later=labels.device.type != "cpu") if doubts is None else doubts
        found.append(read_batch(model, inputs, labels, doubts))
    if doubts is not None:
        doubts.settle()
    return Outcomes.concat(found)


_COLUMNS = tuple(f.name for f in fields(Outcomes) if f.name != "classes")


def membership_auc(members: Outcomes, strangers: Outcomes) -> float | None:
    """How often a member has a larger margin than a stranger of its class (ties count half), averaged over members.

    0.5: nobody can tell them apart by their margins. None where a member's class has no stranger.
    """
    # By NumPy: to wake PyTorch's threads for so little takes a hundred times as long as the search itself.
    wins = np.empty(len(members))
    labels, margins = members.labels.numpy(), members.margin.numpy()
    for c in np.unique(labels):
        own, others = labels == c, np.sort(strangers.margin.numpy()[strangers.labels.numpy() == c])
        if not len(others):
            return None
        ranks = [np.searchsorted(others, margins[own], side) for side in ("left", "right")]
        wins[own] = (ranks[0] + ranks[1]) / (2 * len(others))
    return float(wins.mean())


@dataclass(frozen=True)
class ClassProfile:
    """What is kept of a set of samples in place of the samples: aggregates per class, float64 on the CPU.

    count, error (a fraction) and loss are [C]; the quantiles of margin and entropy are [C, LEVELS], from the lowest
    value to the highest. A class without samples has count 0 and NaN elsewhere.
    """

    count: Tensor
    error: Tensor
    loss: Tensor
    margin: Tensor
    entropy: Tensor

    @staticmethod
    def of(outcomes: Outcomes) -> ClassProfile:
        levels = torch.linspace(0, 1, LEVELS, dtype=torch.float64)
        nothing = torch.full((LEVELS,), float("nan"), dtype=torch.float64)
        rows: list[tuple[Tensor, ...]] = []
        for own in outcomes.by_class():
            rows.append(
                (
                    torch.tensor(len(own)),
                    own.wrong.double().mean(),
                    own.loss.mean(),
                    torch.quantile(own.margin, levels) if len(own) else nothing,
                    torch.quantile(own.entropy, levels) if len(own) else nothing,
                )
            )
        return ClassProfile(*(torch.stack(column).double() for column in zip(*rows, strict=True)))

    @property
    def classes(self) -> int:
        return len(self.count)

    def expected_error(self, labels: Tensor) -> float:
        """Percent wrong that samples with these labels would have: class errors in the labels' proportions."""
        self.require(labels)
        return 100.0 * self.error[labels].mean().item()

    def margin_at(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """The margin of each label's class at a rank in [0, 1], interpolated between the kept quantiles; [N]."""
        self.require(labels)
        position = ranks.double().clamp(0, 1) * (LEVELS - 1)
        low = position.floor().long().clamp(max=LEVELS - 2)
        below, above = self.margin[labels, low], self.margin[labels, low + 1]
        return below + (position - low) * (above - below)

    def has(self, labels: Tensor) -> bool:
        """Whether every one of these labels' classes has held-out samples."""
        return bool((self.count[labels] > 0).all())

    def require(self, labels: Tensor) -> None:
        """Raise unless every one of these labels' classes has held-out samples."""
        missing = sorted({int(c) for c in labels.unique()} - {int(c) for c in self.count.nonzero()})
        if missing:
            raise DataError(
                f"No held-out sample of class {', '.join(map(str, missing))}, which the forget set contains, so there "
                "is nothing to aim at. Pass a val= (--val) that has that class."
            )
