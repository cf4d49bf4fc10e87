"""EU-k and CF-k: train the last k layers on the retain set, from scratch (exact unlearning) or on (forgetting).

Layers are counted as :func:`unweave.layers.find_layers` finds them. Every module from the first of the k onwards moves
with them (norm layers above all), everything before keeps every bit, running statistics included.

Optimiser, schedule and clipping are those of the authors (Goel et al., arXiv 2201.06640) for ResNet-110 on CIFAR-10;
k = 3 is that of PGU's comparison (they take 10 and 50 of the 110). Unlike theirs, EU-k also resets the norm layers, and
frozen norm layers stay at rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from unweave.baselines.checks import integer
from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.preparation import needed, own_randomness, settings, trainable, untouched
from unweave.baselines.recipe import Recipe
from unweave.baselines.reset import reset
from unweave.baselines.retrain import on_retained
from unweave.baselines.training import Training
from unweave.errors import ConfigError, ModelError
from unweave.fit import Progress
from unweave.layers import find_layers
from unweave.reading.batches import Loader
from unweave.reading.rest import duplicate


@dataclass(frozen=True, kw_only=True)
class LastLayersConfig(Recipe):
    """SGD with momentum; the learning rate falls from 0.1 to 0.005 over 1, 2, 4, … epochs."""

    k: int = 3
    """How many of the last weight layers move."""
    lr: float = 0.1
    lr_end: float | None = 0.005
    schedule: str = "restarts"
    weight_decay: float = 5e-5
    clip: float | None = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        integer(self, "k", 1)


@dataclass(frozen=True, kw_only=True)
class EUkConfig(LastLayersConfig):
    """EU-k trains the last layers from scratch, so it takes its time."""

    epochs: int = 62


@dataclass(frozen=True, kw_only=True)
class CFkConfig(LastLayersConfig):
    """CF-k goes on from where the last layers are."""

    epochs: int = 30


@own_randomness
def eu_k(
    model: nn.Module,
    forget_loader: Loader | None = None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: EUkConfig | None = None,
    *,
    progress: Progress | None = None,
) -> BaselineResult:
    """Reset the last k layers and train them on the retain set. The forget set is not looked at.

    Raises:
        DataError: no retain set. ConfigError: k is more than there are. ModelError: a layer that cannot be reset.
    """
    return _last_layers("eu_k", model, retain_loader, val, settings(config, EUkConfig), progress, afresh=True)


@own_randomness
def cf_k(
    model: nn.Module,
    forget_loader: Loader | None = None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: CFkConfig | None = None,
    *,
    progress: Progress | None = None,
) -> BaselineResult:
    """Go on training the last k layers on the retain set. The forget set is not looked at.

    Raises:
        DataError: no retain set. ConfigError: k is more than there are.
    """
    return _last_layers("cf_k", model, retain_loader, val, settings(config, CFkConfig), progress, afresh=False)


def _last_layers(
    name: str,
    model: nn.Module,
    retain_loader: Loader | None,
    val: Loader | None,
    config: LastLayersConfig,
    progress: Progress | None,
    *,
    afresh: bool,
) -> BaselineResult:
    retain = needed(retain_loader, "retain", name)
    training = Training(name, duplicate(untouched(model)), config, val, progress)
    end = last_layers(training.net, config.k)
    if afresh:
        reset(end.modules, config.seed, training.device)
    training.moving, training.still = end.weights, end.still
    return training.run(on_retained(training, retain), [retain], {"layers": end.layers})


@dataclass(frozen=True)
class LastLayers:
    """The end of a network that moves while what comes before it keeps every bit."""

    layers: list[str]
    """The k weight layers it has."""
    modules: dict[str, nn.Module]
    """Every module from the first of them onwards, by its name."""
    weights: list[nn.Parameter]
    """Those of them that training moves."""
    still: set[nn.Module]
    """Modules before them that would gather statistics in training."""


def last_layers(net: nn.Module, k: int) -> LastLayers:
    """The last k weight layers of a network, and what goes with them.

    Raises:
        ConfigError: there are fewer than k. ModelError: none of their weights requires a gradient.
    """
    layers, moving = moving_modules(net, k)
    own = {id(p) for module in moving.values() for p in module.parameters(recurse=False)}
    weights = [p for p in trainable(net).values() if id(p) in own]
    if not weights:
        raise ModelError(f"No weight of {', '.join(layers)} requires a gradient. Call requires_grad_() on them.")
    still = {module for name, module in net.named_modules() if name not in moving and _gathers(module)}
    return LastLayers(layers, moving, weights, still)


def _gathers(module: nn.Module) -> bool:
    """Whether a module may gather statistics in training: a leaf with buffers. Dropout, which has none, stays on."""
    return any(True for _ in module.buffers(recurse=False)) and not any(True for _ in module.children())


def moving_modules(net: nn.Module, k: int) -> tuple[list[str], dict[str, nn.Module]]:
    """The names of the last k weight layers, and every module from the first of them onwards.

    Raises:
        ConfigError: there are fewer than k.
    """
    layers = find_layers(net, k)
    if len(layers) < k:
        raise ConfigError(f"Invalid k={k}: the model has {len(layers)} weight layers. Supported: 1 to {len(layers)}.")
    modules = dict(net.named_modules())
    order = {name: place for place, name in enumerate(modules)}
    # A weight that several layers share counts where it is used last.
    first = min(max(order[owner] for owner in layer.owners) for layer in layers.values())
    return list(layers), {name: module for name, module in modules.items() if order[name] >= first}


_SOURCE = "Goel et al., arXiv 2201.06640"
EU_K = Method("eu_k", "EU-k", eu_k, EUkConfig, frozenset({"retain"}), _SOURCE)
CF_K = Method("cf_k", "CF-k", cf_k, CFkConfig, frozenset({"retain"}), _SOURCE)
