"""What the methods that compute one change of the weights have in common: looks at the model, and the way out.

A change is a dict from parameter names, as in ``named_parameters()``, to tensors of the parameters' shapes. Methods
work on a duplicate of the model in eval mode, so batch norm always uses its running statistics.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unweave.baselines.contract import BaselineResult
from unweave.baselines.preparation import observed
from unweave.errors import ModelError
from unweave.reading.batches import Loader
from unweave.reading.rest import duplicate

LOOK = 512
"""Samples in one forward pass where nothing is kept for a backward pass."""


def look(net: nn.Module, step: int, forget: Loader | None, val: Loader | None) -> dict[str, float]:
    """One entry of a history: the errors in percent on what was passed."""
    seen = {"step": float(step)}
    for what, loader in (("forget", forget), ("val", val)):
        if loader is not None:
            seen[f"{what}_error"] = observed(net, loader, what).error
    return seen


def moved(
    net: nn.Module, change: Mapping[str, Tensor], step: int, forget: Loader | None, val: Loader | None
) -> dict[str, float] | None:
    """Add a change to a network and look at it; None where it, the weights or the outputs are then not finite."""
    weights = dict(net.named_parameters())
    with torch.no_grad():
        for name, delta in change.items():
            weights[name].copy_(weights[name].double() + delta)
    if not all(bool(torch.isfinite(weights[name]).all()) for name in change):
        return None
    try:
        return look(net, step, forget, val)
    except ModelError:  # it gave finite outputs in the look before the first step
        return None


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
    """A copy of the model with the change added to its parameters; without it where that leaves finite numbers."""
    net = duplicate(original).eval()
    history = [look(net, 0, closing.forget, closing.val)]
    failed = closing.failed
    if failed is None:
        seen = moved(net, change, 1, closing.forget, closing.val)
        if seen is None:
            net = duplicate(original).eval()
            failed = "with the change the weights or outputs are not finite, so they were left as they were"
        else:
            history.append(seen)
    return BaselineResult(
        model=net,
        history=history,
        stopped=failed or closing.done,
        ok=failed is None,
        config=closing.config,
        seconds=time.perf_counter() - closing.began,
        extras=closing.extras,
    )
