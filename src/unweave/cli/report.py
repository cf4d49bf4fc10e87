"""``unweave report``: make a page that a person can read from the JSON of an audit."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "Turn the JSON of an audit into one HTML page to read, print and keep."

USAGE = """\
unweave report RESULT.json [-o PAGE.html] [--force]
       unweave report --compare A.json B.json ... [-o PAGE.html] [--force]"""

EXAMPLE = """\
examples:
  unweave report audit.json                               writes audit.html: verdict, table, charts, how to repeat it
  unweave report audit.json -o report.html --force        the same elsewhere, in place of what is there
  unweave report --compare a.json b.json -o compare.html  several audits side by side

The page is complete in itself: it opens without a network, on a phone and in print. The exit code says whether it was
written, not whether the audit passed. Needs: pip install 'unweave[report]'."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to argparse."""
    parser.usage = USAGE
    parser.epilog = EXAMPLE
    parser.add_argument("results", metavar="RESULT.json", type=Path, nargs="+", help="what 'unweave audit' wrote")
    parser.add_argument(
        "-o", "--out", metavar="PAGE.html", type=Path, help="where to write (default: RESULT.html, or comparison.html)"
    )
    parser.add_argument("--compare", action="store_true", help="put two or more results side by side")
    parser.add_argument("--force", action="store_true", help="overwrite the page if it is there already")


def run(arguments: argparse.Namespace) -> int:
    """Write the page; 0 once it is in its place.

    Raises:
        UnweaveError: a result cannot be read, or the page cannot be written; nothing was changed.
    """
    from unweave.report import place, read, render, render_comparison, require_place

    paths: list[Path] = arguments.results
    _check_usage(arguments)
    out: Path = arguments.out or (Path("comparison.html") if arguments.compare else paths[0].with_suffix(".html"))
    require_place(out, inputs=tuple(paths), force=arguments.force)
    results = [read(path) for path in paths]
    page = render_comparison(results, names_of(paths)) if arguments.compare else render(results[0])
    place(page, out)
    print(f"Wrote {out} ({len(page.encode()) / 1e6:.1f} MB).")
    return 0


def _check_usage(arguments: argparse.Namespace) -> None:
    """Leave with exit code 2 where the number of results does not fit."""
    if arguments.compare and len(arguments.results) < 2:
        arguments.parser.error("--compare takes two results or more")
    if not arguments.compare and len(arguments.results) > 1:
        arguments.parser.error("several results: put them side by side with --compare, or make one page each")


def names_of(paths: list[Path]) -> list[str]:
    """Short names for files: without folder and ending where that tells them apart, else the whole path.

    Raises:
        ConfigError: the same file twice.
    """
    from unweave.errors import ConfigError

    for names in (
        [path.stem for path in paths],
        [str(path.with_suffix("")) for path in paths],
        [str(p) for p in paths],
    ):
        if len(set(names)) == len(names):
            return names
    raise ConfigError("The same result twice. Name different files to compare.")
