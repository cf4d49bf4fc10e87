"""The main table: the networks, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unweave.report.looks import LOOKS, MODELS, PARTS, swatch
from unweave.report.markup import Markup, escape, join, tag
from unweave.report.numbers import EN_DASH, between, count, number, seconds, times

Row = tuple[Sequence[Markup], Sequence[Sequence[Markup]], str | None]
"""What names it, its cells, and its class; a cell is one or more lines."""

NOTES = {
    "original": "before the request",
    "unlearned": "after the request",
    "retrained": "never saw the samples",
}


def side_by_side(caption: str, head: Sequence[str | Markup], rows: Sequence[Row]) -> Markup:
    """A table whose rows become cards on a narrow screen; roles are spelled out because such tables lose theirs."""
    columns = [text.partition("<")[0] for text in head]
    lines = []
    for name, cells, kind in rows:
        boxes = [
            tag("td", *cell, role="cell", data_label=Markup(label))
            for label, cell in zip(columns[1:], cells, strict=True)
        ]
        lines.append(tag("tr", tag("th", *name, scope="row", role="rowheader"), *boxes, class_=kind, role="row"))
    top = tag("tr", join(tag("th", text, scope="col", role="columnheader") for text in head), role="row")
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", top, role="rowgroup"),
        tag("tbody", join(lines), role="rowgroup"),
        class_="networks",
        role="table",
    )
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def networks(models: Sequence[Mapping[str, Any]], task: str) -> Markup | None:
    """Errors with intervals and counts, seconds, and their ratio to retraining; None where there are none."""
    by_name = {model["name"]: model for model in models}
    there = [by_name[name] for name in MODELS if name in by_name]
    parts = [part for part in PARTS if any(part in model["errors"] for model in there)]
    timed = ["Time taken"] if any("seconds" in model for model in there) else []
    if not parts and not timed:
        return None
    counts = {part: {m["errors"][part]["samples"] for m in there if part in m["errors"]} for part in parts}
    retraining = by_name.get("retrained", {}).get("seconds")
    rows: list[Row] = []
    for model in there:
        cells = [error_lines(model["errors"].get(part), len(counts[part]) > 1) for part in parts]
        cells += [_time(model, retraining) for _ in timed]
        rows.append((_name(model), cells, model["name"]))
    head = ["Network", *(join([PARTS[part], _same(counts[part])]) for part in parts), *timed]
    caption = "Percent wrong; below it, the range in which the true value plausibly lies"
    return join([tag("p", _what_to_see(by_name, task), class_="lead"), side_by_side(caption, head, rows)])


def _what_to_see(there: Mapping[str, Any], task: str) -> str:
    if "retrained" in there:
        goal = "about as often as a network that never saw them"
    else:
        goal = "nearly always" if task == "classes" else "about as often as on new samples"
    kept = ", and change little elsewhere" if "original" in there else ""
    return f"On the samples to forget, the unlearned network should be wrong {goal}{kept}."


def _same(counts: set[int]) -> Markup | None:
    return small(f"n = {next(iter(counts)):,}") if len(counts) == 1 else None


def small(text: str) -> Markup:
    """A second line in a cell."""
    return tag("small", text)


def _name(model: Mapping[str, Any]) -> list[Markup]:
    several = model.get("models", 1)
    note = NOTES[model["name"]] + (f", {count(several, 'network')}" if several > 1 else "")
    return [swatch(LOOKS[model["name"]], "point"), escape(model["name"].capitalize()), small(note)]


def error_lines(error: Mapping[str, Any] | None, counted: bool) -> list[Markup]:
    """A percentage, its interval, and how many samples it rests on."""
    if error is None:
        return [escape(EN_DASH)]
    lines = [escape(number(error["value"], "percent")), small(between(error["low"], error["high"], "percent"))]
    return [*lines, small(f"n = {error['samples']:,}")] if counted else lines


def _time(model: Mapping[str, Any], retraining: float | None) -> list[Markup]:
    if "seconds" not in model:
        return [escape(EN_DASH)]
    taken = [escape(seconds(model["seconds"]))]
    if model["name"] == "unlearned" and retraining and model["seconds"] > 0:
        taken.append(small(times(model["seconds"] / retraining)))
    return taken


def distances(found: Sequence[Mapping[str, Any]]) -> Markup:
    """Distances between networks, one a row, with what they mean."""
    there = [name for name in MODELS if any(name in one for one in found)]
    rows: list[Row] = [
        ([escape(one["title"]), small(one["explanation"])], [_distance(one.get(name)) for name in there], None)
        for one in found
    ]
    caption = "Smaller is closer; below it, the interval or the p-value where there is one"
    return side_by_side(caption, ["Distance", *(name.capitalize() for name in there)], rows)


def _distance(value: Mapping[str, Any] | None) -> list[Markup]:
    if value is None:
        return [escape(EN_DASH)]
    lines = [escape(_short(value["value"]))]
    if "low" in value and "high" in value:
        lines.append(small(f"{_short(value['low'])}{EN_DASH}{_short(value['high'])}"))
    if "p_value" in value:
        lines.append(small(f"p = {value['p_value']:.2g}" if value["p_value"] >= 0.001 else "p < 0.001"))
    return lines


def _short(value: float) -> str:
    return f"{value:.3f}" if 0.001 <= abs(value) < 100 else f"{value:.3g}"


def pairs(rows: Sequence[tuple[str, object]], caption: str) -> Markup:
    """Names and values, as in a list of settings."""
    body = join(tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in rows)
    table = tag("table", tag("caption", caption), tag("tbody", body), class_="pairs")
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=f"Table: {caption}")
