"""The table that has something of every table: ours beside the paper's, and dashes for what was not run."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from experiments.documents.distances import gap
from experiments.documents.in_short import ABOUT, COLUMNS, in_short
from experiments.pages import result


@pytest.fixture
def documents() -> dict[str, dict[str, Any]]:
    """The committed ones."""
    found = {name: result(name) for name in ABOUT}
    return {name: copy.deepcopy(document) for name, document in found.items() if document is not None}


def cells(documents: dict[str, dict[str, Any]], start: str) -> list[str]:
    """The row that begins so, without its words."""
    lines = in_short(documents).splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_distances_are_those_of_the_tables(documents: dict[str, dict[str, Any]]) -> None:
    paper, authors, ours = cells(documents, "Table 1: forgotten")
    rows, known = documents["table1"]["methods"], documents["table1"]["paper"]["rows"]
    sets = ("forgotten", "retained", "test")
    assert paper == ", ".join(f"{known['pgu'][key][0] - known['retrained'][key][0]:+.2f}" for key in sets)
    for shown, method in ((authors, "pgu"), (ours, "match")):
        assert shown == ", ".join(f"{gap(rows, method, key)[0]:+.2f}" for key in sets)


def test_steps_and_budgets_stand_in_their_order(documents: dict[str, dict[str, Any]]) -> None:
    steps, budgets = documents["table3"]["steps"], documents["table4"]["networks"]["smallvgg-cifar10-paper"]
    _, _, ours = cells(documents, "Table 3, after each step: error")
    assert ours == ", ".join(f"{gap(step['methods'], 'match', 'forgotten')[0]:+.2f}" for step in steps)
    paper, _, ours = cells(documents, "Table 4: ")
    accuracy = [[found[one]["accuracy"]["test"]["mean"] for one in ("match", "clean")] for found in budgets.values()]
    assert ours == ", ".join(f"{unlearned - clean:+.2f}" for unlearned, clean in accuracy)
    assert paper.startswith("-1.86, -2.02"), "87.95 less 89.81, 86.87 less 88.89"


def test_ratios_and_attacks_are_those_of_the_documents(documents: dict[str, dict[str, Any]]) -> None:
    table1 = documents["table1"]
    every = [table1["methods"], *table1["the paper's schedule"].values()]
    for row in every:
        row["retrained"]["seconds"] |= {"median": 30.0}
        row["match"]["seconds"] |= {"median": 0.5}
    assert cells(documents, "Table 1: retraining takes")[2] == "60, 60, 60"
    table1["attacks"]["methods"]["match"]["u-lira"]["auc"]["value"] = 0.123
    assert cells(documents, "Table 1: U-LiRA")[2] == "0.123"
    assert cells(documents, "Table 2: U-LiRA")[1:] == ["1.000", "1.000"], "what is weak stands there as well"


def test_what_was_not_run_is_a_dash(documents: dict[str, dict[str, Any]]) -> None:
    assert in_short({}) == "not run yet"
    del documents["table1"]["methods"]["match"]
    documents["table1"]["methods"]["pgu"]["seconds"] = None
    documents["table1"]["attacks"] = {}
    _, authors, ours = cells(documents, "Table 1: forgotten")
    assert authors != "–" == ours
    assert cells(documents, "Table 1: U-LiRA") == ["–", "–", "–"]
    assert [cell.split(", ")[0] for cell in cells(documents, "Table 1: retraining takes")[1:]] == ["–", "–"]
    del documents["table2"]["requests"]["5"]["methods"]["retrained"]
    assert cells(documents, "Table 2, 5 classes")[1:] == ["–", "–"]
    for budget in documents["table4"]["networks"]["smallvgg-cifar10-paper"].values():
        del budget["clean"]
    assert cells(documents, "Table 4: ")[1:] == ["–", "–"]
    assert all(line.count("|") == len(COLUMNS) + 1 for line in in_short(documents).splitlines())
