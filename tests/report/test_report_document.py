"""What is read, what is refused, and what the refusal says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import sample_audit

from unweave import report
from unweave.errors import ConfigError, DataError, StoreError
from unweave.report import document


def written(folder: Path, content: Any) -> Path:
    path = folder / "result.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


@pytest.mark.parametrize("outcome", sample_audit.OUTCOMES)
def test_a_full_document_is_read_as_it_is(tmp_path: Path, outcome: str) -> None:
    result = sample_audit.full(outcome)
    assert report.read(written(tmp_path, result)) == result


def test_a_minimal_document_is_read_and_nothing_can_be_left_out(tmp_path: Path) -> None:
    result = sample_audit.minimal()
    assert report.read(written(tmp_path, result)) == result
    for key in result:
        with pytest.raises(StoreError, match=key):
            report.read(written(tmp_path, {k: v for k, v in result.items() if k != key}))


def test_the_schema_is_one() -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(document.schema())
    assert document.schema()["properties"]["version"]["const"] == document.VERSION
    assert document.schema()["properties"]["format"]["const"] == document.FORMAT


@pytest.mark.parametrize("content", ["", "{", "no json", "[1, 2", '{"a": 1} x', "[" * 100_000])
def test_no_json(tmp_path: Path, content: str) -> None:
    with pytest.raises(StoreError, match=r"result\.json is no JSON"):
        report.read(written(tmp_path, content))


def test_no_text(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b"\x93NUMPY\xff\xfe")
    with pytest.raises(StoreError, match="not even text"):
        report.read(path)


@pytest.mark.parametrize("content", ["[]", "3", "null", "{}", '{"format": "unweave.result"}'])
def test_json_of_something_else(tmp_path: Path, content: str) -> None:
    with pytest.raises(StoreError, match=r"no result of an audit.*expected 'unweave\.audit'"):
        report.read(written(tmp_path, content))


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.5])
def test_another_version_shows_both_and_the_remedy(tmp_path: Path, version: object) -> None:
    with pytest.raises(StoreError) as caught:
        report.read(written(tmp_path, sample_audit.minimal() | {"version": version}))
    message = str(caught.value)
    assert f"version {version!r}" in message
    assert "reads version 1" in message
    assert "run the audit again" in message


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"Cannot read .*nowhere\.json.*Pass the JSON of an audit"):
        report.read(tmp_path / "nowhere.json")
    with pytest.raises(StoreError, match="Cannot read"):
        report.read(tmp_path)


VIOLATIONS = [
    (("verdict", "outcome"), "maybe", r"\$\.verdict\.outcome: 'maybe' is not one of"),
    (
        ("verdict", "checks", 0, "measured", "low"),
        "0.4",
        r"\$\.verdict\.checks\[0\]\.measured\.low: '0.4' is not of type",
    ),
    (
        ("models", 1, "errors", "forget", "samples"),
        2.5,
        r"\$\.models\[1\]\.errors\.forget\.samples: 2.5 is not of type",
    ),
    (("request", "samples"), 0, r"\$\.request\.samples: 0 is less than the minimum of 1"),
    (("tier", "colour"), "red", r"\$\.tier: .*'colour' was unexpected"),
    (("attacks", 0, "unlearned", "roc", "tpr"), [0.0, 1.0], r"\$\.attacks\[0\]\.unlearned\.roc\.tpr has 2 values"),
    (("attacks", 1, "original", "scores", "edges"), [0.0], r"\$\.attacks\[1\]\.original\.scores\.positives has 24"),
    (("entropies", 3, "shares"), [1.0], r"\$\.entropies\[3\]\.shares has 1 values\. Expected: 27"),
    (("attacks", 0, "unlearned", "auc", "value"), float("nan"), r"\$\.attacks\[0\]\.unlearned\.auc\.value is nan"),
    (("models", 1, "seconds"), float("inf"), r"\$\.models\[1\]\.seconds is inf"),
    (("settings", "forget", "gamma"), [float("-inf")], r"\$\.settings\.forget\.gamma\[0\] is -inf"),
    (("models", 1, "seconds"), 10**400, r"\$\.models\[1\]\.seconds is too large"),
]


def changed(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    result = sample_audit.full()
    here: Any = result
    for step in place[:-1]:
        here = here[step]
    here[place[-1]] = value
    return result


@pytest.mark.parametrize("place, value, message", VIOLATIONS)
def test_a_violation_names_its_place_and_what_was_expected(
    tmp_path: Path, place: tuple[str | int, ...], value: Any, message: str
) -> None:
    result = changed(place, value)
    with pytest.raises(StoreError, match=message):
        report.read(written(tmp_path, result))
    with pytest.raises(DataError, match=message):
        report.render(result)
    with pytest.raises(DataError, match=message):
        report.render_comparison([sample_audit.minimal(), result], ["a", "b"])


def test_nesting_has_an_end() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    with pytest.raises(DataError, match="nested too deeply"):
        report.render(sample_audit.minimal() | {"settings": {"deep": deep}})


@pytest.mark.parametrize("module, what", [("jsonschema", document._validator), ("vl_convert", None)])
def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, module: str, what: Any) -> None:
    from unweave.report import vega

    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(document, "_validator", document._validator.__wrapped__)
    monkeypatch.setattr("unweave.report.page.library", vega.library.__wrapped__)
    with pytest.raises(ConfigError, match=r"pip install 'unweave\[report\]'"):
        report.render(sample_audit.full())


def test_a_place_that_is_taken_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("mine")
    with pytest.raises(ConfigError, match=r"there already.*force"):
        report.write(sample_audit.minimal(), path)
    assert path.read_text() == "mine"
    report.write(sample_audit.minimal(), path, force=True)
    assert path.read_text("utf-8").startswith("<!doctype html>")


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it is a folder"):
        report.write(sample_audit.minimal(), tmp_path)
    with pytest.raises(ConfigError, match="there is no folder"):
        report.write(sample_audit.minimal(), tmp_path / "nowhere" / "page.html")
    with pytest.raises(ConfigError, match="no ordinary file"):
        report.write(sample_audit.minimal(), "/dev/null", force=True)
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_result_and_a_failed_write_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    with pytest.raises(DataError):
        report.write(sample_audit.minimal() | {"rerun": 3}, path)

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unweave.report.files.os.replace", full_disk)
    with pytest.raises(StoreError, match="No space left on device"):
        report.write(sample_audit.minimal(), path)
    assert list(tmp_path.iterdir()) == []


def test_the_example_in_the_documentation_is_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text("utf-8")
    example = text.partition("```json\n")[2].partition("```")[0]
    assert report.read(written(tmp_path, example)) == sample_audit.minimal()
