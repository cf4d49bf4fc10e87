"""Relearn time: how many steps bring a network back to what it once knew about the forget set.

A network that kept something relearns faster than one that never saw the samples. So the number for the unlearned
network is compared with that of a network trained without them, on the same batches in the same order, and not with
zero: plain generalisation makes relearning quick too.

A step is one of SGD with momentum on a batch of the forget set, all weights free, in eval mode (batch-norm statistics
stay, no dropout), so that two networks differ in nothing but their weights. The model passed in is never touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unweave.audit.attack import Distance, DistanceResult
from unweave.errors import ConfigError, ModelError
from unweave.reading.batches import Inputs, Loader, device_of, logits_of
from unweave.reading.rest import at_rest, duplicate, unwrap
from unweave.reading.samples import Samples

ORDERS = 3


@dataclass(frozen=True)
class Relearning:
    """How to relearn; the same for every network that is compared."""

    lr: float = 0.01
    momentum: float = 0.9
    batch_size: int = 64
    max_steps: int = 200

    def __post_init__(self) -> None:
        if not (self.lr > 0 and 0 <= self.momentum < 1 and self.batch_size >= 1 and self.max_steps >= 1):
            raise ConfigError(
                f"Invalid settings: {self}. Supported: lr > 0, momentum in [0, 1), batch_size >= 1, max_steps >= 1."
            )


def relearn_steps(
    model: nn.Module,
    forget: Loader,
    *,
    target_error: float | None = None,
    target_loss: float | None = None,
    how: Relearning | None = None,
    seed: int = 0,
) -> int | None:
    """Steps on the forget set until its error or its loss is down to a target; None if that takes too many.

    Args:
        model: left untouched.
        forget: yields (inputs, labels).
        target_error: percent of the forget set; give this or ``target_loss``.
        target_loss: mean cross-entropy on the forget set.
        how: learning rate and the like.
        seed: of the order of the batches.

    Raises:
        ConfigError: no target or two, or a learning rate so large that it diverges.
        DataError: an unusable loader. ModelError: an unusable model.
    """
    if (target_error is None) == (target_loss is None):
        raise ConfigError("Give one of target_error= and target_loss=.")
    how, net = how or Relearning(), duplicate(unwrap(model))
    samples = Samples.load(forget, "forget", device_of(net))
    most = {name: np.inf if t is None else t for name, t in (("loss", target_loss), ("error", target_error))}
    order = torch.Generator().manual_seed(seed)
    with at_rest(net, gradients=True):
        optimiser = torch.optim.SGD([p.requires_grad_() for p in net.parameters()], how.lr, momentum=how.momentum)
        for steps, (inputs, labels) in enumerate(_forever(samples, how.batch_size, order)):
            loss, error = _on(net, samples, how.batch_size, steps)
            if loss <= most["loss"] and error <= most["error"]:
                return steps
            if steps == how.max_steps:
                break
            optimiser.zero_grad()
            F.cross_entropy(logits_of(net, inputs, labels), labels).backward()
            optimiser.step()
    return None


def relearn_time(
    unlearned: nn.Module,
    forget: Loader,
    *,
    original: nn.Module,
    retrained: nn.Module | None = None,
    how: Relearning | None = None,
    by: str = "error",
    orders: int = ORDERS,
    seed: int = 0,
) -> DistanceResult:
    """Steps that the unlearned and the retrained network need to know the forget set as well as the original does.

    The value is the median over some orders of the batches, between the lowest and the highest. A network that has not
    arrived after ``max_steps`` counts as having needed all of them; ``details["reached"]`` says how often each did.

    Args:
        unlearned: what is on trial.
        forget: yields (inputs, labels).
        original: sets the target.
        retrained: any network trained without the forget set; without one the number has no yardstick.
        how: learning rate and the like.
        by: "error", or "loss", which takes far longer where the original is saturated.
        orders: of the batches.
        seed: of the first order.

    Raises:
        ConfigError: an unknown ``by``, or no order. DataError: an unusable loader. ModelError: an unusable model.
    """
    if by not in ("error", "loss") or orders < 1:
        raise ConfigError(f"Invalid by={by!r}, orders={orders}. Supported: 'error' or 'loss', at least one order.")
    how, batches = how or Relearning(), list(forget)
    first = unwrap(original)
    with at_rest(first):
        loss, error = _on(first, Samples.load(batches, "forget", device_of(first)), how.batch_size)
    target = {"target_error": error} if by == "error" else {"target_loss": loss}
    distances: dict[str, Distance] = {}
    reached: dict[str, int] = {}
    for name, model in (("unlearned", unlearned), ("retrained", retrained)):
        if model is not None:
            took = [relearn_steps(model, batches, **target, how=how, seed=seed + i) for i in range(orders)]
            steps = np.array([how.max_steps if t is None else t for t in took], dtype=np.float64)
            distances[name] = Distance(float(np.median(steps)), float(steps.min()), float(steps.max()), models=1)
            reached[name] = sum(t is not None for t in took)
    return DistanceResult(
        name="relearn",
        title="Relearn time",
        explanation=(
            "Training steps on the forget set until the network knows it as well as before. Fewer than a network needs "
            "that never saw the samples: something was kept."
        ),
        unlearned=distances["unlearned"],
        original=Distance(0.0, models=1),
        retrained=distances.get("retrained"),
        details={"reached": reached, "orders": orders, **target},
    )


def _forever(samples: Samples, size: int, order: torch.Generator) -> Iterator[tuple[Inputs, Tensor]]:
    while True:
        yield from ((inputs, labels) for inputs, labels, _ in samples.batches(size, order))


@torch.no_grad()
def _on(net: nn.Module, samples: Samples, size: int, steps: int = 0) -> tuple[float, float]:
    """Mean loss and percent wrong, after so many steps."""
    loss, wrong = 0.0, 0
    try:
        for inputs, labels in samples.pairs(max(size, 256)):
            logits = logits_of(net, inputs, labels).double()
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
            wrong += int((logits.argmax(1) != labels).sum())
    except ModelError as error:
        if steps == 0:
            raise
        raise ConfigError(f"Relearning diverged after {steps} steps. Choose a smaller learning rate.") from error
    return loss / len(samples), 100.0 * wrong / len(samples)
