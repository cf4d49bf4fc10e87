"""``unweave demo``: see a small network forget, on real images, in a few minutes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from unweave.demo.story import Chapter

HELP = "Train a small network on real images, lose its training set, and make it forget."

EXAMPLE = """\
example:
  unweave demo                 two to four minutes on two cores; writes demo-output/
  unweave demo --seed 1        another network

Prints one table: errors of the original, the unlearned and a retrained network on what was retained, forgotten and
never seen, with the seconds each took. Then audits each, and the original and the retrained network too. Writes
result.json, demo.png, audit-*.json, and two pages: report.html and compare.html."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to argparse."""
    parser.epilog = EXAMPLE
    parser.add_argument(
        "--out", type=Path, default=Path("demo-output"), help="folder to write to (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the networks (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Tell the story; 0 when every request reached its target, 3 otherwise.

    Raises:
        UnweaveError: the packaged images are damaged, or matplotlib is missing.
    """
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from unweave.demo.plots import draw, pyplot
    from unweave.demo.story import Story

    pyplot()  # what is missing is better known before the work than after it
    console = Console()
    began = time.perf_counter()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console, transient=True
    )
    with bar:
        task = bar.add_task("", total=1, visible=False)

        def tick(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total, visible=done < total)

        story = Story(arguments.out, arguments.seed, lambda text: bar.console.print(text, highlight=False), tick)
        chapters = story.tell()
    draw(chapters, arguments.out / "demo.png")
    console.print(_table(chapters))
    console.print(
        f"{time.perf_counter() - began:.0f} s in all. Open {arguments.out / 'report.html'} (the audit of the first "
        f"request) and {arguments.out / 'compare.html'}; the numbers are in result.json, a picture in demo.png.",
        highlight=False,
    )
    return 0 if all(chapter.ok for chapter in chapters) else 3


def _table(chapters: list[Chapter]) -> Table:
    from rich.table import Table

    table = Table(title="Percent wrong (retrained: never saw what was to be forgotten)", title_justify="left")
    for column in ("request", "network", "retained", "forgotten", "test", "seconds"):
        table.add_column(column, justify="left" if column in ("request", "network") else "right")
    for chapter in chapters:
        seconds = {"original": float("nan"), "unlearned": chapter.unlearn_seconds, "retrained": chapter.retrain_seconds}
        for name, duration in seconds.items():
            errors = getattr(chapter, name)
            cells = [f"{value:.1f}" for value in (errors.retained, errors.forgotten, errors.test)]
            title = chapter.title if name == "original" else ""
            table.add_row(title, name, *cells, "" if duration != duration else f"{duration:.1f}")
        table.add_section()
    return table
