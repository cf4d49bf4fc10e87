"""Retrain from scratch without the forget set: what all the others are measured by, and what they save.

The defaults are the recipe by which the authors of PGU (Hoang et al., WACV 2024) train AllCNN on CIFAR-10. Use the one
your model was trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.preparation import needed, own_randomness, seeded, settings, untouched
from unweave.baselines.recipe import Recipe
from unweave.baselines.reset import reset
from unweave.baselines.training import Losses, Training
from unweave.errors import ModelError
from unweave.fit import Progress
from unweave.reading.batches import Loader, device_of
from unweave.reading.rest import duplicate


@dataclass(frozen=True, kw_only=True)
class RetrainConfig(Recipe):
    """SGD with momentum, the learning rate falling exponentially."""

    epochs: int = 100
    lr: float = 0.01
    lr_end: float | None = 0.0005
    schedule: str = "exponential"
    weight_decay: float = 1e-4


@own_randomness
def retrain(
    model: nn.Module,
    forget_loader: Loader | None = None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: RetrainConfig | None = None,
    *,
    progress: Progress | None = None,
    build: Callable[[], nn.Module] | None = None,
) -> BaselineResult:
    """Train a new network on the retain set alone.

    Args:
        model: says what the network is like; none of its weights is used.
        forget_loader: not looked at.
        retain_loader: the training set without the samples to forget.
        val: where given, its error after every epoch is in the history.
        config: see :class:`RetrainConfig`.
        progress: called as ``progress("retrain", epochs_done, epochs)``.
        build: returns a new network; None calls ``reset_parameters()`` of every module of a copy.

    Raises:
        DataError: no retain set. ModelError: a module that cannot be reset, or a built network that is not new.
    """
    config = settings(config, RetrainConfig)
    retain = needed(retain_loader, "retain", "retrain")
    original = untouched(model)
    training = Training("retrain", _fresh(original, config.seed, build), config, val, progress)
    return training.run(on_retained(training, retain), [retain])


def on_retained(training: Training, retain: Loader) -> Losses:
    """Cross-entropy on the retain set: what ``retrain``, ``fine_tune``, ``eu_k`` and ``cf_k`` descend."""

    def losses(epoch: int) -> Iterator[tuple[str, Tensor]]:
        for inputs, labels in training.batches(retain, "retain"):
            yield "retain", F.cross_entropy(*training.logits(inputs, labels))

    return losses


def _fresh(original: nn.Module, seed: int, build: Callable[[], nn.Module] | None) -> nn.Module:
    device = device_of(original)
    if build is None:
        net = duplicate(original)
        reset(dict(net.named_modules()), seed, device)
        return net
    with seeded(seed, device):
        net = build()
    if not isinstance(net, nn.Module):
        raise ModelError(f"build= returned a {type(net).__name__}. Supported: a function that returns a new network.")
    if {id(p) for p in net.parameters()} & {id(p) for p in original.parameters()}:
        raise ModelError("build= returned the network that was passed in. Supported: a function that builds a new one.")
    return net.to(device)


RETRAIN = Method(
    "retrain", "Retrain", retrain, RetrainConfig, frozenset({"retain"}), "recipe of Hoang et al., WACV 2024"
)
