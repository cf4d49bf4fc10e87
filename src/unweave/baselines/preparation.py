"""What every method does before its work: settings, data and model checked, and randomness of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import nn

from unweave.behaviour.outcomes import Outcomes, observe
from unweave.errors import ConfigError, DataError, ModelError
from unweave.ranks.fsdp import require_whole
from unweave.reading.batches import Doubts, Loader, checked, device_of, reusable
from unweave.reading.rest import at_rest, check_model, duplicate, unwrap

Settings = TypeVar("Settings")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def settings(config: Settings | None, kind: type[Settings]) -> Settings:
    """The settings passed, or a method's defaults.

    Raises:
        ConfigError: settings of another method.
    """
    if config is not None and not isinstance(config, kind):
        raise ConfigError(f"config is a {type(config).__name__}. Pass {kind.__name__}(...).")
    return kind() if config is None else config


def needed(loader: Loader | None, what: str, method: str) -> Loader:
    """A loader that a method cannot do without, made so that it can be walked over more than once.

    Raises:
        DataError: it is missing.
    """
    if loader is None:
        argument = "val" if what == "val" else f"{what}_loader"
        raise DataError(f"{method} needs the {what} set. Pass {argument}=.")
    return reusable(loader)


def again(loader: Loader | None) -> Loader | None:
    """A loader that a method can do without, made so that it can be walked over more than once."""
    return None if loader is None else reusable(loader)


def untouched(model: nn.Module) -> nn.Module:
    """The model inside its wrappers, if a copy of it can be changed.

    Raises:
        ModelError: values that are not finite, weights that are spread over ranks, or none at all.
    """
    original = unwrap(model)
    require_whole(original)
    check_model(original)
    device_of(original)
    return original


def trainable(net: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that training moved: those that require a gradient, tied ones once.

    Raises:
        ModelError: there are none.
    """
    found = {name: p for name, p in net.named_parameters() if p.requires_grad}
    if not found:
        raise ModelError("No weight of the model requires a gradient. Call requires_grad_() on what was trained.")
    return found


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


def observed(net: nn.Module, loader: Loader, what: str) -> Outcomes:
    """How a network behaves on a loader as it is now, in eval mode.

    Nothing else notices: a loader takes random numbers for every pass over it, and they are put back.
    """
    device = device_of(net)
    doubts = Doubts(later=device.type != "cpu")
    with seeded(0, device), at_rest(net, convolutions=None):
        return observe(net, checked(loader, what, device, doubts), doubts)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers of the CPU and of a device from a seed inside, and the user's own afterwards.

    ``torch.manual_seed`` would seed every GPU there is, also those whose state is not put back.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def own_randomness(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A method all of whose random numbers, those that its loaders draw included, come from ``config.seed`` (or 0)."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        given = signature.bind(*args, **kwargs).arguments
        model, seed = given["model"], getattr(given.get("config"), "seed", 0)
        if not isinstance(model, nn.Module) or not any(True for _ in model.parameters()):
            return method(*args, **kwargs)  # which says what is wrong with it
        with seeded(seed, device_of(model)):
            return method(*args, **kwargs)

    return run
