"""The whole reproduction at a glance: what the paper's PGU reaches, what its settings reach here, and this project.

Errors are told as they differ from retraining's, so that networks trained in other ways compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.documents.cells import MISSING, attack_of, table, typical
from experiments.documents.distances import gap
from experiments.documents.tables import papers_step
from experiments.settings import told_in

Document = Mapping[str, Any]
AUTHORS = "pgu"
COLUMNS = ["", "the paper's PGU", "its authors' settings here", "unweave"]


def in_short(documents: Mapping[str, Document]) -> str:
    """A row for each thing that the tables compare, from those of them that there are; a dash for what was not run."""
    return table(COLUMNS, [row for name, about in ABOUT.items() if name in documents for row in about(documents[name])])


def _table1(document: Document) -> list[list[str]]:
    rows, known, sets = document["methods"], document["paper"]["rows"], ("forgotten", "retained", "test")
    return [
        _gaps("Table 1: forgotten, retained and test error less retraining's", rows, known, "match", sets),
        ["Table 1: held-out error of the forgotten samples' class, likewise", MISSING, *_ours(rows, "match", ["own"])],
        _attacks("Table 1: the paper's attack (0.50 sees nothing)", document, "match", "xgboost"),
        _attacks("Table 1: U-LiRA", document, "match", "u-lira"),
        _ratios("Table 1", document["methods"], document),
    ]


def _table2(document: Document) -> list[list[str]]:
    sets, made = ("retained", "retained test"), list[list[str]]()
    for number, request in document["requests"].items():
        known = document["paper" if not made else "paper, 10 classes"]["rows"]
        words = f"Table 2, {number} classes: retained and retained test error, likewise"
        made.append(_gaps(words, request["methods"], known, "odds", sets))
    first: Document = next(iter(document["requests"].values()))
    return [
        *made,
        _attacks("Table 2: the paper's attack", document, "odds", "xgboost"),
        _attacks("Table 2: U-LiRA", document, "odds", "u-lira"),
        _ratios("Table 2", first["methods"], document, "odds"),
    ]


def _table3(document: Document) -> list[list[str]]:
    return [
        _by_step("Table 3, after each step: error on all forgotten so far, likewise", document, "forgotten"),
        _by_step("Table 3, after each step: test error, likewise", document, "test"),
        _attacks("Table 3, after the last step: the paper's attack", document, "match", "xgboost"),
        _attacks("Table 3, after the last step: U-LiRA", document, "match", "u-lira"),
    ]


def _by_step(title: str, document: Document, key: str) -> list[str]:
    """How far one error is from retraining's, step after step."""
    steps = [
        _gaps(title, step["methods"], papers_step(document, number), "match", [key])
        for number, step in enumerate(document["steps"])
    ]
    return [title, *(", ".join(cells) for cells in zip(*(row[1:] for row in steps), strict=True))]


def _table4(title: str) -> Callable[[Document], list[list[str]]]:
    def rows(document: Document) -> list[list[str]]:
        known, words = document["paper"]["rows"], "test accuracy less that of a network without the wrong labels"
        paper = [unlearned - clean for unlearned, clean in zip(known[AUTHORS], known["clean"], strict=True)]
        return [
            [f"{title}: {words}", _list(paper), *(_less_than_clean(budgets, one) for one in (AUTHORS, "match"))]
            for budgets in document["networks"].values()
        ]

    return rows


def _less_than_clean(budgets: Mapping[str, Document], method: str) -> str:
    ran = [found for found in budgets.values() if {method, "clean"} <= set(found)]
    means = ([found[name]["accuracy"]["test"]["mean"] for name in (method, "clean")] for found in ran)
    return _list([unlearned - clean for unlearned, clean in means])


def _gaps(title: str, rows: Document, known: Document, method: str, sets: Sequence[str]) -> list[str]:
    """How far errors are from retraining's, the paper's first."""
    paper = [known[AUTHORS][key][0] - known["retrained"][key][0] for key in sets]
    return [title, _list(paper), *_ours(rows, method, sets)]


def _ours(rows: Document, method: str, sets: Sequence[str]) -> list[str]:
    there = {"original", "retrained"} <= set(rows)
    ran = [one for one in (AUTHORS, method) if there and one in rows]
    return [_list([gap(rows, one, key)[0] for key in sets]) if one in ran else MISSING for one in (AUTHORS, method)]


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:+.2f}" for value in values) or MISSING


def _attacks(title: str, document: Document, method: str, attack: str) -> list[str]:
    known = document["paper"].get("auc", {}).get(AUTHORS) if attack == "xgboost" else None
    found = (attack_of(document, one, attack) for one in (AUTHORS, method))
    here = [MISSING if one is None else f"{one['auc']['value']:.3f}" for one in found]
    return [title, MISSING if known is None else f"{known:.3f}", *here]


def _ratios(table: str, methods: Document, document: Document, method: str = "match") -> list[str]:
    """How many times as long as a request retraining takes, by the tables' recipe and by the paper's schedules."""
    published = document.get("the paper's schedule", {}).items()
    ways = {"by the tables' recipe": methods} | {f"by the paper's {told_in(n)}": rows for n, rows in published if rows}
    known = document["paper"]["rows"]
    paper = known["retrained"]["seconds"][0] / known[AUTHORS]["seconds"][0]
    title = f"{table}: retraining takes so many times as long as a request ({', '.join(ways)})"
    return [title, f"{paper:.1f}", *(_list_of_ratios(list(ways.values()), one) for one in (AUTHORS, method))]


def _list_of_ratios(ways: Sequence[Document], method: str) -> str:
    return ", ".join(_ratio(*(rows.get(name, {}).get("seconds") for name in ("retrained", method))) for rows in ways)


def _ratio(long: Document | None, short: Document | None) -> str:
    return MISSING if long is None or short is None else f"{typical(long) / typical(short):.0f}"


ABOUT: dict[str, Callable[[Document], list[list[str]]]] = {
    "table1": _table1,
    "table2": _table2,
    "table3": _table3,
    "table4": _table4("Table 4"),
    "table4-tiny": _table4("The same for TinyImageNet"),
}
