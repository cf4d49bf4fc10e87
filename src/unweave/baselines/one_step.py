"""What the methods of this folder that compute one change of the weights have in common: the door and the way out.

A change is a dict from parameter names, as in ``named_parameters()``, to tensors of the parameters' shapes. Methods
work on a duplicate of the model in eval mode, so batch norm always uses its running statistics.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from unweave.baselines.contract import BaselineResult
from unweave.batches import Loader, checked, device_of, logits_of, reusable
from unweave.errors import ConfigError, DataError, ModelError
from unweave.fsdp import require_whole
from unweave.rest import at_rest, check_model, duplicate, unwrap

Settings = TypeVar("Settings")

LOOK = 512
"""Samples in one forward pass where nothing is kept for a backward pass."""


def opened(model: nn.Module) -> nn.Module:
    """The model without wrappers, once it is known to be usable.

    Raises:
        ModelError: not a module, spread over ranks, or with weights that are not finite.
    """
    original = unwrap(model)
    require_whole(original)
    check_model(original)
    return original


def settings(config: Settings | None, kind: type[Settings]) -> Settings:
    """The settings passed, or the defaults.

    Raises:
        ConfigError: settings of another method.
    """
    if config is not None and not isinstance(config, kind):
        raise ConfigError(f"config is a {type(config).__name__}. Pass {kind.__name__}(...).")
    return config if config is not None else kind()


def needed(loader: Loader | None, what: str, method: str) -> Loader:
    """The loader, which the method cannot do without.

    Raises:
        DataError: it is None.
    """
    if loader is None:
        raise DataError(f"{method} needs the {what} samples. Pass them as a loader of (inputs, labels).")
    return loader


def again(loader: Loader | None) -> Loader | None:
    """A loader that can be walked over more than once, or None."""
    return None if loader is None else reusable(loader)


def check_positive(config: object, names: Iterable[str], *, zero: bool = False) -> None:
    """Refuse settings that are not finite numbers above zero (or, with ``zero``, not below).

    Raises:
        ConfigError: with the name, the value and what is supported.
    """
    for name in names:
        value = getattr(config, name)
        number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and not zero):
            raise ConfigError(f"Invalid {name}: {value!r}. Supported: a number {'from' if zero else 'above'} 0.")


def check_flags(config: object, names: Iterable[str]) -> None:
    """Refuse settings that are neither True nor False.

    Raises:
        ConfigError: with the name, the value and what is supported.
    """
    for name in names:
        if not isinstance(getattr(config, name), bool):
            raise ConfigError(f"Invalid {name}: {getattr(config, name)!r}. Supported: True, False.")


def check_integers(config: object, least: Mapping[str, int]) -> None:
    """Refuse settings that are not integers from some least value.

    Raises:
        ConfigError: with the name, the value and what is supported.
    """
    for name, low in least.items():
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ConfigError(f"Invalid {name}: {value!r}. Supported: an integer from {low}.")


def trainable(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training moved: those that require gradients, tied ones once.

    Raises:
        ModelError: there are none.
    """
    found = {name: p for name, p in net.named_parameters() if p.requires_grad}
    if not found:
        raise ModelError("No parameter of the model requires gradients. Call model.requires_grad_(True) first.")
    return found


def error_of(net: nn.Module, loader: Loader, what: str) -> float:
    """Percent of the samples whose label the model does not predict."""
    wrong, total = torch.zeros((), dtype=torch.long, device=device_of(net)), 0
    with at_rest(net, convolutions=None):
        for inputs, labels in checked(loader, what, device_of(net)):
            wrong += (logits_of(net, inputs, labels).argmax(1) != labels).sum()
            total += len(labels)
    return 100.0 * float(wrong) / total


def look(net: nn.Module, step: int, forget: Loader | None, val: Loader | None) -> dict[str, float]:
    """One entry of a history: the errors in percent on what was passed."""
    seen = {"step": float(step)}
    for what, loader in (("forget", forget), ("val", val)):
        if loader is not None:
            seen[f"{what}_error"] = error_of(net, loader, what)
    return seen


@dataclass(frozen=True)
class Closing:
    """What a method hands over at its end besides the change itself."""

    config: Any
    began: float
    done: str
    """Why it stopped when all went well."""
    extras: dict[str, Any]
    forget: Loader | None = None
    val: Loader | None = None
    failed: str | None = None
    """Why it gave up; the weights then stay as they were."""


def with_change(original: nn.Module, change: Mapping[str, Tensor], closing: Closing) -> BaselineResult:
    """A copy of the model with the change added to its parameters; without it where it is not finite."""
    net = duplicate(original).eval()
    history = [look(net, 0, closing.forget, closing.val)]
    failed = closing.failed
    if failed is None and not all(bool(torch.isfinite(delta).all()) for delta in change.values()):
        failed = "the change of the weights is not finite, so they were left as they were"
    if failed is None:
        parameters = dict(net.named_parameters())
        with torch.no_grad():
            for name, delta in change.items():
                parameters[name].copy_(parameters[name].double() + delta)
        history.append(look(net, 1, closing.forget, closing.val))
    return BaselineResult(
        model=net,
        history=history,
        stopped=failed or closing.done,
        ok=failed is None,
        config=closing.config,
        seconds=time.perf_counter() - closing.began,
        extras=closing.extras,
    )
