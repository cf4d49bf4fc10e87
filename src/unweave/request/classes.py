"""drop_classes(): after a class was forgotten, take its row out of the classifier."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from torch import nn

from unweave.errors import ConfigError, ModelError
from unweave.reading.rest import duplicate, unwrap


def drop_classes(
    model: nn.Module, classes: Iterable[int], layer: str | None = None
) -> tuple[nn.Module, dict[int, int]]:
    """A smaller model without the logits of some classes, and the map from the old labels to the new ones.

    No request can go on from the smaller model, for no Grams belong to it: keep ``result.model`` and ``result.grams``
    for later ones, and cut again after each.

    Args:
        model: the model to shorten; it is left untouched.
        classes: their indices.
        layer: the layer that computes the logits, an ``nn.Linear`` or a convolution, by its ``named_modules()`` path.
            None takes the last ``nn.Linear`` in the order of ``named_modules()``: name the layer where that is not it.

    Raises:
        ConfigError: a class that does not exist, none, or so many that fewer than two would be left.
        ModelError: no such layer, or one whose weight is parametrised.
    """
    smaller = duplicate(unwrap(model))
    name, last = _classifier(smaller, layer)
    try:
        dropped = sorted({operator.index(c) for c in classes})
    except TypeError as error:
        raise ConfigError(f"Invalid classes: {classes!r}. Supported: a list of class indices.") from error
    count = last.weight.shape[0]
    if not dropped or dropped[0] < 0 or dropped[-1] >= count:
        raise ConfigError(f"Invalid classes: {dropped}. Layer {name!r} has the classes 0 to {count - 1}.")
    kept = [c for c in range(count) if c not in dropped]
    if len(kept) < 2:
        raise ConfigError(f"Dropping {len(dropped)} of {count} classes leaves {len(kept)}. At least two must stay.")
    last.weight = nn.Parameter(last.weight.detach()[kept].clone(), requires_grad=last.weight.requires_grad)
    if last.bias is not None:
        last.bias = nn.Parameter(last.bias.detach()[kept].clone(), requires_grad=last.bias.requires_grad)
    setattr(last, "out_features" if isinstance(last, nn.Linear) else "out_channels", len(kept))
    return smaller, {old: new for new, old in enumerate(kept)}


def _classifier(model: nn.Module, layer: str | None) -> tuple[str, Any]:
    """The layer whose rows are the classes."""
    kinds = (nn.Linear,) if layer is None else (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    found = {name: m for name, m in model.named_modules() if isinstance(m, kinds) and layer in (None, name)}
    if not found:
        what = "no nn.Linear layer" if layer is None else f"no linear layer or convolution {layer!r}"
        raise ModelError(f"{type(model).__name__} has {what} whose rows could be its classes. Name it with layer=.")
    name, last = list(found.items())[-1]
    if "weight" not in last._parameters:
        raise ModelError(f"The weight of {name!r} is parametrised. Make it an ordinary parameter first.")
    return name, last
