"""Fisher forgetting (Golatkar, Achille, Soatto, CVPR 2020): noise where the retained samples would not feel it.

The diagonal of the Fisher information over the retained samples is, per weight j,

    F_j = mean over x of Σ_y p(y|x) (∂_j −log p(y|x))²

with the expectation over the model's own p(y|x), not over the labels: per sample and class y the gradient is the row
with cotangent p − onehot(y) (see :mod:`unweave.gradients.per_sample`). The noise is w ← w + √v · N(0, 1), per tensor

    v = α · min(1 / (F + 1e-8), 1e3)         1e2 in the last layer
    averaged along dim 1 (input channels) where there are two dims or more
    × 10 in the last layer, and in every other tensor with one dim (biases, normalisation)

To remove whole classes, their rows in the last layer are replaced: mean 0, variance 1e-4 · 10.

Cost: n C forward and backward passes of one sample, ``chunk`` at a time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unweave.baselines.checks import above_zero, integer, one_of
from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.one_step import Closing, with_change
from unweave.baselines.preparation import again, needed, own_randomness, settings, trainable, untouched
from unweave.errors import ConfigError, ModelError
from unweave.fit import Progress
from unweave.gradients.per_sample import at_most, drawn, sample_gradients
from unweave.reading.batches import Doubts, Loader, checked, device_of, logits_of
from unweave.reading.rest import at_rest, duplicate
from unweave.reading.samples import Samples

LEAST_FISHER = 1e-8
MOST_INVERSE = 1e3
MOST_INVERSE_LAST = 1e2
BOOST = 10.0
CLASS_VARIANCE = 1e-4


@dataclass(frozen=True)
class FisherConfig:
    """α is that of Golatkar et al.'s notebook (they try 1e-8 to 1e-5; 1e-7 is used for larger sets)."""

    alpha: float = 1e-6
    classes: tuple[int, ...] = ()
    """Classes to remove as a whole; empty when samples are to be forgotten."""
    samples: int | None = None
    """Use so many retained samples, drawn at random; None: all."""
    chunk: int = 32
    """Samples whose gradients are computed in one call; memory for ``chunk`` copies of the weights, and on a GPU for
    the patches of their convolutions."""
    batched: bool = True
    """False: gradients one sample at a time, for models that ``torch.func.vmap`` does not allow."""
    seed: int = 0

    def __post_init__(self) -> None:
        above_zero(self, "alpha")
        one_of(self, "batched", (False, True))
        for name in ("chunk", "seed", *(() if self.samples is None else ("samples",))):
            integer(self, name, 0 if name == "seed" else 1)
        if not isinstance(self.classes, tuple) or any(type(c) is not int or c < 0 for c in self.classes):
            raise ConfigError(f"Invalid classes: {self.classes!r}. Supported: a tuple of class indices from 0.")


@own_randomness
def fisher(
    model: nn.Module,
    forget_loader: Loader | None = None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: FisherConfig | None = None,
    *,
    progress: Progress | None = None,
) -> BaselineResult:
    """Forget by noise shaped by the Fisher information of the retained samples; only those are needed.

    Args:
        model: the trained model; left untouched.
        forget_loader: only to report an error before and after.
        retain_loader: the retained samples.
        val: as ``forget_loader``.
        config: see :class:`FisherConfig`.
        progress: called as ``progress("fisher", samples_done, None)``.

    Raises:
        DataError: no retained samples.
        ConfigError: a class that the model does not have.
        ModelError: classes are to be removed and no last layer with one row a class was found.
    """
    began = time.perf_counter()
    config = settings(config, FisherConfig)
    original = untouched(model)
    given = needed(retain_loader, "retain", "fisher")
    if config.samples is not None:
        given = list(drawn(given, "retain", config.samples, config.seed, device_of(original)).pairs(config.chunk))
    net = duplicate(original)
    weights = dict(trainable(net))
    diagonal, count, classes = diagonal_fisher(net, weights, given, config.chunk, progress, config.batched)
    head = last_layer(weights, classes)
    _check_classes(config, head, classes)

    generator = torch.Generator().manual_seed(config.seed)
    change, spread = {}, {}
    for name, weight in weights.items():
        mean, variance = noise(weight.detach().double(), diagonal[name], config, name in head)
        # On the CPU, so that a seed means the same noise on every device.
        draw = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.device)
        change[name] = mean + variance.sqrt() * draw - weight.detach().double()
        spread[name] = float(variance.mean().sqrt())
    extras = {"retained_used": count, "noise": spread, "last_layer": sorted(head)}
    closing = Closing(config, began, "noise added once", extras, again(forget_loader), again(val))
    return with_change(original, change, closing)


def diagonal_fisher(
    net: nn.Module,
    weights: Mapping[str, Tensor],
    loader: Loader,
    chunk: int,
    progress: Progress | None = None,
    batched: bool = True,
) -> tuple[dict[str, Tensor], int, int]:
    """F per parameter in float64, the number of samples and of classes."""
    total = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    count = classes = 0
    doubts = Doubts(later=device_of(net).type == "cuda")
    with at_rest(net):
        for batch in checked(loader, "retain", device_of(net), doubts):
            for inputs, labels, _ in at_most(Samples([batch]), chunk):
                p = logits_of(net, inputs, labels, doubts).softmax(1)
                classes = p.shape[1]
                for y in range(classes):
                    rows = sample_gradients(net, weights, inputs, _slope(p, y), batched)
                    for name, part in rows.items():
                        total[name] += torch.tensordot(p[:, y].to(part.dtype), part.square(), dims=1)
                count += len(labels)
            if progress is not None:
                progress("fisher", count, None)
    doubts.settle()
    return {name: part / count for name, part in total.items()}, count, classes


def _slope(p: Tensor, y: int) -> Tensor:
    """The derivative of −log p_y by the logits, p − onehot(y), for each row of p [m, C]."""
    slope = p.clone()
    slope[:, y] -= 1
    return slope


def last_layer(weights: Mapping[str, Tensor], classes: int) -> set[str]:
    """The tensors of the last module that has one row a class; the first dimension alone would also match others."""
    rows = [name for name, weight in weights.items() if weight.dim() and len(weight) == classes]
    if not rows:
        return set()
    owner = rows[-1].rpartition(".")[0]
    return {name for name in rows if name.rpartition(".")[0] == owner}


def _check_classes(config: FisherConfig, head: set[str], classes: int) -> None:
    if config.classes and max(config.classes) >= classes:
        raise ConfigError(f"Invalid classes: {config.classes}. Supported: 0 to {classes - 1}.")
    if config.classes and not head:
        raise ModelError(f"No layer of the model has {classes} rows, so no class can be removed from it.")


def noise(weight: Tensor, information: Tensor, config: FisherConfig, last: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance of one tensor's new values, both of its shape."""
    most = MOST_INVERSE_LAST if last else MOST_INVERSE
    variance = config.alpha * (1 / (information + LEAST_FISHER)).clamp(max=most)
    if weight.dim() > 1:
        variance = variance.mean(dim=1, keepdim=True).expand_as(weight).clone()
    mean = weight.clone()
    if last and config.classes:
        mean[list(config.classes)] = 0
        variance[list(config.classes)] = CLASS_VARIANCE
    if last or weight.dim() == 1:
        variance = BOOST * variance
    return mean, variance


FISHER = Method("fisher", "Fisher", fisher, FisherConfig, frozenset({"retain"}), "Golatkar et al., CVPR 2020")
