"""The kinds of value a setting can have: what the file may hold, and how a flag's text becomes the same value."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of value. ``fits`` judges a value from the file; ``parse`` reads a flag (ValueError: it cannot)."""

    words: str
    fits: Callable[[object], bool]
    parse: Callable[[str], object]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_list_of(fits: Callable[[object], bool], length: int | None = None) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        return isinstance(value, list) and all(map(fits, value)) and len(value) == (length or len(value))

    return check


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_pair(text: str) -> list[int]:
    numbers = [int(part) for part in _parts(text.replace("x", ","))]
    if len(numbers) != 2:
        raise ValueError(text)
    return numbers


def _parse_layers(text: str) -> int | list[str]:
    return int(text) if text.lstrip("-").isdigit() else _parts(text)


def _parse_gamma(text: str) -> float | dict[str, float]:
    if "=" not in text:
        return float(text)
    pairs = [part.rpartition("=") for part in _parts(text)]
    return {layer.strip(): float(value) for layer, _, value in pairs}


def _parse_argument(text: str) -> dict[str, object]:
    """``key=value``; the value is read as TOML where it is TOML (numbers, booleans, lists), else as text."""
    key, equals, value = text.partition("=")
    if not key.strip() or not equals:
        raise ValueError(text)
    try:
        return {key.strip(): tomllib.loads(f"value = {value}")["value"]}
    except tomllib.TOMLDecodeError:
        return {key.strip(): value}


TEXT = Kind("a text", _is_text, str)
PATH = Kind("a path", _is_text, str)
SOURCE = Kind('a path or "package.module:function"', _is_text, str)
INTEGER = Kind("an integer", _is_integer, int)
NUMBER = Kind("a number", _is_number, float)
SWITCH = Kind("true or false", lambda value: isinstance(value, bool), str)
NAMES = Kind("a list of names", _is_list_of(_is_text), _parts)
NUMBERS = Kind("a list of numbers", _is_list_of(_is_number), lambda text: [float(part) for part in _parts(text)])
PAIR = Kind("two integers, [height, width]", _is_list_of(_is_integer, 2), _parse_pair)
LAYERS = Kind(
    "a list of layer names, or a number k for the last k layers",
    lambda value: _is_integer(value) or _is_list_of(_is_text)(value),
    _parse_layers,
)
GAMMA = Kind(
    "a number, or a table with one number per layer",
    lambda value: _is_number(value) or (isinstance(value, dict) and all(map(_is_number, value.values()))),
    _parse_gamma,
)
ARGUMENTS = Kind("a table of keyword arguments", lambda value: isinstance(value, dict), _parse_argument)
