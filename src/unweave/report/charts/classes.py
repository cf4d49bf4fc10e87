"""What happened to single classes: held-out errors before and after, and where the forgotten class goes now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unweave.report.figures import Figure, Table
from unweave.report.looks import MODELS, encode, legend, only
from unweave.report.numbers import interval
from unweave.report.vega import Spec, chart, rows_of, tip, x

SHOWN = 30
"""Classes in the chart; the table has all of them."""
GOALS = 8
CLASSES = 6


def errors_by_class(models: Sequence[Mapping[str, Any]]) -> Figure | None:
    """A dumbbell per class."""
    known = {model["name"]: model["by_class"] for model in models if model.get("by_class")}
    known = {name: known[name] for name in MODELS if name in known}
    if not known:
        return None
    changes = _changes(known)
    chosen = list(changes)[:SHOWN]
    caption = "The error on new samples of each class. A class that moves far to the right has paid for the forgetting."
    if "original" in known and "unlearned" in known:
        worst = next(iter(changes))
        caption += f" Most changed: {worst} ({changes[worst]:+.1f} points)."
    if len(changes) > SHOWN:
        caption += f" Shown: the {SHOWN} most changed of {len(changes)} classes; the table has all."
    table = Table(
        ["Class", *(f"{name.capitalize()}" for name in known), "Samples"],
        [
            [
                name,
                *(interval(errors[name], "percent") if name in errors else "–" for errors in known.values()),
                next(f"{errors[name]['samples']:,}" for errors in known.values() if name in errors),
            ]
            for name in changes
        ],
    )
    looks = only(known)
    spec = _dumbbells(known, chosen)
    return Figure("Error by class", caption, [("", spec)], table, legend(looks, looks, "point"))


def _changes(known: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Class → unlearned less original, largest first; 0 where one of them is not known."""
    names = dict.fromkeys(name for errors in known.values() for name in errors)
    before, after = known.get("original", {}), known.get("unlearned", {})
    change = {
        name: after[name]["value"] - before[name]["value"] if name in before and name in after else 0.0
        for name in names
    }
    return dict(sorted(change.items(), key=lambda item: -abs(item[1])))


def _dumbbells(known: Mapping[str, Mapping[str, Any]], chosen: Sequence[str]) -> Spec:
    rows = [
        {
            "class": name,
            "who": model,
            "value": errors[name]["value"],
            "text": interval(errors[name], "percent"),
            "samples": errors[name]["samples"],
        }
        for model, errors in known.items()
        for name in chosen
        if name in errors
    ]
    spans = {
        "aggregate": [{"op": "min", "field": "value", "as": "low"}, {"op": "max", "field": "value", "as": "high"}],
        "groupby": ["class"],
    }
    looks = only(known)
    where = rows_of("class", axis={"labelLimit": 130})
    tips = tip(("class", "class", None), ("who", "network", None), ("text", "error", None), ("samples", "samples", "d"))
    value = x("value", "% of new samples wrong", scale={"zero": True}, axis={"grid": True})
    layers: list[Spec] = [
        {
            "transform": [{"filter": {"field": "who", "oneOf": ["original", "unlearned"]}}, spans],
            "mark": {"type": "rule", "strokeWidth": 2, "color": "var(--axis)", "aria": False},
            "encoding": {"y": where, "x": value | {"field": "low"}, "x2": {"field": "high"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 95, "opacity": 1},
            "encoding": {"y": where, "x": value, **encode(looks, "color", "shape"), "tooltip": tips},
        },
    ]
    return chart("Error on new samples by class", rows, layers, height=26 * len(chosen))


def destinations(found: Sequence[Mapping[str, Any]]) -> Figure | None:
    """What samples of the forgotten classes are taken for, per class."""
    there = [one for one in found if one["shares"]]
    names = list(dict.fromkeys(one["class"] for one in there))
    if not names:
        return None
    caption = (
        "What the networks take samples of the forgotten class for. After forgetting, they should be spread over the "
        "classes they resemble, as they are for a network that never saw the class."
    )
    if len(names) > CLASSES:
        caption += f" Shown: {CLASSES} of {len(names)} classes; the table has all."
    panels = [(f"Samples of “{name}”", _goals([o for o in there if o["class"] == name])) for name in names[:CLASSES]]
    looks = only(one["model"] for one in there)
    table = Table(
        ["Class", "Network", "Taken for", "Share"],
        [[o["class"], o["model"], goal, f"{share:.1%}"] for o in there for goal, share in o["shares"].items()],
    )
    columns = 1 if len(panels) == 1 else 2
    return Figure("Where they go now", caption, panels, table, legend(looks, looks, "bar"), columns)


def _goals(found: Sequence[Mapping[str, Any]]) -> Spec:
    largest: dict[str, float] = {}
    for one in found:
        for goal, share in one["shares"].items():
            largest[goal] = max(share, largest.get(goal, 0.0))
    chosen = sorted(largest, key=lambda goal: -largest[goal])[:GOALS]
    looks = only(one["model"] for one in found)
    rows = [
        {"goal": goal, "who": one["model"], "share": one["shares"].get(goal, 0.0)} for goal in chosen for one in found
    ]
    layer = {
        "mark": {"type": "bar", "cornerRadiusEnd": 2},
        "encoding": {
            "y": rows_of("goal", scale={"paddingInner": 0.3}),
            "yOffset": {"field": "who", "type": "nominal", "sort": list(looks), "scale": {"domain": list(looks)}},
            "x": x("share", "share of its samples", axis={"format": ".0%", "grid": True}),
            **encode(looks, "fill"),
            "tooltip": tip(("who", "network", None), ("goal", "taken for", None), ("share", "share", ".1%")),
        },
    }
    description = f"What samples of the class {found[0]['class']} are taken for"
    return chart(description, rows, [layer], height=len(chosen) * (13 * len(looks) + 8))
