"""docs/baselines.md: its code runs, and its table says what the methods say about themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_baseline_all import TRAINED

from unweave.baselines import BASELINES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "baselines.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.S)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_code_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "docs/baselines.md", "exec"), {})
    assert capsys.readouterr().out


def test_there_is_code() -> None:
    assert BLOCKS


@pytest.mark.parametrize("name", TRAINED)
def test_the_table_tells_what_a_method_needs_and_how_long_it_runs(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \|.*$", TEXT, re.M)
    _, _, method, needs, _, defaults, _ = (cell.strip() for cell in row.split("|"))
    assert set(re.split(r"[,;] ", needs.split(";")[0])) == BASELINES[name].needs
    assert method.startswith(BASELINES[name].title)
    assert f"{BASELINES[name].config().epochs} epochs" in defaults
