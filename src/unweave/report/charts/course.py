"""The course of the unlearning, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unweave.report.figures import Figure, Table
from unweave.report.looks import Look, encode, legend
from unweave.report.vega import GUIDE, INVISIBLE, Spec, chart, tip, x, y

KINDS = {
    "samples to forget": Look("var(--unlearned)", (1, 0), "circle"),
    "new samples": Look("var(--ink)", (2, 3), "diamond"),
}


def course(epochs: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Errors by epoch, and accuracy against the attacker's AUC where both are known."""
    if not epochs:
        return None
    panels = [("Error", _errors(epochs))]
    pairs = [one for one in epochs if one.get("auc") is not None and one.get("held_out_error") is not None]
    caption = (
        "The error on the samples to forget should rise to what is normal for new samples, and that on new ones stay."
    )
    if len(pairs) > 1:
        panels.append(("Accuracy on new samples against the attacker's AUC", _path(pairs)))
        caption += (
            " In the second chart each dot is an epoch: good unlearning moves left, to an AUC of 0.5, and not down."
        )
    table = Table(
        ["Epoch", "Error on samples to forget", "Error on new samples", "AUC"],
        [
            [
                one["epoch"],
                _shown(one["forget_error"], "%"),
                _shown(one.get("held_out_error"), "%"),
                _shown(one.get("auc")),
            ]
            for one in epochs
        ],
    )
    kinds = [name for name, key in zip(KINDS, ("forget_error", "held_out_error"), strict=True) if _any(epochs, key)]
    return Figure("How it went", caption, panels, table, legend(KINDS, kinds, "line"), columns=len(panels))


def _any(epochs: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(one.get(key) is not None for one in epochs)


def _shown(value: float | None, percent: str = "") -> str:
    if value is None:
        return "–"
    return f"{value:.1f}{percent}" if percent else f"{value:.3f}"


def _errors(epochs: Sequence[Mapping[str, Any]]) -> Spec:
    rows = [
        {"who": name, "epoch": one["epoch"], "error": one[key]}
        for name, key in zip(KINDS, ("forget_error", "held_out_error"), strict=True)
        for one in epochs
        if one.get(key) is not None
    ]
    where = {
        "x": x("epoch", "epoch", axis={"format": "d", "tickMinStep": 1}),
        "y": y("error", "% wrong", scale={"zero": True}),
    }
    tips = tip(("who", "error on", None), ("epoch", "epoch", "d"), ("error", "% wrong", ".1f"))
    layers: list[Spec] = [
        {
            "mark": {"type": "line", "strokeWidth": 2.2, "aria": False},
            "encoding": where | encode(KINDS, "color", "strokeDash"),
        },
        {
            "mark": {"type": "point", "filled": True, "size": 30, "opacity": 1},
            "encoding": where | encode(KINDS, "color", "shape"),
        },
        {"mark": {"type": "point", "size": 250, **INVISIBLE}, "encoding": where | {"tooltip": tips}},
    ]
    return chart("Error by epoch, on the samples to forget and on new samples", rows, layers, height=200)


def _path(epochs: Sequence[Mapping[str, Any]]) -> Spec:
    ends = {0: "start", len(epochs) - 1: "end"}
    rows = [
        {"epoch": one["epoch"], "auc": one["auc"], "right": 100 - one["held_out_error"], "end": ends.get(i, "")}
        for i, one in enumerate(epochs)
    ]
    where = {
        "x": x("auc", "AUC of the margin attack", scale={"zero": False, "padding": 18}),
        "y": y("right", "% of new samples right", scale={"zero": False, "padding": 18}),
    }
    tips = tip(("epoch", "epoch", "d"), ("auc", "AUC", ".3f"), ("right", "% right", ".1f"))
    trail = {"field": "epoch", "type": "quantitative"}
    label = {"type": "text", "dy": -12, "aria": False}
    layers: list[Spec] = [
        {"mark": GUIDE, "data": {"values": [{"at": 0.5}]}, "encoding": {"x": {"field": "at", "type": "quantitative"}}},
        {
            "mark": {"type": "line", "color": "var(--unlearned)", "opacity": 0.6, "aria": False},
            "encoding": where | {"order": trail},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 60, "color": "var(--unlearned)", "opacity": 1},
            "encoding": where | {"tooltip": tips},
        },
        {"mark": label, "encoding": where | {"text": {"field": "end", "type": "nominal"}}},
    ]
    return chart("Accuracy on new samples against the attacker's AUC, by epoch", rows, layers, height=200)
