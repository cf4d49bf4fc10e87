"""Read-outs: plain statements about outputs, of one model [n, C] or of N models on the same samples [N, n, C].

An error is a share of hits h [N, n] (1: wrong) with mean p. What varies is which samples and which models were drawn:

    V = var_i(h̄_i) / n + var_k(h̄_k) / N − residual / (n N)        i: samples, k: models (N = 1: p (1 − p) / n)

The interval is Wilson's with the n′ = p (1 − p) / V independent samples that would vary as much, and with Student's t
at Satterthwaite's degrees of freedom in place of z: a handful of models does not pass for certainty. Where p is 0 or 1
the models count for nothing, n′ = n. For one model all of this is plain Wilson.

What a 95 % interval covers, simulated where models differ far more than samples do: 95 % for 10 models, 93 % for 5,
91 % for 3, 85 % for 2. Where samples dominate it was 94 % to 98 % for 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from scipy.stats import t as student

from unweave.audit.measure import CONFIDENCE, Interval
from unweave.audit.outputs import Ensemble, Floats, Outputs, log_entropies, same_samples
from unweave.errors import ConfigError, DataError

Answer = Outputs | Ensemble
Names = Sequence[str] | Callable[[int], str]
"""The name of each class: a list, or a function of its label."""

BINS = 40
TAIL = 0.005
"""Share of a group's entropies beyond each end of a histogram; they are counted in its outermost bins."""


def error(answer: Answer) -> dict[str, float | int]:
    """Percent wrong, with its interval and the number of samples: an "error" of the report's schema."""
    found = proportion(_wrong(answer))
    return {**_percent(found).document(), "samples": len(answer.labels)}


def errors_by_class(answer: Answer, names: Names) -> dict[str, dict[str, float | int]]:
    """The error of each class that has samples, by the class's name."""
    present = [int(c) for c in np.unique(answer.labels)]
    return {_name(names, c): error(answer.of_classes([c])) for c in present}


def proportion(hits: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """The share of hits, a fraction, with the interval of the module's docstring.

    Args:
        hits: booleans [n], or [N, n] for N models on the same n samples.
        confidence: of the interval.

    Raises:
        DataError: no samples, or another shape.
    """
    table = np.atleast_2d(np.asarray(hits, dtype=np.float64))
    if table.ndim != 2 or table.size == 0:
        raise DataError(f"Invalid hits: shape {list(table.shape)}. Expected [samples] or [models, samples].")
    p, (variance, freedom) = float(table.mean()), _variance(table)
    spread = p * (1 - p)
    count = float(table.shape[1]) if spread == 0 or variance == 0 else min(spread / variance, float(table.size))
    quantile = float(norm.ppf((1 + confidence) / 2) if len(table) == 1 else student.ppf((1 + confidence) / 2, freedom))
    shrink = 1 + quantile**2 / count
    centre = (p + quantile**2 / (2 * count)) / shrink
    reach = quantile / shrink * np.sqrt(spread / count + quantile**2 / (4 * count**2))
    return Interval(p, float(max(0.0, min(centre - reach, p))), float(min(1.0, max(centre + reach, p))))


def paired_difference(a: Answer, b: Answer, confidence: float = CONFIDENCE) -> Interval:
    """Error of ``a`` less error of ``b`` on the same samples, in points.

    Newcombe's square-and-add of both shares' intervals, with the correlation φ that shared samples give the two:
    samples that both get wrong say nothing about the difference. Either may be several models.

    Raises:
        DataError: not the same samples.
    """
    same_samples(a=a, b=b)
    hits = [np.atleast_2d(_wrong(answer)).astype(np.float64) for answer in (a, b)]
    first, second = (proportion(h, confidence) for h in hits)
    count = len(a.labels)
    shared = float(np.cov(hits[0].mean(0), hits[1].mean(0), ddof=0)[0, 1])
    # Newcombe's continuity correction: a few samples without a disagreement are no certainty.
    shared = max(0.0, shared - 1 / (2 * count)) if shared > 0 else shared
    scale = float(np.sqrt(_variance(hits[0])[0] * _variance(hits[1])[0]))
    phi = float(np.clip(shared / count / scale, -1, 1)) if scale > 0 else 0.0

    def reach(down: float, up: float) -> float:
        return float(np.sqrt(max(0.0, down**2 - 2 * phi * down * up + up**2)))

    value = first.value - second.value
    low = value - reach(first.value - first.low, second.high - second.value)
    high = value + reach(first.high - first.value, second.value - second.low)
    return _percent(Interval(value, low, high))


def destinations(answer: Answer, cls: int, names: Names, kept: Iterable[int] | None = None) -> dict[str, float]:
    """What samples of a class are taken for: the share of each predicted class, by its name; they add up to 1.

    Args:
        answer: outputs; samples of other classes are left out.
        cls: the class, usually a forgotten one.
        names: of the classes.
        kept: classes to choose among, for a model that may no longer say the others; None for all.

    Raises:
        DataError: no sample of that class.
    """
    own = answer.of_classes([cls]).logits
    if own.size == 0:
        raise DataError(f"No sample of class {_name(names, cls)}, so nothing says what it is taken for.")
    allowed = np.arange(answer.classes) if kept is None else _classes(kept, answer.classes)
    predicted = allowed[own[..., allowed].argmax(-1)]
    shares = np.bincount(predicted.ravel(), minlength=answer.classes) / predicted.size
    return {_name(names, int(c)): float(shares[c]) for c in allowed}


def log_entropy(answer: Answer, removed_classes: Iterable[int] = ()) -> Floats:
    """log10 of the entropy in nats, [n] or [N, n]; finite however saturated the outputs are.

    Args:
        answer: outputs.
        removed_classes: left out, and the rest renormalised, so that a model which still has a forgotten class can be
            compared with one that does not.

    Raises:
        ConfigError: fewer than two classes left, or one that is not there.
    """
    removed = set(_classes(removed_classes, answer.classes).tolist())
    kept = [c for c in range(answer.classes) if c not in removed]
    if len(kept) < 2:
        raise ConfigError(f"Removing {len(removed)} of {answer.classes} classes leaves {len(kept)}: no entropy.")
    return np.asarray(log_entropies(answer.logits[..., kept]) / np.log(10))


def entropy_histograms(
    named: Mapping[str, Mapping[str, Answer]], removed_classes: Iterable[int] = (), bins: int = BINS
) -> list[dict[str, Any]]:
    """Histograms of log10 entropy, one for each model and part, over the same edges: "entropy" of the report's schema.

    Args:
        named: outputs by model ("original", …) and part ("forget", …).
        removed_classes: see :func:`log_entropy`; left out for all models alike.
        bins: of each histogram.
    """
    removed = list(removed_classes)
    found = {(m, part): log_entropy(a, removed).ravel() for m, parts in named.items() for part, a in parts.items()}
    found = {key: values for key, values in found.items() if values.size}
    if not found:
        return []
    ends = np.array([np.quantile(values, [TAIL, 1 - TAIL]) for values in found.values()])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    return [
        {
            "model": model,
            "part": part,
            "edges": edges.tolist(),
            "shares": (np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / values.size).tolist(),
            "median": float(np.median(values)),
        }
        for (model, part), values in found.items()
    ]


def _variance(table: Floats) -> tuple[float, float]:
    """The variance of a mean of hits [N, n], and its degrees of freedom (meaningless for one model)."""
    models, samples = table.shape
    if models == 1:
        p = float(table.mean())
        return p * (1 - p) / samples, float(samples)
    by_sample, by_model = table.mean(0), table.mean(1)
    parts = [float(x.var(ddof=1)) / len(x) if len(x) > 1 else 0.0 for x in (by_sample, by_model)]
    left = table - by_sample - by_model[:, None] + table.mean()
    noise = float((left**2).sum()) / max(1, (models - 1) * (samples - 1)) / table.size  # counted in both parts
    if sum(parts) == 0:
        return 0.0, float(models - 1)
    freedom = sum(parts) ** 2 / sum(v**2 / max(1, k - 1) for v, k in zip(parts, (samples, models), strict=True))
    return max(*parts, sum(parts) - noise), freedom


def _wrong(answer: Answer) -> NDArray[np.bool_]:
    return np.asarray(answer.logits.argmax(-1) != answer.labels)


def _percent(share: Interval) -> Interval:
    return Interval(100 * share.value, 100 * share.low, 100 * share.high)


def _name(names: Names, label: int) -> str:
    if callable(names):
        return names(label)
    if label >= len(names):
        raise DataError(f"{len(names)} class names, but there is a class {label}. Give a name for every class.")
    return str(names[label])


def _classes(chosen: Iterable[int], classes: int) -> NDArray[np.int64]:
    found = np.array(sorted(set(chosen)), dtype=np.int64)
    if len(found) and (found[0] < 0 or found[-1] >= classes):
        raise ConfigError(f"Invalid classes: {found.tolist()}. Supported: 0 to {classes - 1}.")
    return found
