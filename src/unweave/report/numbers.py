"""Numbers as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

MINUS = "\N{MINUS SIGN}"
EN_DASH = "\N{EN DASH}"


def number(value: float, unit: str | None = None) -> str:
    """In its unit: ``auc`` 0.531, ``percent`` 35.0%, ``points`` +1.3 points, ``share`` (a fraction) 12.5%."""
    if unit == "percent":
        text = f"{value:.1f}%"
    elif unit == "points":
        text = f"{value:+.1f} points"
    elif unit == "share":
        text = f"{100 * value:.1f}%"
    else:
        text = f"{value:.3f}" if unit == "auc" or abs(value) < 100 else f"{value:,.0f}"
    return text.replace("-", MINUS)


def between(low: float, high: float, unit: str | None = None) -> str:
    """An interval, with its unit once."""
    first = number(low, unit).removesuffix(" points").removesuffix("%")
    return f"{first}{' to ' if low < 0 or unit == 'points' else EN_DASH}{number(high, unit)}"


def interval(measured: Mapping[str, float], unit: str | None = None) -> str:
    """A value with its interval, if it has one: 0.531 (0.472–0.590)."""
    if measured["low"] == measured["high"]:
        return number(measured["value"], unit)
    return f"{number(measured['value'], unit)} ({between(measured['low'], measured['high'], unit)})"


def allowed(bounds: Sequence[float | None], unit: str | None = None) -> str:
    """What passes, in words."""
    low, high = bounds
    if low is None and high is None:
        return "anything"
    if low is None or high is None:
        return f"at most {number(high, unit)}" if high is not None else f"at least {number(low or 0.0, unit)}"
    return between(low, high, unit)


def count(value: float, singular: str, plural: str | None = None) -> str:
    """1 network, 3 networks, 1,200 samples."""
    return f"{value:,} {singular if value == 1 else plural or singular + 's'}"


def seconds(value: float) -> str:
    """6.2 s, 4 min 10 s, 3 h 20 min."""
    if value < 60:
        return f"{value:.1f} s" if value >= 0.1 or value == 0 else f"{1000 * value:.2g} ms"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def times(ratio: float) -> str:
    """A duration in terms of another: 1.6 times faster, 1.2 times slower, as long."""
    if 0.95 <= ratio <= 1.05:
        return "as long as retraining"
    factor, word = (1 / ratio, "faster") if ratio < 1 else (ratio, "slower")
    return f"{factor:.1f}× {word}" if factor < 10 else f"{factor:,.0f}× {word}"


def moment(text: str) -> str:
    """2026-03-01T10:02:11+00:00 → 1 March 2026, 10:02 UTC; what is no ISO 8601 stays as it is."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = " UTC" if when.utcoffset() is None or not when.utcoffset() else f" {when:%z}"
    return f"{when.day} {when:%B %Y, %H:%M}{zone}"


def flattened(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Any JSON as rows of a dotted path and a short text."""
    if isinstance(value, Mapping) and value:
        return [row for key, inner in value.items() for row in flattened(inner, f"{path}.{key}" if path else str(key))]
    if isinstance(value, (list, tuple)):
        if any(isinstance(inner, (Mapping, list, tuple)) for inner in value):
            return [row for i, inner in enumerate(value) for row in flattened(inner, f"{path}[{i}]")]
        text = ", ".join(_short(inner) for inner in value)
        return [(path, text if len(text) <= 300 else f"{text[:300]} … ({len(value)} values)")]
    return [(path, _short(value))]


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return EN_DASH if value is None or value == {} else str(value)
