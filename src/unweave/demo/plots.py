"""The demonstration's picture: what each request did, how it got there, and what an onlooker sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unweave.demo.story import Chapter
from unweave.errors import ConfigError

COLOURS = {"original": "#9aa5b1", "unlearned": "#d1495b", "retrained": "#2a6f97"}


def pyplot() -> Any:
    """matplotlib, drawing to files only.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ConfigError(
            "The demonstration draws with matplotlib. Install it: pip install 'unweave[demo]'."
        ) from error
    return plt


def draw(chapters: list[Chapter], path: Path) -> None:
    """Write a PNG with three panels."""
    plt = pyplot()
    figure, panels = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    _errors(panels[0], chapters)
    _way(panels[1], chapters[0])
    _margins(panels[2], chapters[0])
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _errors(panel: Any, chapters: list[Chapter]) -> None:
    for i, chapter in enumerate(chapters):
        for j, (name, colour) in enumerate(COLOURS.items()):
            errors = getattr(chapter, name)
            bar = panel.bar(i + (j - 1) * 0.27, errors.forgotten, 0.25, color=colour, label=name if i == 0 else None)
            panel.bar_label(bar, fmt="%.0f", fontsize=8, padding=1)
    panel.set_xticks(range(len(chapters)), [chapter.title for chapter in chapters])
    panel.set(title="error on what was to be forgotten", ylabel="% wrong", ylim=(0, 122))
    panel.legend(fontsize=8, frameon=False, ncols=3, loc="upper left")
    _clean(panel)


def _way(panel: Any, chapter: Chapter) -> None:
    panel.plot(chapter.history, color=COLOURS["unlearned"], marker="o", markersize=3)
    panel.axhline(chapter.target, color=COLOURS["retrained"], linestyle="--", linewidth=1)
    panel.annotate(
        "held-out error of its classes", (0, chapter.target), xytext=(0, 4), textcoords="offset points", fontsize=8
    )
    panel.set(title=f"the way there: {chapter.title}", xlabel="epoch", ylabel="% of the forget set wrong")
    _clean(panel)


def _margins(panel: Any, chapter: Chapter) -> None:
    assert chapter.margins is not None
    for name, values in chapter.margins.items():
        panel.hist(values, bins=30, range=(-8, 10), histtype="step", color=COLOURS[name], linewidth=1.6, label=name)
    panel.set(title=f"what an onlooker sees: {chapter.title}", xlabel="margin of the true class", ylabel="samples")
    panel.legend(fontsize=8, frameon=False)
    _clean(panel)


def _clean(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
