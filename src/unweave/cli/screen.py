"""What a person sees: a progress bar on stderr, a table or one JSON object on stdout."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

Report = Callable[[str, int, int | None], None]


@contextmanager
def working(words: str, *, quiet: bool, clean_stdout: bool) -> Iterator[Report]:
    """A progress bar with the time left while the body works; nothing where stderr is not a terminal.

    With ``clean_stdout``, what the user's own code prints goes to stderr, so that stdout holds the result alone.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = sys.stderr.isatty() and not quiet
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown)
    task: TaskID | None = None

    def report(stage: str, done: int, total: int | None) -> None:
        nonlocal task
        if task is None:
            task = bar.add_task(words, total=total)
        bar.update(task, completed=done, total=total)

    with contextlib.redirect_stdout(sys.stderr) if clean_stdout else contextlib.nullcontext(), bar:
        yield report


def show(title: str, rows: Mapping[str, str], record: Mapping[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Print the outcome: as JSON if asked for, else as a table; where quiet, what is warned of, on stderr."""
    if as_json:
        print(as_text(record, indent=None))
    elif quiet:
        for warning in record.get("warnings", ()):
            print(f"unweave: warning: {warning}", file=sys.stderr)
    else:
        table = Table(title=Text(title), show_header=False, title_justify="left")
        table.add_column(max_width=34)
        table.add_column(overflow="fold")
        for name, value in rows.items():
            table.add_row(Text(name), Text(value))
        Console().print(table)


def as_text(record: Mapping[Any, Any], indent: int | None = 2) -> str:
    """JSON in the strict sense: numbers that are not finite (the loss before the first step) become null."""
    return json.dumps(_finite(record), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
