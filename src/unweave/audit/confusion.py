"""The interclass-confusion test (Goel and others, arXiv 2201.06640): forget labels that were swapped on purpose.

Before training, some samples of class a get the label b and as many of b the label a. A network that learnt them mixes
the two classes up. After these samples were forgotten the confusion should be that of a network trained without them:
with true labels y and predictions ŷ

    confusion = share of samples with {y, ŷ} = {a, b} among those with y in {a, b}
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from unweave.audit.attack import Distance, DistanceResult
from unweave.audit.measure import Interval
from unweave.audit.outputs import Ensemble, Ints, Outputs
from unweave.audit.readouts import proportion
from unweave.errors import ConfigError, DataError


def swap_labels(labels: ArrayLike, a: int, b: int, count: int, seed: int = 0) -> tuple[Ints, Ints]:
    """Swap the labels of some samples of two classes: train with these, then forget the samples that were swapped.

    Args:
        labels: whole numbers [n]; left as they are.
        a: one class.
        b: the other.
        count: samples of *each* of the two classes.
        seed: of the choice.

    Returns:
        The new labels [n], and the positions of the 2 · count swapped samples, sorted.

    Raises:
        ConfigError: one class twice, or fewer than ``count`` samples of one of them.
        DataError: labels that are not whole numbers [n].
    """
    swapped = np.array(labels)
    if swapped.ndim != 1 or not np.issubdtype(swapped.dtype, np.integer):
        raise DataError(f"Invalid labels: {swapped.dtype} of shape {list(swapped.shape)}. Expected whole numbers [n].")
    if a == b:
        raise ConfigError(f"Invalid classes: {a} twice. Give two different ones.")
    rng = np.random.default_rng(seed)
    chosen = []
    for cls in (a, b):
        own = np.flatnonzero(swapped == cls)
        if not 1 <= count <= len(own):
            raise ConfigError(f"Invalid count: {count}. Class {cls} has {len(own)} samples; supported: 1 to that.")
        chosen.append(rng.choice(own, count, replace=False))
    swapped[chosen[0]], swapped[chosen[1]] = b, a
    return swapped.astype(np.int64), np.sort(np.concatenate(chosen)).astype(np.int64)


def confusion_left(answer: Outputs | Ensemble, a: int, b: int) -> Interval:
    """The share of samples of two classes that are taken for the other one; a fraction.

    Args:
        answer: outputs with the *true* labels, of one model or of several; other classes are left out.
        a: one class.
        b: the other.

    Raises:
        ConfigError: one class twice. DataError: no sample of them.
    """
    if a == b:
        raise ConfigError(f"Invalid classes: {a} twice. Give two different ones.")
    own = answer.of_classes([a, b])
    if not len(own.labels):
        raise DataError(f"No sample of class {a} or {b}, so there is nothing to confuse. Give outputs on some.")
    return proportion(own.logits.argmax(-1) == np.where(own.labels == a, b, a))


def confusion(
    unlearned: Outputs | Ensemble,
    a: int,
    b: int,
    *,
    original: Outputs | Ensemble | None = None,
    retrained: Outputs | Ensemble | None = None,
) -> DistanceResult:
    """The confusion left in each group of models, side by side."""
    groups = {"unlearned": unlearned, "original": original, "retrained": retrained}
    distances = {name: _distance(answer, a, b) for name, answer in groups.items() if answer is not None}
    return DistanceResult(
        name="confusion",
        title="Interclass confusion",
        explanation=(
            "Labels of two classes were swapped before training and then forgotten: the share of samples of these "
            "classes that is still taken for the other one. Compare with the retrained network."
        ),
        unlearned=distances["unlearned"],
        original=distances.get("original"),
        retrained=distances.get("retrained"),
    )


def _distance(answer: Outputs | Ensemble, a: int, b: int) -> Distance:
    share = confusion_left(answer, a, b)
    models = len(answer) if isinstance(answer, Ensemble) else 1
    samples = int(np.isin(answer.labels, [a, b]).sum())
    return Distance(share.value, share.low, share.high, models=models, samples=samples)
