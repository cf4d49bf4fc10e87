"""``unweave report``: files in, one page out, and nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_audit import minimal
from toy_project import Cli

pytest.importorskip("jsonschema", reason="needs unweave[report]")
pytest.importorskip("vl_convert", reason="needs unweave[report]")


@pytest.fixture
def result(here: Path) -> Path:
    path = here / "audit.json"
    path.write_text(json.dumps(minimal()))
    return path


def test_one_audit_becomes_one_page(here: Path, result: Path, cli: Cli) -> None:
    done = cli("report", result, "-o", "page.html")
    assert (done.code, done.err) == (0, "")
    assert "Wrote page.html" in done.out
    assert "Too little was given to say anything." in (here / "page.html").read_text("utf-8")


def test_without_a_place_the_page_lies_beside_the_result(here: Path, result: Path, cli: Cli) -> None:
    assert cli("report", result).code == 0
    assert (here / "audit.html").is_file()
    assert cli("report", result).code == 2
    assert cli("report", result, "--force").code == 0


def test_several_audits_side_by_side(here: Path, result: Path, cli: Cli) -> None:
    (here / "run").mkdir()
    (here / "run" / "audit.json").write_text(json.dumps(minimal()))
    done = cli("report", "--compare", "audit.json", "run/audit.json", "-o", "both.html")
    assert (done.code, done.err) == (0, "")
    text = (here / "both.html").read_text("utf-8")
    assert "2 audits side by side" in text
    assert "run/audit" in text


def test_help_teaches_with_an_example(cli: Cli) -> None:
    shown = cli("report", "--help")
    assert shown.code == 0
    assert "  unweave report audit.json" in shown.out.partition("example")[2]


@pytest.mark.parametrize(
    "words", [["report"], ["report", "a.json", "b.json"], ["report", "--compare", "a.json"], ["report", "--comp", "a"]]
)
def test_wrong_usage(cli: Cli, words: list[str]) -> None:
    assert cli(*words).code == 2


@pytest.mark.parametrize(
    "code, words, message",
    [
        (2, ["nowhere.json"], "Cannot read nowhere.json"),
        (2, ["folder"], "Cannot read folder"),
        (1, ["text.json"], "text.json is no JSON"),
        (1, ["nan.json"], "$.thresholds.auc is nan"),
        (1, ["future.json"], "version 2 of the format; this release reads version 1"),
        (2, ["audit.json", "-o", "folder"], "it is a folder"),
        (2, ["audit.json", "-o", "taken.html"], "taken.html is there already"),
        (2, ["audit.json", "-o", "no/where.html"], "there is no folder no"),
        (2, ["audit.json", "-o", "audit.json", "--force"], "which it is made from"),
        (2, ["--compare", "audit.json", "./audit.json"], "The same result twice"),
    ],
)
def test_what_goes_wrong_is_said_and_changes_nothing(
    here: Path, result: Path, cli: Cli, code: int, words: list[str], message: str
) -> None:
    (here / "folder").mkdir()
    (here / "text.json").write_text("hello")
    (here / "nan.json").write_text(json.dumps(minimal() | {"thresholds": {"auc": float("nan")}}))
    (here / "future.json").write_text(json.dumps(minimal() | {"version": 2}))
    (here / "taken.html").write_text("mine")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    done = cli("report", *words)
    assert done.code == code
    assert message in done.err
    assert done.err.startswith("unweave: error:")
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before
