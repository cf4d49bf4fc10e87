"""First- and second-order unlearning (Warnecke, Pirch, Wressnegger, Rieck, NDSS 2023): an influence-function step.

z are the samples with the labels to unlearn, z̃ the same inputs with correct labels; all gradients are sums:

    v = Σ ∇L(z̃) − Σ ∇L(z)           correction of labels
    v = −Σ ∇L(z)                     removal of samples, without ``true_labels=``
    first order   θ ← θ − τ v
    second order  θ ← θ − H⁻¹ v      by LiSSA (:mod:`.lissa`), that is (H + s δ I)⁻¹ v

H is the Hessian of the summed loss on a batch of the data that stays: the retained samples and z̃. The authors use the
sum over one batch of b, as if there were no more; ``full_sum`` scales it to all N samples, the sum that influence
functions mean, which makes the step N/b times smaller. A batch that is shorter than b is scaled up to b.

The authors' code for poisoning picks z at every step from all samples that are predicted wrongly; here z is what the
caller wants unlearnt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unweave.baselines.checks import above_zero, integer, number, one_of
from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.influence import Correction, Moving, hessian_product
from unweave.baselines.lissa import Change, Estimate, lissa, mean_of
from unweave.baselines.one_step import LOOK
from unweave.baselines.preparation import needed, own_randomness, settings
from unweave.fit import Progress
from unweave.reading.batches import Inputs, Loader, device_of
from unweave.reading.samples import Samples


@dataclass(frozen=True)
class FirstOrderConfig:
    """τ, steps and tensors are Warnecke et al.'s for CIFAR-10."""

    tau: float = 2e-5
    """Step size on summed gradients."""
    steps: int = 1
    layers: Sequence[str] | int | None = 2
    """An int k: every parameter from the k-th last layer on (theirs: the last 6 tensors, two dense layers and the batch
    norm between them). Names: the parameters of those layers. None: all."""
    batch_size: int = 512
    """Samples in one backward pass; the result does not depend on it."""

    def __post_init__(self) -> None:
        above_zero(self, "tau")
        for name in ("steps", "batch_size"):
            integer(self, name, 1)


@dataclass(frozen=True)
class SecondOrderConfig:
    """b, δ, s, repetitions, patience, steps and tensors are Warnecke et al.'s for CIFAR-10."""

    damping: float = 1e-4
    """δ; the damping of the Hessian is s δ."""
    scale: float = 2e5
    """s; more than half the Hessian's largest eigenvalue."""
    batch_size: int = 1024
    """b, the samples behind one Hessian product."""
    iterations: int | None = None
    """At most; None: 100 · ⌈N/b⌉."""
    patience: int = 20
    repetitions: int = 1
    """Average over so many runs with other batches."""
    full_sum: bool = False
    """Scale each batch's Hessian to the sum over all samples."""
    steps: int = 1
    layers: Sequence[str] | int | None = 2
    """As for the first order."""
    seed: int = 0

    def __post_init__(self) -> None:
        above_zero(self, "scale")
        number(self, "damping", lambda v: 0 <= v < 1, "a number in [0, 1)")
        integer(self, "seed", 0)
        counts = (
            "batch_size",
            "patience",
            "repetitions",
            "steps",
            *(() if self.iterations is None else ("iterations",)),
        )
        for name in counts:
            integer(self, name, 1)
        one_of(self, "full_sum", (False, True))


@own_randomness
def first_order(
    model: nn.Module,
    forget_loader: Loader,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: FirstOrderConfig | None = None,
    *,
    true_labels: Loader | None = None,
    progress: Progress | None = None,
) -> BaselineResult:
    """One gradient step, or a few.

    Args:
        model: the trained model; left untouched.
        forget_loader: the samples with the labels to unlearn.
        retain_loader: not needed.
        val: only to report an error after every step.
        config: see :class:`FirstOrderConfig`.
        true_labels: the same inputs in the same order with correct labels; None removes the samples.
        progress: called as ``progress("first_order", steps_done, steps)``.

    Raises:
        DataError: ``true_labels`` has other inputs.
        LayerError: a layer that is not there.
    """
    config = settings(config, FirstOrderConfig)
    request = Correction(model, forget_loader, true_labels, val, "first_order")
    tau = config.tau

    def direction(net: nn.Module, moving: Moving, _: int) -> tuple[Change, str | None]:
        v = request.difference(net, moving, config.batch_size)
        return {name: tau * part for name, part in v.items()}, None

    return request.run(config, direction, progress)


@own_randomness
def second_order(
    model: nn.Module,
    forget_loader: Loader,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: SecondOrderConfig | None = None,
    *,
    true_labels: Loader | None = None,
    progress: Progress | None = None,
) -> BaselineResult:
    """One Newton step, or a few; arguments as for :func:`first_order`, and the retained samples, held on the device.

    ``extras["estimates"]`` tells how each LiSSA run went. A run that diverges ends the request with ``ok=False`` and
    the weights as they were.

    Raises:
        DataError: no retained samples, or ``true_labels`` has other inputs.
        LayerError: a layer that is not there.
    """
    config = settings(config, SecondOrderConfig)
    request = Correction(model, forget_loader, true_labels, val, "second_order")
    retain = Samples.load(needed(retain_loader, "retain", "second_order"), "retain", device_of(request.original))
    staying = retain
    if request.correct is not None:
        staying = Samples([*retain.pairs(LOOK), *request.correct.pairs(LOOK)])
    told: list[dict[str, Any]] = []

    def direction(net: nn.Module, moving: Moving, step: int) -> tuple[Change, str | None]:
        v = request.difference(net, moving, LOOK)
        runs = [_newton(net, moving, staying, v, config, step, r) for r in range(config.repetitions)]
        told.extend(
            {"iterations": e.iterations, "settled": e.settled, "diverged": e.diverged, "updates": e.updates}
            for e in runs
        )
        bad = any(e.diverged for e in runs)
        why = f"LiSSA diverged with scale {config.scale:g}; raise it, or the damping" if bad else None
        return mean_of([e.x for e in runs]), why

    return request.run(config, direction, progress, {"estimates": told})


def _newton(
    net: nn.Module, moving: Moving, staying: Samples, v: Change, config: SecondOrderConfig, step: int, repetition: int
) -> Estimate:
    generator = torch.Generator().manual_seed(config.seed + 7919 * step + 104729 * repetition)
    count = len(staying)
    stands_for = count if config.full_sum else min(config.batch_size, count)
    limit = config.iterations or 100 * math.ceil(count / config.batch_size)
    batches = _endlessly(staying, config.batch_size, generator)

    def product(_: int, u: Change) -> Change:
        inputs, labels = next(batches)
        along = hessian_product(net, moving, inputs, labels, u)
        return {name: part * (stands_for / len(labels)) for name, part in along.items()}

    return lissa(product, v, config.scale, config.damping, limit, config.patience)


def _endlessly(samples: Samples, size: int, generator: torch.Generator) -> Iterator[tuple[Inputs, Tensor]]:
    while True:
        for inputs, labels, _ in samples.batches(size, generator):
            yield inputs, labels


FIRST_ORDER = Method(
    "first_order",
    "First order",
    first_order,
    FirstOrderConfig,
    frozenset({"forget", "true labels"}),
    "Warnecke et al., NDSS 2023",
)
SECOND_ORDER = Method(
    "second_order",
    "Second order",
    second_order,
    SecondOrderConfig,
    frozenset({"forget", "retain", "true labels"}),
    "Warnecke et al., NDSS 2023",
)
