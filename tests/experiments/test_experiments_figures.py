"""The committed figures show what the committed documents say; and which curves are drawn of a small document.

Fonts differ from machine to machine, and with them where a legend stands and which labels of an axis have room. So two
drawings are compared by what they say: the marks in the frame of their axes, the scales, and the words.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any
from xml.etree import ElementTree

import pytest

from experiments.documents.figures import drawn_from, epochs, table2
from experiments.documents.paper_numbers import PAPER
from experiments.documents.tables import TABLES
from experiments.pages import ROOT, result

vl_convert = pytest.importorskip("vl_convert", reason="needs unweave[report]")

FIGURES = ROOT / "docs" / "figures"
WORDS = ("role-title-text", "role-axis-title", "role-legend-label")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
LOOKS = ("stroke", "fill", "stroke-dasharray")
PIXELS = 0.02


def said(svg: str) -> tuple[list[Any], list[float]]:
    """What a drawing says: its marks, scales and words; and the coordinates of the marks, in pixels of their frame."""
    told, coordinates = list[Any](), list[float]()

    def read(element: ElementTree.Element, kind: str) -> None:
        kind = element.get("class", kind)
        if "role-axis" in kind and element.get("aria-label"):
            told.append(element.get("aria-label"))
        if any(one in kind for one in WORDS) and element.text:
            told.append(element.text)
        if "role-mark" in kind and element.tag.endswith("path"):
            where = f"{element.get('transform', '')} {element.get('d', '')}"
            coordinates.extend(map(float, NUMBER.findall(where)))
            told.append([NUMBER.sub("#", where), *(element.get(look) for look in LOOKS)])
        for one in element:
            read(one, kind)

    read(ElementTree.fromstring(svg), "")
    return told, coordinates


def same(one: str, other: str) -> bool:
    """Whether two drawings say the same."""
    (told, places), (others, at) = said(one), said(other)
    return told == others and len(places) == len(at) and places == pytest.approx(at, abs=PIXELS)


def drawn(name: str, document: dict[str, Any]) -> dict[str, str]:
    return {key: vl_convert.vegalite_to_svg(spec) for key, spec in drawn_from(name, document).items()}


def committed(name: str) -> dict[str, Any]:
    document = result(name)
    assert document is not None
    return document


@pytest.mark.parametrize("name", TABLES)
def test_the_committed_figures_are_what_the_results_give(name: str) -> None:
    for key, svg in drawn(name, committed(name)).items():
        assert same(svg, (FIGURES / f"{key}.svg").read_text("utf-8")), f"{key}: run python -m experiments.pages"


def test_no_figure_is_left_of_an_earlier_result() -> None:
    made = {f"{key}.svg" for name in TABLES for key in drawn_from(name, committed(name))}
    assert {path.name for path in FIGURES.iterdir()} == made


def _shifted(document: dict[str, Any]) -> None:
    document["methods"]["pgu"]["0.96"]["errors"]["forgotten"]["mean"] += 0.05


def _all_twice_as_large(document: dict[str, Any]) -> None:
    for rows in document["methods"].values():
        for row in rows.values():
            row["errors"]["forgotten"]["mean"] *= 2
    for row in document["paper"]["rows"].values():
        row["forgotten"] *= 2


def _renamed(document: dict[str, Any]) -> None:
    document["methods"]["matched"] = document["methods"].pop("match")


@pytest.mark.parametrize("changed", [_shifted, _all_twice_as_large, _renamed])
def test_another_number_another_scale_and_another_name_are_seen(changed: Any) -> None:
    document = deepcopy(committed("gamma"))
    changed(document)
    assert not same(drawn("gamma", document)["gamma"], (FIGURES / "gamma.svg").read_text("utf-8"))


def test_what_depends_on_fonts_is_not_compared() -> None:
    svg = (FIGURES / "gamma.svg").read_text("utf-8")
    other = svg.replace('font-family="sans-serif"', 'font-family="serif"').replace('width="450"', 'width="463"', 1)
    assert other != svg
    assert same(svg, other)


def scores(*looks: tuple[str, int, float], stopped: str = "") -> dict[str, Any]:
    histogram = {"edges": [0.0, 1.0, 2.0], "positives": [0.5, 0.5], "negatives": [0.25, 0.75]}
    return {
        "epochs": {name: taken for name, taken, _ in looks},
        "attacks": {"methods": {name: {"xgboost": {"auc": {"value": value}}} for name, _, value in looks}},
        "attacker's scores": {name: histogram for name, *_ in looks},
        "stopped by the rule": [stopped] if stopped else [],
        "methods": {
            name: {"seeds": [0], "errors": {key: {"values": [1.0]} for key in ("retained", "test")}}
            for name, *_ in looks
        },
    }


def panels(found: dict[str, Any], key: str) -> list[str]:
    spec = epochs({"networks": {key: found}, "paper": PAPER["epochs"]})[f"epochs-{key}-scores"]
    assert spec is not None
    shown: list[str] = spec["encoding"]["column"]["sort"]
    return shown


def test_the_attackers_scores_are_shown_at_the_papers_moments_and_at_ours() -> None:
    looks = [("original", 0, 0.9), ("a", 7, 0.8), ("b", 11, 0.7), ("c", 19, 0.51), ("d", 39, 0.47), ("e", 73, 0.4)]
    stopped = ["before", "after 11 epochs", "after 19 epochs", "after 39 epochs", "after 73 epochs, the rule's stop"]
    assert panels(scores(*looks, stopped="e"), "smallvgg") == stopped
    further = [*looks, ("f", 79, 0.3), ("g", 99, 0.3)]
    assert panels(scores(*further, stopped="e"), "smallvgg") == [*stopped, "after 99 epochs"]
    looks = [("original", 0, 0.9), ("a", 29, 0.5), ("b", 59, 0.4), ("c", 69, 0.3), ("d", 98, 0.2)]
    assert panels(scores(*looks), "resnet18") == ["before", *(f"after {n} epochs" for n in (29, 69, 98))]


def test_entropies_are_drawn_for_each_number_of_classes() -> None:
    entropy = {"edges": [0.0, 1.0, 2.0], "shares": {"original": [0.5, 0.5], "odds": [1.0, 0.0]}}
    requests = {"5": {"entropy": {}}, "10": {"entropy": entropy}}
    found = table2({"requests": requests, "attacks": {}})
    assert [key for key, spec in found.items() if spec] == ["table2-entropy-10"]
    assert "10 forgotten classes" in json.dumps(found["table2-entropy-10"])
