"""drop_classes(): after a class was forgotten, take its row out of the classifier."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import nn

from unweave.errors import ConfigError, ModelError
from unweave.rest import duplicate, unwrap


def drop_classes(model: nn.Module, classes: Iterable[int]) -> tuple[nn.Module, dict[int, int]]:
    """A smaller model without the logits of some classes, and the map from the old labels to the new ones.

    The last ``nn.Linear`` in the order of ``named_modules()`` is taken for the classifier.

    Raises:
        ConfigError: a class that does not exist, none, or so many that fewer than two would be left.
        ModelError: no linear layer to shorten.
    """
    smaller = duplicate(unwrap(model))
    linears = [(name, m) for name, m in smaller.named_modules() if isinstance(m, nn.Linear)]
    if not linears:
        raise ModelError(f"{type(model).__name__} has no nn.Linear layer whose rows could be its classes.")
    name, last = linears[-1]
    try:
        dropped = sorted({operator.index(c) for c in classes})
    except TypeError as error:
        raise ConfigError(f"Invalid classes: {classes!r}. Supported: a list of class indices.") from error
    count = last.out_features
    if not dropped or dropped[0] < 0 or dropped[-1] >= count:
        raise ConfigError(f"Invalid classes: {dropped}. Layer {name!r} has the classes 0 to {count - 1}.")
    kept = [c for c in range(count) if c not in dropped]
    if len(kept) < 2:
        raise ConfigError(f"Dropping {len(dropped)} of {count} classes leaves {len(kept)}. At least two must stay.")
    last.weight = nn.Parameter(last.weight.detach()[kept].clone(), requires_grad=last.weight.requires_grad)
    if last.bias is not None:
        last.bias = nn.Parameter(last.bias.detach()[kept].clone(), requires_grad=last.bias.requires_grad)
    last.out_features = len(kept)
    return smaller, {old: new for new, old in enumerate(kept)}


def check_forget_classes(labels: torch.Tensor, classes: int) -> None:
    """Refuse to forget every class at once.

    Raises:
        ConfigError: the forget set has samples of all classes, so that nothing would be retained.
    """
    present = labels.unique()
    if len(present) >= classes:
        raise ConfigError(
            f"The forget set has samples of all {classes} classes; forgetting every class leaves no model. "
            "Use task='samples' to forget samples of several classes."
        )
