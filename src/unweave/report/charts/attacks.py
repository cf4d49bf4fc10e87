"""What attackers can tell: AUCs with intervals, ROC curves, and the scores themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unweave.report.figures import Figure, Table
from unweave.report.looks import LOOKS, MODELS, Look, encode, legend, only
from unweave.report.markup import Markup, tag
from unweave.report.numbers import count, interval, number
from unweave.report.vega import GUIDE, INVISIBLE, Rows, Spec, chart, rows_of, tip, x, y

POINTS = 200
RATES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def overview(attacks: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Every attack's AUC on every network, with intervals."""
    if not attacks:
        return None
    rows = [
        {"attack": attack["title"], "who": model, **attack[model]["auc"], "text": interval(attack[model]["auc"], "auc")}
        for attack in attacks
        for model in MODELS
        if model in attack
    ]
    looks = only(row["who"] for row in rows)
    table = Table(
        ["Attack", *(name.capitalize() for name in looks), "Smallest noticeable AUC"],
        [
            [
                attack["title"],
                *(interval(attack[name]["auc"], "auc") if name in attack else "–" for name in looks),
                number(attack["unlearned"]["detectable_auc"], "auc"),
            ]
            for attack in attacks
        ],
    )
    caption = (
        "Further right, the attack works better; at 0.5, the dashed line, the attacker does no better than a coin."
    )
    if "original" in looks:
        caption += " The original network should be far to the right, and the unlearned one near the line."
    spec = auc_dots("AUC of each attack on each network", rows, "attack", looks)
    return Figure("How well each attack works", caption, [("", spec)], table, legend(looks, looks, "point"))


def auc_dots(description: str, rows: Rows, field: str, looks: Mapping[str, Look], offset: bool = True) -> Spec:
    """A dot with its interval per row and network (``who``); rows in the order of the data."""
    low = min([0.4, *(row["low"] for row in rows)])
    scale = {"domain": [max(low - 0.02, 0), 1.0], "zero": False, "nice": False}
    band = {"scale": {"paddingInner": 0.35}} if offset else {}
    where: Spec = {"y": rows_of(field, axis={"labelLimit": 140}, **band)}
    if offset:
        where["yOffset"] = {"field": "who", "type": "nominal", "sort": list(looks), "scale": {"domain": list(looks)}}
    tips = tip((field, "", None), ("who", "network" if offset else "run", None), ("text", "AUC (interval)", None))
    value = x("value", "AUC", scale=scale, axis={"grid": True})
    layers: list[Spec] = [
        {"mark": GUIDE, "data": {"values": [{"value": 0.5}]}, "encoding": {"x": value}},
        {
            "mark": {"type": "rule", "strokeWidth": 2.5, "aria": False},
            "encoding": {**where, "x": value | {"field": "low"}, "x2": {"field": "high"}, **encode(looks, "color")},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 95, "opacity": 1},
            "encoding": {**where, "x": value, **encode(looks, "color", "shape"), "tooltip": tips},
        },
    ]
    lines = len({row[field] for row in rows})
    return chart(description, rows, layers, height=lines * (20 * len(looks) + 8 if offset else 34))


def roc(title: str, curves: Mapping[str, Mapping[str, Any]], looks: Mapping[str, Look], what: str) -> Spec:
    """True against false alarms; ``curves`` by network or run."""
    rows = [
        {"who": name, "fpr": fpr, "tpr": tpr}
        for name, curve in curves.items()
        for fpr, tpr in _thinned(curve["fpr"], curve["tpr"])
    ]
    unit: Spec = {"domain": [0, 1]}
    percent: Spec = {"format": ".0%", "tickCount": 5}
    where = {
        "x": x("fpr", "false alarms", scale=unit, axis=percent | {"grid": True}),
        "y": y("tpr", "found", scale=unit, axis=percent),
    }
    diagonal = {"values": [{"fpr": 0, "tpr": 0}, {"fpr": 1, "tpr": 1}]}
    tips = tip(("who", what, None), ("tpr", "forgotten samples found", ".1%"), ("fpr", "false alarms", ".1%"))
    layers: list[Spec] = [
        {
            "data": diagonal,
            "mark": {**GUIDE, "type": "line", "strokeDash": [1, 0], "strokeWidth": 1},
            "encoding": where,
        },
        {
            "mark": {"type": "line", "strokeWidth": 2.2, "aria": False, "strokeCap": "butt"},
            "encoding": where | encode(looks, "color", "strokeDash"),
        },
        {"mark": {"type": "point", "size": 120, **INVISIBLE}, "encoding": where | {"tooltip": tips, "detail": _WHO}},
    ]
    return chart(f"ROC curves: {title}", rows, layers, height=280)


_WHO = {"field": "who", "type": "nominal"}


def _thinned(fpr: Sequence[float], tpr: Sequence[float]) -> list[tuple[float, float]]:
    """At most about POINTS points of a curve, with its ends: more than the screen has pixels for only costs bytes."""
    pairs = list(zip(fpr, tpr, strict=True))
    step = max(1, -(-len(pairs) // POINTS))
    return pairs if step == 1 else [*pairs[:-1:step], pairs[-1]]


def found_at(curve: Mapping[str, Sequence[float]], rate: float) -> float:
    """The share found at a rate of false alarms, between the points of the curve."""
    before = (0.0, 0.0)
    for here in zip(curve["fpr"], curve["tpr"], strict=True):
        if here[0] > rate:
            span = here[0] - before[0]
            return before[1] + (here[1] - before[1]) * ((rate - before[0]) / span if span else 1.0)
        before = here
    return before[1]


def roc_table(curves: Mapping[str, Mapping[str, Any]]) -> Table:
    """What is found at a few rates of false alarms."""
    rows = [[f"{rate:.1%}", *(f"{found_at(curve, rate):.1%}" for curve in curves.values())] for rate in RATES]
    return Table(["False alarms", *(f"Found: {name}" for name in curves)], rows)


def attack_figures(attack: Mapping[str, Any]) -> list[Figure]:
    """The ROC curves and the scores of one attack."""
    there = {name: attack[name] for name in MODELS if name in attack}
    curves = {name: found["roc"] for name, found in there.items() if found["roc"]["fpr"]}
    figures = []
    if curves:
        caption = (
            "How many forgotten samples are found, against how often others are accused wrongly. "
            "The diagonal is guessing; the upper left corner is certainty."
        )
        spec, looks = roc(attack["title"], curves, only(curves), "network"), only(curves)
        figures.append(Figure("ROC curves", caption, [("", spec)], roc_table(curves), legend(looks, looks, "line")))
    scored = {name: found["scores"] for name, found in there.items() if found["scores"]["positives"]}
    if scored:
        figures.append(_scores(attack, scored))
    return figures


def _scores(attack: Mapping[str, Any], scored: Mapping[str, Mapping[str, Any]]) -> Figure:
    caption = f"{attack['direction'].rstrip('.')}. Where bars and outline coincide, there is nothing to tell."
    span = [min(s["edges"][0] for s in scored.values()), max(s["edges"][-1] for s in scored.values())]
    panels = [
        (name.capitalize(), _histogram(f"{attack['title']}, {name}", name, scores, span))
        for name, scores in scored.items()
    ]
    table = Table(
        ["Network", "Score from", "to", "Forgotten samples", "Compared with"],
        [
            [name, f"{low:.3g}", f"{high:.3g}", f"{positive:.1%}", f"{negative:.1%}"]
            for name, scores in scored.items()
            for low, high, positive, negative in _bins(scores)
        ],
    )
    return Figure("What the attacker sees", caption, panels, table, _sides(scored))


def _sides(names: Mapping[str, Any]) -> Markup:
    bars = tag("svg", *_bars(names), viewBox="0 0 32 12", width=32, height=12, aria_hidden="true")
    line = tag("path", d="M0 11h6v-8h8v5h8", fill="none", stroke="var(--ink)", stroke_width=1.6)
    outline = tag("svg", line, viewBox="0 0 24 12", width=24, height=12, aria_hidden="true")
    return tag(
        "ul", tag("li", bars, "forgotten samples"), tag("li", outline, "what they are compared with"), class_="legend"
    )


def _bars(names: Mapping[str, Any]) -> list[Markup]:
    colours = [LOOKS[name].colour for name in names]
    return [tag("path", d=f"M{11 * i} 1h9v10h-9z", fill=colour, opacity=0.75) for i, colour in enumerate(colours)]


def _bins(scores: Mapping[str, Sequence[float]]) -> list[tuple[float, float, float, float]]:
    edges = scores["edges"]
    return list(zip(edges[:-1], edges[1:], scores["positives"], scores["negatives"], strict=True))


def _histogram(description: str, model: str, scores: Mapping[str, Sequence[float]], span: list[float]) -> Spec:
    rows = [{"a": a, "b": b, "p": p, "n": n} for a, b, p, n in _bins(scores)]
    end = scores["edges"][-1]
    across = x("a", "score", scale={"domain": span, "nice": False}, axis={"tickCount": 4})
    up = y("p", None, axis={"format": ".0%", "tickCount": 3})
    tips = tip(
        ("a", "score from", ".3~g"), ("b", "to", ".3~g"), ("p", "forgotten", ".1%"), ("n", "compared with", ".1%")
    )
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "color": LOOKS[model].colour, "opacity": 0.75, "binSpacing": 1},
            "encoding": {"x": across | {"bin": "binned"}, "x2": {"field": "b"}, "y": up},
        },
        {
            "data": {"values": [*({"a": r["a"], "n": r["n"]} for r in rows), {"a": end, "n": 0}]},
            "mark": {
                "type": "line",
                "interpolate": "step-after",
                "color": "var(--ink)",
                "strokeWidth": 1.6,
                "aria": False,
            },
            "encoding": {"x": across, "y": up | {"field": "n"}},
        },
        {
            "mark": {"type": "rect", **INVISIBLE},
            "encoding": {"x": across | {"bin": "binned"}, "x2": {"field": "b"}, "tooltip": tips},
        },
    ]
    return chart(f"Histogram of scores: {description}", rows, layers, height=110)


def facts(attack: Mapping[str, Any]) -> Markup:
    """AUC, rates at few false alarms, and what they rest on, for the networks that are there."""
    there = {name: attack[name] for name in MODELS if name in attack}
    lines: list[tuple[str, list[str]]] = [
        ("AUC", [interval(found["auc"], "auc") for found in there.values()]),
        ("Right, if it says yes or no", [f"{found['balanced_accuracy']:.1%}" for found in there.values()]),
    ]
    for key, label in (("tpr_at_1_percent", "1%"), ("tpr_at_01_percent", "0.1%")):
        if any(found.get(key) for found in there.values()):
            rates = [interval(found[key], "share") if found.get(key) else "–" for found in there.values()]
            lines.append((f"Found at {label} false alarms", rates))
    lines.append(("Samples", [" against ".join(f"{n:,}" for n in found["samples"]) for found in there.values()]))
    lines.append(("Networks", [" against ".join(f"{n:,}" for n in found["models"]) for found in there.values()]))
    table = Table(["", *(name.capitalize() for name in there)], [[label, *cells] for label, cells in lines])
    return table.html(f"{attack['title']}: {count(len(there), 'network')}")
