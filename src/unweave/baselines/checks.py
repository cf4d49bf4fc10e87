"""What a setting may be, checked when it is set: every error names the setting, its value and what is supported."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

from unweave.errors import ConfigError


def one_of(config: object, name: str, known: tuple[object, ...]) -> None:
    """Raise a ConfigError unless a setting has one of these values."""
    value = getattr(config, name)
    if not any(value is k or (isinstance(value, str) and value == k) for k in known):
        raise ConfigError(f"Invalid {name}: {value!r}. Supported: {', '.join(map(str, known))}.")


def integer(config: object, name: str, least: int) -> None:
    """Raise a ConfigError unless a setting is an integer from ``least``."""
    value = getattr(config, name)
    if isinstance(value, bool) or not (isinstance(value, int) and value >= least):
        raise ConfigError(f"Invalid {name}: {value!r}. Supported: an integer from {least}.")


def number(config: object, name: str, holds: Callable[[float], bool], supported: str) -> None:
    """Raise a ConfigError unless a setting is a finite number for which something holds."""
    value = getattr(config, name)
    if isinstance(value, bool) or not (isinstance(value, Real) and math.isfinite(value) and holds(float(value))):
        raise ConfigError(f"Invalid {name}: {value!r}. Supported: {supported}.")


def above_zero(config: object, name: str) -> None:
    """Raise a ConfigError unless a setting is a finite number above 0."""
    number(config, name, lambda v: v > 0, "a number above 0")
