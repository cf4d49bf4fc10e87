"""The frame of every chart: Vega-Lite specifications as plain dicts, all as wide as the page lets them be."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from unweave.errors import ConfigError
from unweave.report.markup import plain

Spec = dict[str, Any]
Rows = Sequence[dict[str, Any]]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

AXIS = {
    "labelColor": "var(--muted)",
    "titleColor": "var(--muted)",
    "domainColor": "var(--axis)",
    "tickColor": "var(--axis)",
    "gridColor": "var(--grid)",
    "labelFontSize": 12,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
    "titlePadding": 8,
    "labelLimit": 150,
    "domain": False,
    "ticks": False,
    "labelPadding": 6,
    "labelFlush": False,
    "labelOverlap": True,
    "labelSeparation": 6,
}

CONFIG: Spec = {
    "background": None,
    "font": FONT,
    "view": {"stroke": None},
    "axis": AXIS,
    "axisY": {"titleAnchor": "end", "titleAngle": 0, "titleAlign": "left", "titleY": -10, "titleX": 0},
    "text": {"fill": "var(--muted)", "fontSize": 12},
}

INVISIBLE = {"opacity": 0, "aria": False}
"""Of the marks that only catch the pointer: wide targets over thin lines."""

GUIDE = {"type": "rule", "color": "var(--axis)", "strokeDash": [3, 3], "aria": False, "tooltip": None}


def chart(description: str, values: Rows, layers: Sequence[Spec], height: int = 220) -> Spec:
    """A layered view of its own data. Strings reach Vega as values of fixed fields only, never as names or code."""
    return {
        "description": description,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": [_cleaned(row) for row in values]},
        "layer": list(layers),
    }


def _cleaned(row: dict[str, Any]) -> dict[str, Any]:
    return {key: plain(value) if isinstance(value, str) else _rounded(value) for key, value in row.items()}


def _rounded(value: Any) -> Any:
    """Five digits are more than a screen can show, and a third of the page's size."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def x(field: str, title: str | None = None, **more: Any) -> Spec:
    """A number from left to right."""
    return _numeric(field, title, {"grid": False, "tickCount": 5}, more)


def y(field: str, title: str | None = None, **more: Any) -> Spec:
    """A number from bottom to top."""
    return _numeric(field, title, {"tickCount": 5}, more)


def _numeric(field: str, title: str | None, usual: Spec, more: dict[str, Any]) -> Spec:
    return {"field": field, "type": "quantitative", "axis": {"title": title} | usual | more.pop("axis", {}), **more}


def rows_of(field: str, **more: Any) -> Spec:
    """Names from top to bottom, in the order of the data."""
    return {"field": field, "type": "nominal", "sort": None, "axis": {"title": None} | more.pop("axis", {}), **more}


def tip(*parts: tuple[str, str, str | None]) -> list[Spec]:
    """A tooltip: field, title and format of each line."""
    return [
        {
            "field": field,
            "title": title,
            "type": "quantitative" if form else "nominal",
            **({"format": form} if form else {}),
        }
        for field, title, form in parts
    ]


@functools.cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script.

    Raises:
        ConfigError: the package that carries them is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise ConfigError("Reports draw with vl-convert-python. Install it: pip install 'unweave[report]'.") from error
    return str(vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;"))
