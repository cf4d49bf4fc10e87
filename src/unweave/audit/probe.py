"""Linear probe: do the features before the last layer still tell forgotten samples from strangers?

Features are what the classifying layer sees, [n, d]. A logistic regression (standardised features, L2) learns to tell
forget samples from held-out samples of the same classes, which are weighted to the forget set's class proportions, so
that knowing the class helps nothing. Every score is out of fold: from a regression that did not see the sample.

Pooling the folds as they are would bias the AUC below 0.5: where a fold holds more of one group, its regression has
seen less of it. So folds are stratified by group and class, and each fold's scores are put on one scale by their own
median and spread over both groups, which do not know who is who.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from unweave.audit.measure import DRAWS, Separation, class_weights, separate
from unweave.audit.outputs import Floats, Ints
from unweave.audit.roc import Curve
from unweave.errors import ConfigError, DataError, ModelError
from unweave.reading.batches import Loader, checked, device_of, logits_of
from unweave.reading.rest import at_rest, unwrap

FOLDS = 5
PERMUTATIONS = 20
STRENGTH = 0.01
"""Inverse weight of the L2 penalty: strong, because there are often more features than forgotten samples."""


@dataclass(frozen=True)
class Features:
    """Features float64 [n, d] and labels int64 [n]."""

    values: Floats
    labels: Ints

    @classmethod
    def of(cls, values: ArrayLike, labels: ArrayLike) -> Features:
        """Check and convert.

        Raises:
            DataError: not [n, d] with n labels, or not finite.
        """
        table, answers = np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=np.int64)
        if table.ndim != 2 or table.size == 0 or answers.shape != table.shape[:1]:
            raise DataError(
                f"Invalid features: {list(table.shape)} with labels {list(answers.shape)}. Expected [n, d]."
            )
        if not np.isfinite(table).all():
            raise DataError("Invalid features: NaN or infinite values.")
        return cls(table, answers)

    def of_classes(self, classes: Ints) -> Features:
        """The features of the samples of some classes."""
        chosen = np.isin(self.labels, classes)
        return Features(self.values[chosen], self.labels[chosen])

    def and_also(self, others: Features) -> Features:
        """Both, one after the other."""
        return Features(np.concatenate([self.values, others.values]), np.concatenate([self.labels, others.labels]))


def penultimate(model: nn.Module, loader: Loader, layer: str | None = None) -> Features:
    """What the classifying layer of a model sees, in eval mode; the model is left as it was.

    Args:
        model: any module with an ``nn.Linear``, or one that ``layer`` names.
        loader: yields (inputs, labels).
        layer: path of the layer whose input is read; None takes the last ``nn.Linear`` of ``named_modules()``. Inputs
            with further axes, as those of a convolution, are averaged over positions.

    Raises:
        ModelError: no such layer, or one that the forward pass does not call. DataError: an unusable loader.
    """
    net = unwrap(model)
    head = _head(net, layer)
    seen: list[Tensor] = []
    values, labels = [], []
    handle = head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        with at_rest(net):
            for inputs, answer in checked(loader, "probe", device_of(net)):
                seen.clear()
                logits_of(net, inputs, answer)
                values.append(_rows(head, seen, len(answer)))
                labels.append(answer.cpu().numpy())
    finally:
        handle.remove()
    return Features.of(np.concatenate(values), np.concatenate(labels))


class LinearProbe:
    """Tells forget samples from strangers by their features; ``fit`` runs all folds, ``score`` gives what they say."""

    name: ClassVar[str] = "probe"
    title: ClassVar[str] = "Linear probe"
    explanation: ClassVar[str] = (
        "Somebody who has the network itself looks at what it computes just before its answer, and trains a simple "
        "classifier to tell forgotten samples from strangers of the same classes."
    )

    def __init__(self, folds: int = FOLDS, strength: float = STRENGTH, seed: int = 0) -> None:
        if folds < 2 or strength <= 0:
            raise ConfigError(
                f"Invalid probe: folds={folds}, strength={strength}. Supported: folds >= 2, strength > 0."
            )
        self.folds, self.strength, self.seed = folds, strength, seed
        self._scores: tuple[Floats, Floats] | None = None

    def fit(self, forget: Features, strangers: Features) -> Self:
        """Score every sample by a regression that did not see it.

        Raises:
            DataError: fewer samples than folds in a group, or a class without strangers.
        """
        n, m = len(forget.labels), len(strangers.labels)
        if min(n, m) < 2 * self.folds:
            raise DataError(f"{n} and {m} samples are too few for {self.folds} folds. Give two a fold at least.")
        both = forget.and_also(strangers)
        scores = self._out_of_fold(both, np.arange(n + m) < n, self.seed)
        self._scores = scores[:n], scores[n:]
        return self

    def null(self, forget: Features, strangers: Features, permutations: int = PERMUTATIONS) -> Floats:
        """AUCs where there is nothing to find: forget samples and strangers swapped at random within each class."""
        both = forget.and_also(strangers)
        rng = np.random.default_rng(self.seed)
        found = []
        for i in range(permutations):
            member = _swapped(np.arange(len(both.labels)) < len(forget.labels), both.labels, rng)
            scores = self._out_of_fold(both, member, self.seed + 1 + i)
            uniform = np.full(len(forget.labels), 1 / len(forget.labels))
            weights = class_weights(both.labels[member], both.labels[~member])
            found.append(Curve.of(scores[member], scores[~member]).read(uniform, weights)[0])
        return np.array(found)

    def score(self) -> tuple[Floats, Floats]:
        """The out-of-fold scores of the forget samples and of the strangers, [n] and [m]; high for a member."""
        if self._scores is None:
            raise ConfigError("The probe has no scores yet. Call fit first.")
        return self._scores

    def _out_of_fold(self, both: Features, member: NDArray[np.bool_], seed: int) -> Floats:
        weights = np.ones(len(member))
        weights[~member] = member.sum() * class_weights(both.labels[member], both.labels[~member])
        fold, scores = _folds(member, both.labels, self.folds, seed), np.empty(len(member))
        for k in range(self.folds):
            here, rest = fold == k, fold != k
            decided = self._decide(both.values[rest], member[rest], weights[rest], both.values[here])
            scores[here] = _on_one_scale(decided)
        return scores

    def _decide(self, values: Floats, member: NDArray[np.bool_], weights: Floats, wanted: Floats) -> Floats:
        from sklearn.linear_model import LogisticRegression

        centre, spread = values.mean(0), values.std(0)
        spread[spread < 1e-12 * (1 + np.abs(centre))] = np.inf  # a feature that never changes says nothing
        regression = LogisticRegression(C=self.strength, max_iter=2000)
        regression.fit((values - centre) / spread, member, sample_weight=weights)
        return np.asarray(regression.decision_function((wanted - centre) / spread))


def probe(
    forget: Features,
    held_out: Features,
    *,
    attack: LinearProbe | None = None,
    permutations: int = PERMUTATIONS,
    draws: int = DRAWS,
    seed: int = 0,
) -> Separation:
    """How well features tell forget samples from held-out samples of the same classes.

    Compare with the same of a network that never saw the forget set, not with 0.5 alone. The regressions of different
    folds have most of their data in common, so out-of-fold scores vary together, which a bootstrap of the scores does
    not see: its draws of the AUC are stretched to the spread that permuted groups show.

    Raises:
        DataError: too few samples, or a class of the forget set without held-out samples.
    """
    class_weights(forget.labels, held_out.labels)  # refuses a class without strangers
    strangers = held_out.of_classes(np.unique(forget.labels))
    attack = attack or LinearProbe(seed=seed)
    positives, negatives = attack.fit(forget, strangers).score()
    found = separate(positives, negatives, classes=(forget.labels, strangers.labels), draws=draws, seed=seed)
    spread = float(np.sqrt(((attack.null(forget, strangers, permutations) - 0.5) ** 2).mean()))
    stretched, value = found.draws.copy(), found.auc.value
    stretched[:, 0] = np.clip(value + max(1.0, spread / found.standard_error) * (stretched[:, 0] - value), 0, 1)
    return replace(found, draws=stretched)


def probe_control(held_out: Features, *, seed: int = 0, draws: int = DRAWS) -> Separation:
    """The negative control: half of the held-out samples of each class against the other half. It has to find nothing.

    Raises:
        DataError: too few samples, or a class with a single one.
    """
    half = _folds(np.zeros(len(held_out.labels), dtype=bool), held_out.labels, 2, seed) == 0
    first, second = (Features(held_out.values[side], held_out.labels[side]) for side in (half, ~half))
    return probe(first, second, seed=seed, draws=draws)


def _head(net: nn.Module, layer: str | None) -> nn.Module:
    found: list[nn.Module] = [
        m for name, m in net.named_modules() if (isinstance(m, nn.Linear) if layer is None else name == layer)
    ]
    if not found:
        what = "no nn.Linear layer" if layer is None else f"no layer {layer!r}"
        raise ModelError(f"{type(net).__name__} has {what} whose input could be probed. Name the layer with layer=.")
    return found[-1]


def _rows(head: nn.Module, seen: list[Tensor], count: int) -> Floats:
    """The last input of the layer as one row a sample."""
    if not seen:
        raise ModelError("The model does not call the layer to be probed. Name the one that classifies with layer=.")
    rows = seen[-1].detach()
    if rows.dim() < 2 or len(rows) != count:
        raise ModelError(
            f"The layer to be probed sees {list(rows.shape)} for {count} samples. Name another with layer=."
        )
    channels_last = isinstance(head, nn.Linear)
    if rows.dim() > 2:
        rows = rows.flatten(1, -2).mean(1) if channels_last else rows.flatten(2).mean(2)
    return np.asarray(rows.double().cpu().numpy())


def _folds(member: NDArray[np.bool_], labels: Ints, folds: int, seed: int) -> Ints:
    """The fold of every sample: each group and class in turn is dealt out like cards, so that all folds are alike."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    order = order[np.lexsort((labels[order], member[order]))]
    dealt = np.empty(len(labels), dtype=np.int64)
    dealt[order] = np.arange(len(labels)) % folds
    return dealt


def _swapped(member: NDArray[np.bool_], labels: Ints, rng: np.random.Generator) -> NDArray[np.bool_]:
    swapped = member.copy()
    for c in np.unique(labels):
        own = np.flatnonzero(labels == c)
        swapped[own] = rng.permutation(swapped[own])
    return swapped


def _on_one_scale(scores: Floats) -> Floats:
    low, middle, high = np.quantile(scores, [0.25, 0.5, 0.75])
    return np.asarray((scores - middle) / (high - low if high > low else 1.0))
