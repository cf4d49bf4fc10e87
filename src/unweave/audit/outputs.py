"""What models say about samples: the only thing an audit looks at, so that any method from anywhere can be audited.

Shapes: one model on n samples with C classes is logits [n, C] and labels [n]; N models on the same samples are logits
[N, n, C]. Everything is float64 and read once, from logits (log-probabilities are logits too):

    margin   m = z_y − logsumexp over c ≠ y of z_c       (positive: more than half of the probability is on y)
    entropy  H = −Σ p log p                              in nats
    loss     −log p_y
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, logsumexp

from unweave.errors import DataError

if TYPE_CHECKING:
    from torch import nn

    from unweave.reading.batches import Loader

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Outputs:
    """What one model says about n samples: ``logits`` float64 [n, C], ``labels`` int64 [n]; checked by :meth:`of`."""

    logits: Floats
    labels: Ints

    @classmethod
    def of(cls, logits: ArrayLike, labels: ArrayLike, what: str = "outputs") -> Outputs:
        """Check and convert.

        Raises:
            DataError: not [n, C] with C > 1, not finite, probabilities, or labels that do not fit.
        """
        table = _numbers(logits, what)
        if table.ndim != 2:
            raise DataError(f"Invalid {what}: shape {list(table.shape)}. Expected logits [samples, classes].")
        return cls(*_checked(table, labels, what))

    def __repr__(self) -> str:
        return f"Outputs(samples={len(self)}, classes={self.classes})"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return int(self.logits.shape[1])

    def log_probabilities(self) -> Floats:
        """[n, C]."""
        return np.asarray(log_softmax(self.logits, axis=-1))

    def margins(self) -> Floats:
        """[n]; positive where more than half of the probability is on the label."""
        return margins(self.logits, self.labels)

    def losses(self) -> Floats:
        """−log p of the label, [n]."""
        return -self.log_probabilities()[np.arange(len(self)), self.labels]

    def entropies(self) -> Floats:
        """[n], in nats."""
        return entropies(self.logits)

    def log_entropies(self) -> Floats:
        """log H, [n]; finite also where the entropy is 0 in floating point."""
        return log_entropies(self.logits)

    def wrong(self) -> NDArray[np.bool_]:
        """Whether another class has the largest logit, [n]."""
        return np.asarray(self.logits.argmax(-1) != self.labels)

    def where(self, chosen: NDArray[Any]) -> Outputs:
        """The outputs on some of the samples, by mask or by index."""
        return Outputs(self.logits[chosen], self.labels[chosen])

    def of_classes(self, classes: Iterable[int]) -> Outputs:
        """The outputs on the samples of some classes."""
        return self.where(np.isin(self.labels, list(classes)))

    def without_classes(self, classes: Iterable[int]) -> Outputs:
        """The outputs on the samples of all other classes."""
        return self.where(~np.isin(self.labels, list(classes)))


@dataclass(frozen=True, repr=False)
class Ensemble:
    """What N models say about the same n samples: ``logits`` float64 [N, n, C], ``labels`` int64 [n]."""

    logits: Floats
    labels: Ints

    @classmethod
    def of(cls, logits: ArrayLike, labels: ArrayLike, what: str = "ensemble") -> Ensemble:
        """Check and convert.

        Raises:
            DataError: not [N, n, C] with C > 1, not finite, probabilities, or labels that do not fit.
        """
        table = _numbers(logits, what)
        if table.ndim != 3:
            raise DataError(f"Invalid {what}: shape {list(table.shape)}. Expected logits [models, samples, classes].")
        return cls(*_checked(table, labels, what))

    def __repr__(self) -> str:
        return f"Ensemble(models={len(self)}, samples={self.samples}, classes={self.classes})"

    def __len__(self) -> int:
        """How many models."""
        return len(self.logits)

    def __getitem__(self, model: int) -> Outputs:
        return Outputs(self.logits[model], self.labels)

    def __iter__(self) -> Iterator[Outputs]:
        return (self[model] for model in range(len(self)))

    @property
    def samples(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return int(self.logits.shape[2])

    def margins(self) -> Floats:
        """[N, n]."""
        return np.stack([outputs.margins() for outputs in self])

    def take(self, models: NDArray[Any] | slice) -> Ensemble:
        """Some of the models."""
        return Ensemble(self.logits[models], self.labels)

    def where(self, chosen: NDArray[Any]) -> Ensemble:
        """All models on some of the samples."""
        return Ensemble(self.logits[:, chosen], self.labels[chosen])

    def of_classes(self, classes: Iterable[int]) -> Ensemble:
        """All models on the samples of some classes."""
        return self.where(np.isin(self.labels, list(classes)))


def margins(logits: Floats, labels: Ints) -> Floats:
    """z_y − logsumexp of the other logits, [n], for logits [n, C]."""
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    return np.asarray(logits[rows, labels] - logsumexp(others, axis=1))


def entropies(logits: Floats) -> Floats:
    """−Σ p log p, [...], for logits [..., C]; right to the last digits also where p is 0 or 1 in floating point."""
    return np.asarray(np.exp(log_entropies(logits)))


def log_entropies(logits: Floats) -> Floats:
    """log H, [...], for logits [..., C]; finite however saturated the outputs are.

    With g_c = max z − z_c ≥ 0 and S = Σ e^−g over all classes but the first largest: H = log(1 + S) + Σ p_c g_c, where
    no term is a difference. A margin of 50 over one other class gives 51 e^−50, and one of 5,000 is not −∞.
    """
    gaps = logits.max(-1, keepdims=True) - logits
    exponents = -gaps
    np.put_along_axis(exponents, logits.argmax(-1)[..., None], -np.inf, axis=-1)
    log_s = np.asarray(logsumexp(exponents, axis=-1))
    log_norm = np.logaddexp(0, log_s)
    first = np.where(log_s < -37, log_s, np.log(np.log1p(np.exp(np.maximum(log_s, -40)))))
    return np.asarray(np.logaddexp(first, logsumexp(exponents, b=gaps, axis=-1) - log_norm))


def collect(model: nn.Module, loader: Loader, what: str = "audit") -> Outputs:
    """Run a model over a loader in eval mode, and leave the model as it was.

    Raises:
        DataError: a loader that cannot be used. ModelError: outputs that are not logits [n, C].
    """
    from unweave.reading.batches import Doubts, checked, device_of, logits_of
    from unweave.reading.rest import at_rest, unwrap

    net, doubts = unwrap(model), Doubts()
    logits, labels = [], []
    with at_rest(net):
        for inputs, answer in checked(loader, what, device_of(net), doubts):
            logits.append(logits_of(net, inputs, answer, doubts).detach().double().cpu().numpy())
            labels.append(answer.cpu().numpy())
    return Outputs.of(np.concatenate(logits), np.concatenate(labels), what)


def same_samples(**named: Outputs | Ensemble) -> None:
    """Raise unless all of these are about the same samples with the same classes, by their labels.

    Raises:
        DataError: two differ; names both.
    """
    if not named:
        return
    (first_name, first), *others = named.items()
    for name, other in others:
        if len(other.labels) != len(first.labels):
            raise DataError(
                f"{first_name} has {len(first.labels)} samples and {name} has {len(other.labels)}. Both must be the "
                "outputs on the same samples, in the same order."
            )
        if other.classes != first.classes:
            raise DataError(f"{first_name} has {first.classes} classes and {name} has {other.classes}.")
        if (other.labels != first.labels).any():
            raise DataError(f"The labels of {first_name} and {name} differ: the same samples in another order?")


def _numbers(values: ArrayLike, what: str) -> Floats:
    try:
        if np.iscomplexobj(values):
            raise TypeError("complex numbers")
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor that requires gradients
        raise DataError(f"Invalid {what}: not an array of numbers ({error}).") from error


def _look_like_probabilities(logits: Floats) -> bool:
    """Also where they were rounded, or where a few rows are off: one odd row must not disarm the question."""
    if logits.min() < 0:
        return False
    sums = logits.sum(-1)
    return bool(0 < logits.max() <= 1 or any(np.median(np.abs(sums / whole - 1)) < 0.05 for whole in (1, 100)))


def _checked(logits: Floats, labels: ArrayLike, what: str) -> tuple[Floats, Ints]:
    classes = logits.shape[-1]
    if logits.size == 0:
        raise DataError(f"Invalid {what}: shape {list(logits.shape)} holds nothing.")
    if classes < 2:
        raise DataError(
            f"Invalid {what}: {classes} class. A classifier has at least two; give one logit a class (0 and z where a "
            "single z stands for two classes)."
        )
    if not np.isfinite(logits).all():
        bad = int((~np.isfinite(logits)).any(-1).sum())
        raise DataError(f"Invalid {what}: NaN or infinite values in {bad} rows. Read the logits before any softmax.")
    if _look_like_probabilities(logits):
        raise DataError(
            f"Invalid {what}: no value is negative and rows add up to 1 (or 100), or all lie between 0 and 1, so these "
            "are probabilities. Give the logits before the softmax, or if there is nothing else their logarithm."
        )
    try:
        answers = np.asarray(labels)
    except (TypeError, ValueError) as error:
        raise DataError(f"Invalid {what}: labels that are no array of whole numbers ({error}).") from error
    if answers.shape != logits.shape[-2:-1]:
        raise DataError(f"Invalid {what}: {list(answers.shape)} labels for {logits.shape[-2]} samples.")
    if not np.issubdtype(answers.dtype, np.integer):
        raise DataError(f"Invalid {what}: labels of type {answers.dtype}. Expected whole numbers, one a sample.")
    if answers.min() < 0 or answers.max() >= classes:
        raise DataError(f"Invalid {what}: labels from {answers.min()} to {answers.max()} for {classes} classes.")
    return logits, answers.astype(np.int64)
