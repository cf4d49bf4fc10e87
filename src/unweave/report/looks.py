"""What is drawn how: the same network has the same colour, dash and shape everywhere.

Colours are names of custom properties that ``style.css`` defines for light, dark and paper, so nothing is drawn again
when the reader's theme changes. They are told apart by colour-blind readers (after Okabe and Ito), and never alone:
dash or shape says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unweave.report.markup import Markup, join, tag

MODELS = ("original", "unlearned", "retrained")
PARTS = {"forget": "Samples to forget", "retained": "Remaining training samples", "held out": "New samples"}
OUTCOMES = {"pass": "Pass", "fail": "Fail", "inconclusive": "Inconclusive"}


@dataclass(frozen=True)
class Look:
    """Of one thing in every chart it is in."""

    colour: str
    dash: tuple[int, ...]
    shape: str


LOOKS = {
    "original": Look("var(--original)", (6, 4), "square"),
    "unlearned": Look("var(--unlearned)", (1, 0), "circle"),
    "retrained": Look("var(--retrained)", (2, 3), "diamond"),
}

SHAPES = {
    "square": "M6 2h8v8h-8z",
    "circle": "M5.5 6a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    "diamond": "M10 0.5l5 5.5l-5 5.5l-5-5.5z",
    "triangle-up": "M10 1l5 9.5h-10z",
    "triangle-down": "M10 11l5-9.5h-10z",
    "cross": "M8.5 1h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
}


def look_of_run(i: int) -> Look:
    """Of the i-th of several runs: six colours, four dashes and six shapes, out of step."""
    dashes = ((1, 0), (6, 4), (2, 3), (8, 3, 2, 3))
    return Look(f"var(--run-{i % 6 + 1})", dashes[(i + i // 6) % 4], list(SHAPES)[(i + i // 6) % 6])


def encode(looks: Mapping[str, Look], *channels: str) -> dict[str, Any]:
    """Vega-Lite encodings of the field ``who`` by these looks; the legend is ours, in HTML."""
    parts = {"color": "colour", "fill": "colour", "stroke": "colour", "strokeDash": "dash", "shape": "shape"}
    return {
        channel: {
            "field": "who",
            "type": "nominal",
            "scale": {
                "domain": list(looks),
                "range": [_plain(getattr(look, parts[channel])) for look in looks.values()],
            },
            "legend": None,
        }
        for channel in channels
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def legend(looks: Mapping[str, Look], names: Iterable[str], kind: str) -> Markup:
    """A line of names with their looks; ``kind`` is ``line``, ``point`` or ``bar``."""
    return tag("ul", join(tag("li", swatch(looks[name], kind), name) for name in names), class_="legend")


def swatch(look: Look, kind: str) -> Markup:
    """A small picture of a look."""
    if kind == "line":
        dash = " ".join(map(str, look.dash)) if look.dash != (1, 0) else None
        drawn = tag("path", d="M0 6h24", stroke=look.colour, stroke_width=2.5, stroke_dasharray=dash)
        return tag("svg", drawn, viewBox="0 0 24 12", width=24, height=12, aria_hidden="true")
    path = SHAPES[look.shape] if kind == "point" else "M4 1h12v10h-12z"
    return tag(
        "svg", tag("path", d=path, fill=look.colour), viewBox="0 0 20 12", width=20, height=12, aria_hidden="true"
    )


def only(names: Iterable[str]) -> dict[str, Look]:
    """The looks of those networks that are there, in the usual order."""
    there = set(names)
    return {name: look for name, look in LOOKS.items() if name in there}
