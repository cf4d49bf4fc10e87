"""A figure: a title, a sentence on what to see, one or more charts side by side, and the same numbers as a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from unweave.report.markup import Markup, join, tag
from unweave.report.vega import Spec


@dataclass(frozen=True)
class Table:
    """Texts, of which the first of each row names it."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]

    def html(self, caption: str) -> Markup:
        """As an element that scrolls by itself where the screen is narrow."""
        head = tag("tr", join(tag("th", cell, scope="col") for cell in self.head))
        body = join(
            tag("tr", tag("th", row[0], scope="row"), join(tag("td", cell) for cell in row[1:])) for row in self.rows
        )
        table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
        return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=f"Table: {caption}")


@dataclass(frozen=True)
class Figure:
    """``panels`` are charts with a label each ("" for none)."""

    title: str
    caption: str
    panels: Sequence[tuple[str, Spec]]
    table: Table
    legend: Markup | None = None
    columns: int = 1


@dataclass
class Canvas:
    """Collects the charts of a page, which its script draws into the places that this leaves for them."""

    specs: dict[str, Spec] = field(default_factory=dict)
    _numbers: Iterable[int] = field(default_factory=lambda: itertools.count(1))

    def add(self, figure: Figure, level: int = 3) -> Markup:
        """The figure's element."""
        panels = join(self._panel(label, spec) for label, spec in figure.panels)
        return tag(
            "figure",
            tag(f"h{level}", figure.title),
            tag("figcaption", figure.caption),
            figure.legend,
            tag("div", panels, class_=f"panels columns-{figure.columns}"),
            tag("details", tag("summary", "Show the numbers"), figure.table.html(figure.title)),
        )

    def _panel(self, label: str, spec: Spec) -> Markup:
        name = f"chart-{next(iter(self._numbers))}"
        self.specs[name] = spec
        return tag("div", tag("p", label) if label else None, tag("div", id=name, class_="chart"), class_="panel")
