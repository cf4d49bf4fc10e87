"""Layer by layer: how many directions were protected, and what the stored sums say about single samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unweave.report.figures import Figure, Table
from unweave.report.looks import Look, encode, legend
from unweave.report.vega import GUIDE, INVISIBLE, Spec, chart, rows_of, tip, x

LOOKS = {
    "High": Look("var(--fail)", (1, 0), "triangle-up"),
    "Some": Look("var(--inconclusive)", (1, 0), "diamond"),
    "Low": Look("var(--pass)", (1, 0), "circle"),
}

MEANINGS = {
    "High": "fewer samples than dimensions, so that single samples can be read out of the sums",
    "Some": "somebody who has a sample may find out whether it was in the sums",
    "Low": "single samples disappear among the others",
}


def _height(count: int) -> int:
    """Less height for each where there are many; Vega then leaves out labels that would overlap."""
    return count * (24 if count <= 40 else 10)


def protected(layers: Sequence[Mapping[str, Any]]) -> Figure | None:
    """The rank kept of each layer, as a share of its dimension; and the shift, where it is known."""
    if not layers:
        return None
    rows = [{**layer, "share": layer["kept"] / max(layer["dimension"], 1), "full": 1} for layer in layers]
    names = rows_of("name", axis={"labelLimit": 130})
    tips = [
        ("name", "layer", None),
        ("kept", "directions kept", ",d"),
        ("dimension", "of", ",d"),
        ("share", "share", ".1%"),
    ]
    if any("shift" in layer for layer in layers):
        tips.append(("shift", "shift", ".3~g"))
    across = x("share", "directions protected", scale={"domain": [0, 1]}, axis={"format": ".0%"})
    bars: list[Spec] = [
        {
            "mark": {"type": "bar", "color": "var(--grid)", "height": {"band": 0.55}, "aria": False},
            "encoding": {"y": names, "x": across | {"field": "full"}},
        },
        {
            "mark": {"type": "bar", "color": "var(--bar)", "height": {"band": 0.55}},
            "encoding": {"y": names, "x": across},
        },
        {"mark": {"type": "rect", **INVISIBLE}, "encoding": {"y": names, "tooltip": tip(*tips)}},
    ]
    caption = (
        "The part of each layer that the remaining data uses and that was not allowed to change. "
        "The pale rest of a bar is the room there was to forget."
    )
    table = Table(
        ["Layer", "Kept", "Dimension", "Share", "Shift"],
        [
            [
                r["name"],
                f"{r['kept']:,}",
                f"{r['dimension']:,}",
                f"{r['share']:.1%}",
                f"{r['shift']:.3g}" if "shift" in r else "–",
            ]
            for r in rows
        ],
    )
    spec = chart("Share of directions protected, by layer", rows, bars, height=_height(len(rows)))
    return Figure("What was protected", caption, [("", spec)], table)


def leakage(found: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Samples per dimension of each layer's Gram."""
    if not found:
        return None
    rows = [{**o, "shown": max(o["samples_per_dimension"], 1e-3), "who": o["level"].capitalize()} for o in found]
    looks = {level: look for level, look in LOOKS.items() if any(row["who"] == level for row in rows)}
    worst = next(iter(looks))
    caption = (
        "The sums that are kept for later requests say something about single samples. Worst layer: "
        f"{worst.lower()} ({MEANINGS[worst]}). Left of the dashed line there are fewer samples than dimensions."
    )
    table = Table(
        ["Layer", "Leakage", "Samples", "Dimension", "Samples per dimension", "Rows"],
        [
            [
                r["layer"],
                r["who"],
                *(f"{r[key]:,}" for key in ("samples", "dimension")),
                f"{r['shown']:.3g}",
                f"{r['rows']:,}",
            ]
            for r in rows
        ],
    )
    return Figure(
        "What the stored sums reveal", caption, [("", _per_dimension(rows))], table, legend(looks, looks, "point")
    )


def _per_dimension(rows: Sequence[dict[str, Any]]) -> Spec:
    tips = tip(
        ("layer", "layer", None),
        ("who", "leakage", None),
        ("samples", "samples", ",d"),
        ("dimension", "dimensions", ",d"),
        ("shown", "samples per dimension", ".3~g"),
        ("rows", "rows", ",d"),
    )
    scale = {"type": "log", "nice": False, "padding": 12}
    across = x("shown", "samples per dimension (log scale)", scale=scale, axis={"format": "~g"})
    point = {"type": "point", "filled": True, "size": 110, "opacity": 1}
    where = {"y": rows_of("layer", axis={"labelLimit": 130}), "x": across, "tooltip": tips}
    layers: list[Spec] = [
        {"mark": GUIDE, "data": {"values": [{"shown": 1}]}, "encoding": {"x": across}},
        {"mark": point, "encoding": where | encode(LOOKS, "color", "shape")},
    ]
    return chart("Samples per dimension of the stored sums, by layer", rows, layers, height=_height(len(rows)))
