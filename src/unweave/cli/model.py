"""The network of a command: built by the user's factory, with the weights of a file, on a device."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unweave.cli.configfile import Values
from unweave.cli.imports import call
from unweave.cli.tensorfile import read_tensors
from unweave.errors import ConfigError, MismatchError, ModelError, StoreError

REMEDY = "Save the weights with safetensors.torch.save_file(model.state_dict(), path) or torch.save of the same."

TOGETHER = "Name the factory, [model.arguments] and weights that belong together."
DROPPED = (
    "If --drop has cut its classes off, name the weights it was cut from (and their Grams): requests and audits go on "
    "from those, and what they give is cut again."
)


def load_model(values: Values, weights: Path | None = None) -> nn.Module:
    """The network that ``[model]`` describes, with its weights or those of another file.

    Raises:
        ConfigError: a factory that cannot be found or fails, or a device that is not there.
        ModelError: the factory returns something else than a network.
        StoreError: weights that cannot be read.
        MismatchError: weights of another network.
    """
    device = _device(values.get("model", "device"))
    factory = values.require("model", "factory")
    model = call(factory, "[model] factory", values.get("model", "arguments"))
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"[model] factory: {factory!r} returned a {type(model).__name__}. Supported: a function that returns a "
            "torch.nn.Module."
        )
    weights = weights or values.get("model", "weights")
    if weights is not None:
        load_weights(model, weights)
    return model.to(device)


def _device(text: str) -> torch.device:
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"Invalid [model] device: {text!r} ({reason}). Supported here: auto, {_devices()}."
        ) from error
    return device


def _devices() -> str:
    return ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights of a file into a network, all of them or none.

    Raises:
        StoreError: not a file of tensors by name.
        MismatchError: a name that is missing or too many, or a tensor of another shape; the first one is named.
    """
    state = read_tensors(path, REMEDY)
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        keys = f" with the keys {', '.join(map(str, list(state)[:5]))}" if isinstance(state, Mapping) else ""
        raise StoreError(f"{path} holds a {type(state).__name__}{keys}, not a state dict (name to tensor). {REMEDY}")
    own = model.state_dict()
    state = {**_tied(own, state), **state}
    _require_match(path, own, state)
    model.load_state_dict(state)


def _tied(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors the file left out because the network holds them under another name as well (tied weights)."""
    places: dict[tuple[object, ...], str] = {}
    for name, value in own.items():
        if name in state and isinstance(value, Tensor) and _place(value) is not None:
            places[_place(value) or ()] = name
    missing = {name: _place(value) for name, value in own.items() if name not in state and isinstance(value, Tensor)}
    return {name: state[places[place]] for name, place in missing.items() if place in places}


def _place(value: Tensor) -> tuple[object, ...] | None:
    """Where a tensor lies in memory; None where it has no memory of its own yet."""
    if is_lazy(value) or value.numel() == 0 or value.is_meta:
        return None
    return value.device, value.data_ptr(), value.shape, value.stride()


def _require_match(path: Path, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    counts = f"{len(missing)} missing, {len(unexpected)} unexpected"
    if missing:
        first, shape = missing[0], _shape(own[missing[0]])
        near = difflib.get_close_matches(first, unexpected, n=1, cutoff=0.0)
        extra = f"; it has {near[0]!r} {_shape(state[near[0]])} instead" if near else ""
        raise MismatchError(f"{path} has no {first!r}, which the model has as {shape}{extra} ({counts}). {TOGETHER}")
    if unexpected:
        first, shape = unexpected[0], _shape(state[unexpected[0]])
        raise MismatchError(f"{path} has {first!r} {shape}, which the model has not ({counts}). {TOGETHER}")
    others = [name for name, value in own.items() if _shape(value) not in ("", _shape(state[name]))]
    if others:
        first, remedy = others[0], f"{DROPPED} Else: {TOGETHER}" if _is_cut(others, own, state) else TOGETHER
        raise MismatchError(
            f"{path} has {first!r} as {_shape(state[first])}, the model as {_shape(own[first])}. {remedy}"
        )


def _is_cut(others: list[str], own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> bool:
    """Whether all that differs is that one layer has fewer rows in the file, as after ``--drop``."""
    shapes = [(own[name].shape, state[name].shape) for name in others]
    fewer = all(len(a) == len(b) and a[0] > b[0] and a[1:] == b[1:] for a, b in shapes)
    return fewer and len({name.rpartition(".")[0] for name in others}) == 1


def _shape(value: Tensor) -> str:
    """A shape in words; empty where it is not settled before the first batch (lazy layers)."""
    return "" if is_lazy(value) or not isinstance(value, Tensor) else str(list(value.shape))
