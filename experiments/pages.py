"""docs/reproduction.md and the README's table from results/*.json; a test fails when they differ.

    python -m experiments.pages        # write both, and docs/figures/*.svg

What stands between ``<!-- results/NAME.json -->`` and ``<!-- end of NAME -->`` is generated, and what stands after
``<!-- in short -->``; everything else is written by people. A result that is not there yet says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.documents.basis import basis, count, span
from experiments.documents.cells import attack_of, auc, beside, mean, papers, request_seconds, table, with_seconds
from experiments.documents.figures import drawn_from, write_svg
from experiments.documents.in_short import in_short
from experiments.documents.tables import TABLES

ROOT = Path(__file__).resolve().parent.parent
NOT_YET = "not run yet"
BLOCK = re.compile(r"<!-- results/(?P<name>[\w-]+)\.json -->\n.*?<!-- end of (?P=name) -->", re.DOTALL)
IN_SHORT = re.compile(r"<!-- in short -->\n.*?<!-- end of in short -->", re.DOTALL)
SUMMARY = re.compile(r"<!-- reproduction -->\n.*?<!-- end of reproduction -->", re.DOTALL)


def result(name: str, root: Path = ROOT) -> dict[str, Any] | None:
    """A result's document, or None where it was not run."""
    path = root / "results" / f"{name}.json"
    if not path.exists():
        return None
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


def block(name: str, root: Path = ROOT) -> str:
    """What stands between the markers of one result: its table, then its figures."""
    document = result(name, root)
    body = NOT_YET
    if document is not None:
        pictures = "\n".join(f"![{key}](figures/{key}.svg)" for key in drawn_from(name, document))
        body = f"{TABLES[name](document)}\n\n{pictures}".rstrip()
    return f"<!-- results/{name}.json -->\n{body}\n<!-- end of {name} -->"


def page(text: str, root: Path = ROOT) -> str:
    """A page with every block made anew, and the table that has something of all of them."""
    documents = {name: document for name in TABLES if (document := result(name, root)) is not None}
    text = IN_SHORT.sub(lambda _: f"<!-- in short -->\n{in_short(documents)}\n<!-- end of in short -->", text)
    return BLOCK.sub(lambda match: block(match["name"], root) if match["name"] in TABLES else match[0], text)


SHOWN = ("original", "retrained", "eu_k", "ntk", "scrub", "pgu", "paper", "match", "solved")
"""The rows of table 1 in the README: the paper's, and ours."""


def summary(root: Path = ROOT) -> str:
    """The README's table: table 1, the paper's methods and ours."""
    document = result("table1", root)
    body = NOT_YET if document is None else _summary(document)
    return f"<!-- reproduction -->\n{body}\n<!-- end of reproduction -->"


def _summary(document: Mapping[str, Any]) -> str:
    rows, known, shown = [], document["paper"]["rows"], dict[str, Any]()
    for method in SHOWN:
        row = document["methods"].get(method)
        if row is None:
            continue
        shown[method] = row
        paper = known.get(method, {})
        errors = [beside(mean(row["errors"][k]), papers(paper.get(k))) for k in ("retained", "forgotten", "test")]
        times = beside(request_seconds(method, row), papers(paper.get("seconds"), 0))
        found = papers(document["paper"]["auc"].get(method), 3)
        attacks = [
            beside(auc(attack_of(document, method, "xgboost")), found),
            auc(attack_of(document, method, "u-lira")),
        ]
        rows.append([row["title"], count(row), *errors, mean(row["errors"]["own"]), times, *attacks])
    columns = [
        "method",
        "n",
        "retained",
        "forgotten",
        "test",
        "held-out of their class",
        "seconds",
        "XGBoost attack",
        "U-LiRA",
    ]
    return f"{table(columns, rows)}\n\n{basis(document, ('xgboost', 'u-lira'), with_seconds(shown))}{_trials(document)}"


def _trials(document: Mapping[str, Any]) -> str:
    """How many trials are behind the settings of the baselines that are shown."""
    found = document.get("tuning", {}).get("methods", {})
    made = [len(about["trials"]) for method, about in found.items() if method in SHOWN]
    return f" Baselines: the best of {span(made)} trials each." if made else " Baselines are not run yet."


def with_summary(text: str, root: Path = ROOT) -> str:
    """The README with its table made anew."""
    return SUMMARY.sub(lambda _: summary(root), text)


def write(root: Path = ROOT) -> None:
    """Pages and figures."""
    for path, made in ((root / "docs" / "reproduction.md", page), (root / "README.md", with_summary)):
        path.write_text(made(path.read_text("utf-8"), root), "utf-8")
    for name in TABLES:
        document = result(name, root)
        if document is not None:
            write_svg(drawn_from(name, document), root / "docs" / "figures")


if __name__ == "__main__":
    write()
