"""How sure the networks are of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unweave.report.figures import Figure, Table
from unweave.report.looks import MODELS, PARTS, encode, legend, only
from unweave.report.vega import INVISIBLE, Spec, chart, tip, x, y

TITLE = "doubt (entropy in nats)"


def entropies(found: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Histograms of the entropy, a panel for each part of the data."""
    drawn = [one for one in found if one["shares"]]
    if not drawn:
        return None
    parts = {part: [one for one in drawn if one["part"] == part] for part in PARTS}
    top = max(share for one in drawn for share in one["shares"])
    panels = [(PARTS[part], _panel(part, entries, top)) for part, entries in parts.items() if entries]
    caption = (
        "Further right, a network is less sure of its answer. It is very sure of what it was trained on; on forgotten "
        "samples it should be as unsure as on new ones. Thin vertical lines are medians."
    )
    looks = only(one["model"] for one in drawn)
    table = Table(
        ["Samples", "Network", "Median doubt (nats)"],
        [[PARTS[one["part"]], one["model"], f"{10 ** one['median']:.2g}"] for one in drawn],
    )
    return Figure("How sure each network is", caption, panels, table, legend(looks, looks, "line"), columns=3)


def _panel(part: str, entries: Sequence[Mapping[str, Any]], top: float) -> Spec:
    looks = only(one["model"] for one in entries)
    label = "format(pow(10, datum.value), '.1~g')"
    low = min(one["edges"][0] for one in entries)
    high = max(one["edges"][-1] for one in entries)
    scale = {"domain": [low, high], "nice": False}
    across = x("a", TITLE, scale=scale, axis={"labelExpr": label, "tickCount": 4})
    up = y("share", None, scale={"domain": [0, top]}, axis={"format": ".0%", "tickCount": 4})
    rows = [
        {"who": one["model"], "a": a, "share": share}
        for one in entries
        for a, share in zip(one["edges"], [*one["shares"], 0.0], strict=True)
    ]
    medians = {"values": [{"who": one["model"], "a": one["median"]} for one in entries]}
    layers: list[Spec] = [
        {
            "data": medians,
            "mark": {"type": "rule", "opacity": 0.7, "aria": False},
            "encoding": {"x": across, **encode(looks, "color", "strokeDash")},
        },
        {
            "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2, "aria": False},
            "encoding": {"x": across, "y": up, **encode(looks, "color", "strokeDash")},
        },
        _targets(entries, across),
    ]
    return chart(f"Histogram of entropies: {PARTS[part]}", rows, layers, height=170)


def _targets(entries: Sequence[Mapping[str, Any]], across: Spec) -> Spec:
    """One invisible column per bin, with the shares of all networks; bins of different networks may differ."""
    bins: dict[tuple[float, float], dict[str, float]] = {}
    for one in entries:
        for a, b, share in zip(one["edges"][:-1], one["edges"][1:], one["shares"], strict=True):
            bins.setdefault((a, b), {})[one["model"]] = share
    values = [{"a": a, "b": b, "from": 10**a, "to": 10**b, **shares} for (a, b), shares in bins.items()]
    there = [name for name in MODELS if any(name in row for row in values)]
    tips = tip(("from", "doubt from", ".2~g"), ("to", "to", ".2~g"), *((name, name, ".1%") for name in there))
    return {
        "data": {"values": values},
        "mark": {"type": "rect", **INVISIBLE},
        "encoding": {"x": across | {"bin": "binned"}, "x2": {"field": "b"}, "tooltip": tips},
    }
