"""Charts of the benchmarks, as SVG files for docs/speed.md, from what is in results/.

    python -m benchmarks.charts        write docs/charts/*.svg

A result that is not there has no chart. The colours are those of the reports' light theme.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.growth import STAGES
from unweave.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
DEVICES = ("cuda", "cpu")
OURS, OTHERS = "#d1570a", "#6e7781"
STAGE_COLOURS = {"fit": "#0072b2", "space": "#6e7781", "request": "#d1570a"}
CONFIG = {
    "background": "white",
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {"labelColor": "#565f69", "titleColor": "#565f69", "gridColor": "#e7e9ec", "titleFontWeight": "normal"},
}
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
Spec = dict[str, Any]
OUR_WAYS = ("fit", "request", "request after it")


def results(root: Path, name: str, device: str) -> dict[str, dict[str, Any]]:
    """By the end of their file names, the results of a benchmark: the whole, and runs of single networks."""
    found = sorted((root / "results").glob(f"bench-{name}-*{device}.json"))
    return {path.stem.removeprefix("bench-"): json.loads(path.read_text("utf-8")) for path in found}


def charts(root: Path = ROOT) -> dict[str, Spec]:
    """Vega-Lite specifications by file name, for the results that are there."""
    return {
        f"{stem}.svg": make(result)
        for name, make in MAKERS.items()
        for device in DEVICES
        for stem, result in results(root, name, device).items()
    }


def side_by_side(result: dict[str, Any]) -> Spec:
    """A row a way, a panel a network; the dot is the median, the line from the least to the most seconds."""
    rows = [
        {
            "network": f"{network} ({entry['pixels']})",
            "way": name,
            "median": row["median"],
            "least": row["min"],
            "most": row["max"],
            "who": "unweave" if name in OUR_WAYS else "other",
        }
        for network, entry in result["networks"].items()
        for name, row in entry["ways"].items()
    ]
    seconds = {"type": "log"}
    where = {"y": {"field": "way", "type": "nominal", "sort": None, "axis": {"title": None, "labelLimit": 320}}}
    colour = {"field": "who", "type": "nominal", "scale": {"domain": ["unweave", "other"], "range": [OURS, OTHERS]}}
    layers = [
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": where
            | {
                "x": {"field": "least", "type": "quantitative", "scale": seconds, "axis": {"title": "seconds"}},
                "x2": {"field": "most"},
                "color": colour | {"legend": None},
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": where
            | {
                "x": {"field": "median", "type": "quantitative", "scale": seconds},
                "color": colour | {"legend": None},
            },
        },
    ]
    return _framed(
        {
            "description": "Seconds of every way, for each network",
            "facet": {"row": {"field": "network", "type": "nominal", "sort": None, "header": {"title": None}}},
            "spec": {"width": 420, "height": {"step": 18}, "layer": layers},
            "resolve": {"scale": {"y": "independent"}},
        },
        rows,
    )


def growth(result: dict[str, Any]) -> Spec:
    """Seconds above, memory below, one panel an axis, both scales logarithmic."""
    axes = [axis.replace("_", " ") for axis in result["axes"]]
    rows = [
        {
            "axis": axis.replace("_", " "),
            "value": point["value"],
            "stage": stage,
            "seconds": point[stage]["seconds"]["median"],
            "MiB": max(1, point[stage]["bytes"]) / 2**20,
        }
        for axis, entry in result["axes"].items()
        for point in entry["points"]
        for stage in STAGES
    ]
    panels = [
        {
            "facet": {"column": {"field": "axis", "type": "nominal", "sort": axes, "header": {"title": None}}},
            "spec": {"width": 105, "height": 120, "mark": {"type": "line", "point": True}, "encoding": _grown(field)},
            "resolve": {"scale": {"x": "independent"}},
        }
        for field in ("seconds", "MiB")
    ]
    words = "Seconds and peak memory of fit, eigendecompositions and a request of fixed length"
    return _framed({"description": words, "vconcat": panels}, rows)


def _grown(field: str) -> Spec:
    few = {"tickCount": 2, "format": "~s", "grid": False, "title": None}
    return {
        "x": {"field": "value", "type": "quantitative", "scale": {"type": "log", "nice": False}, "axis": few},
        "y": {"field": field, "type": "quantitative", "scale": {"type": "log"}, "axis": {"tickCount": 4}},
        "color": {
            "field": "stage",
            "type": "nominal",
            "scale": {"domain": list(STAGE_COLOURS), "range": list(STAGE_COLOURS.values())},
            "legend": {"title": None, "orient": "top"},
        },
    }


def eigen(result: dict[str, Any]) -> Spec:
    """Seconds against d, both logarithmic; what is extrapolated is dashed and hollow."""
    rows = [
        {"d": entry["d"], "seconds": entry[way]["median"], "way": way, "kind": "measured"}
        for entry in result["sizes"]
        for way in ("eigh", "eigvalsh")
    ]
    for way, law in result["laws"].items():
        far = next(key for key in law if key.startswith("extrapolated"))
        rows += [row | {"kind": "extrapolated"} for row in [next(row for row in reversed(rows) if row["way"] == way)]]
        rows.append({"d": int(far.rpartition("= ")[2]), "seconds": law[far], "way": way, "kind": "extrapolated"})
    where = {
        "x": {"field": "d", "type": "quantitative", "scale": {"type": "log"}, "axis": {"title": "d"}},
        "y": {"field": "seconds", "type": "quantitative", "scale": {"type": "log"}, "axis": {"title": "seconds"}},
        "color": {
            "field": "way",
            "type": "nominal",
            "scale": {"domain": ["eigh", "eigvalsh"], "range": [OURS, "#0072b2"]},
            "legend": {"title": None},
        },
        "strokeDash": {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": ["measured", "extrapolated"], "range": [[1, 0], [4, 4]]},
            "legend": {"title": None, "symbolType": "stroke"},
        },
    }
    mark = {"type": "line", "point": True}
    return _framed(
        {
            "description": "Seconds of an eigendecomposition",
            "width": 420,
            "height": 240,
            "mark": mark,
            "encoding": where,
        },
        rows,
    )


MAKERS: dict[str, Callable[[dict[str, Any]], Spec]] = {"side-by-side": side_by_side, "growth": growth, "eigen": eigen}
"""The benchmarks that have a chart."""


def _framed(spec: Spec, rows: list[dict[str, Any]]) -> Spec:
    rounded = [
        {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in row.items()}
        for row in rows
    ]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "config": CONFIG,
        "data": {"values": rounded},
    } | spec


def draw(spec: Spec) -> str:
    """The SVG of a specification, by vl-convert (pip install 'unweave[report]')."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(spec))


def write(root: Path = ROOT) -> None:
    """Every chart there is a result for."""
    folder = root / "docs/charts"
    for name, spec in charts(root).items():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, draw(spec).encode())


if __name__ == "__main__":
    write()
