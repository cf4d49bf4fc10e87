"""What every method does before it trains: settings, data and model checked, and randomness of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from unweave.baselines.recipe import Recipe
from unweave.batches import Loader, device_of, reusable
from unweave.errors import ConfigError, DataError
from unweave.fsdp import require_whole
from unweave.rest import check_model, duplicate, unwrap

Settings = TypeVar("Settings", bound=Recipe)


def settings(config: Settings | None, kind: type[Settings]) -> Settings:
    """The settings passed, or a method's defaults.

    Raises:
        ConfigError: settings of another method.
    """
    if config is not None and not isinstance(config, kind):
        raise ConfigError(f"config is a {type(config).__name__}. Pass {kind.__name__}(...).")
    return kind() if config is None else config


def needed(loader: Loader | None, what: str, method: str) -> Loader:
    """A loader that a method cannot do without, made so that it can be walked over every epoch.

    Raises:
        DataError: it is missing.
    """
    if loader is None:
        argument = "val" if what == "val" else f"{what}_loader"
        raise DataError(f"{method} needs the {what} set. Pass {argument}=.")
    return reusable(loader)


def untouched(model: nn.Module) -> nn.Module:
    """The model inside its wrappers, if a copy of it can be trained.

    Raises:
        ModelError: values that are not finite, weights that are spread over ranks, or none at all.
    """
    original = unwrap(model)
    require_whole(original)
    check_model(original)
    device_of(original)
    return original


def teacher_of(original: nn.Module) -> nn.Module:
    """A frozen copy in eval mode, to learn from while the original stays untouched."""
    return duplicate(original).eval().requires_grad_(False)


def length(loader: Loader, asked: str) -> int:
    """The number of batches of a loader.

    Raises:
        DataError: it does not tell.
    """
    if not isinstance(loader, Sized):
        raise DataError(f"{asked} needs loaders that know their length. Pass a list, or a DataLoader of a map dataset.")
    try:
        return len(loader)
    except TypeError as error:
        raise DataError(f"{asked} needs loaders that know their length: {error}.") from error


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed inside, and the user's own afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
