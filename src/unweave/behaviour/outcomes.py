"""How a model behaves on samples: one number per sample, and what is kept of them per class.

For logits z [N, C] and labels y [N], in float64:

    margin   m = z_y − logsumexp over c ≠ y of z_c      (positive: more than half of the probability is on y)
    entropy  H = −Σ p log p                             in nats
    loss     −log p_y
    wrong    argmax z ≠ y
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from unweave.behaviour.label_shift import best_temperature, label_shift, tempered_losses
from unweave.errors import DataError
from unweave.reading.batches import Doubts, Inputs, logits_of

LEVELS = 101
"""Quantiles kept per class: 0 %, 1 %, …, 100 %."""
_LEVELS = np.linspace(0, 1, LEVELS)
_NOT_ASKED_FOR = torch.empty(0, dtype=torch.float64)


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
    tempered: Tensor = _NOT_ASKED_FOR
    """Sums of losses at other temperatures, [K], where they were asked for; see
    :mod:`unweave.behaviour.label_shift`."""

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
        return Outcomes(**{name: getattr(self, name)[mask] for name in _COLUMNS}, classes=self.classes)

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
        """All of them in one, on the CPU. One copy fetches all columns: each would wait for the device anew."""
        parts = list(parts)
        if not parts:
            return Outcomes.none()
        columns = [torch.cat([getattr(p, name) for p in parts]).double() for name in _COLUMNS]
        labels, wrong, loss, margins, entropies = torch.stack(columns).cpu()
        tempered = torch.stack([p.tempered for p in parts]).sum(0).cpu() if len(parts[0].tempered) else _NOT_ASKED_FOR
        return Outcomes(labels.long(), wrong.bool(), loss, margins, entropies, parts[0].classes, tempered)


def read(logits: Tensor, labels: Tensor, tempered: bool = False) -> Outcomes:
    """The read-outs of one batch, on the device of the logits; also at other temperatures, if asked for."""
    z = logits.detach().double()
    return Outcomes(
        labels=labels,
        wrong=z.argmax(1) != labels,
        loss=-z.log_softmax(1).gather(1, labels[:, None]).squeeze(1),
        margin=margin(z, labels),
        entropy=entropy(z),
        classes=z.shape[1],
        tempered=tempered_losses(z, labels) if tempered else _NOT_ASKED_FOR,
    )


def read_batch(model: nn.Module, inputs: Inputs, labels: Tensor, doubts: Doubts, tempered: bool = False) -> Outcomes:
    """Run a model on one batch and read its outputs, on its device."""
    logits = logits_of(model, inputs, labels, doubts)
    # A label that is still in doubt must not be looked up on a GPU, which would not survive it.
    return read(logits, labels.clamp(0, logits.shape[1] - 1), tempered)


def observe(
    model: nn.Module,
    batches: Iterable[tuple[Inputs, Tensor]],
    doubts: Doubts | None = None,
    tempered: bool = False,
) -> Outcomes:
    """Run a model (already at rest) over checked batches and read its outputs.

    Args:
        model: maps a batch to logits.
        batches: from :func:`unweave.reading.batches.checked`, with the same ``doubts``.
        doubts: collects what is still to be asked of a device; it is settled here, at the end.
        tempered: sum up losses at other temperatures as well.
    """
    found = []
    for inputs, labels in batches:
        doubts = Doubts(later=labels.device.type != "cpu") if doubts is None else doubts
        found.append(read_batch(model, inputs, labels, doubts, tempered))
    if doubts is not None:
        doubts.settle()
    return Outcomes.concat(found)


_COLUMNS = ("labels", "wrong", "loss", "margin", "entropy")


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


def counted(labels: Sequence[int], classes: int) -> Tensor:
    """Counts of labels as float64 [C]; NaN where they are of another number of classes."""
    known = len(labels) == classes
    return torch.tensor(labels if known else [float("nan")] * classes, dtype=torch.float64)


@dataclass(frozen=True)
class ClassProfile:
    """What is kept of a set of samples in place of the samples: aggregates per class, float64 on the CPU.

    count, error (a fraction) and loss are [C]; the quantiles of margin and entropy are [C, LEVELS], from the lowest
    value to the highest. A class without samples has count 0 and NaN elsewhere.

    trained [C] are the samples that the model was trained on, and temperature [] is what makes its outputs honest; NaN
    where they are not known. See :mod:`unweave.behaviour.label_shift`. overlap [] is how many of the samples were
    trained on, as far as was seen; NaN where nobody looked.
    """

    count: Tensor
    error: Tensor
    loss: Tensor
    margin: Tensor
    entropy: Tensor
    trained: Tensor
    temperature: Tensor
    overlap: Tensor

    @staticmethod
    def of(outcomes: Outcomes, trained: Sequence[int] = (), overlap: float = math.nan) -> ClassProfile:
        """Of held-out samples, by a model that was trained on so many samples of each class (empty: nobody knows)."""
        levels = torch.from_numpy(_LEVELS)
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
        count, error, loss, margins, entropies = (torch.stack(column).double() for column in zip(*rows, strict=True))
        trained_on = counted(trained, len(rows))
        temperature, met = (
            torch.tensor(x, dtype=torch.float64) for x in (best_temperature(outcomes.tempered), overlap)
        )
        return ClassProfile(count, error, loss, margins, entropies, trained_on, temperature, met)

    def trained_on(self, labels: Sequence[int]) -> ClassProfile:
        """The same profile, of a model that was trained on so many samples of each class at least."""
        return replace(self, trained=self.trained.fmax(counted(labels, self.classes)))

    @property
    def classes(self) -> int:
        return len(self.count)

    def counts_as(self, outcomes: Outcomes) -> bool:
        """Whether these are as many of each class: then they are most likely the same samples."""
        return torch.equal(self.count, outcomes.labels.bincount(minlength=self.classes).double())

    def digest(self) -> str:
        """A few letters that are the same for the same profile."""
        values = b"".join(value.numpy().tobytes() for value in vars(self).values())
        return hashlib.sha256(values).hexdigest()[:12]

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

    def without(self, retained: Sequence[int]) -> ClassProfile:
        """What it would be had the model been trained on so many samples of each class; itself where nobody knows.

        Nothing moves up: a class that others leave room for is not to be known better. What divides wrong from right is
        a margin, and stays where it is: between −log (C − 1), below which no label is the likeliest, and 0, above which
        each is.
        """
        by = label_shift(self.trained, counted(retained, self.classes), self.temperature).clamp(max=0)
        margins, error = self.margin + by[:, None], self.error.clone()
        for c in by.nonzero().flatten().tolist():
            if self.count[c]:
                divide = np.interp(float(self.error[c]), _LEVELS, self.margin[c].numpy())
                divide = np.clip(divide, -np.log(self.classes - 1), 0)
                before, after = (np.interp(divide, own[c].numpy(), _LEVELS) for own in (self.margin, margins))
                error[c] = min(float(self.error[c] + after - before), 1.0)
        return replace(self, margin=margins, error=error)

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
