"""docs/baselines-closed.md: its code runs, and its table says what the methods say about themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unweave.baselines import BASELINES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "baselines-closed.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \|(.*)$", TEXT, re.M))


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", TEXT, re.S), ids=["ntk", "sisa"])
def test_the_code_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "docs/baselines-closed.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", ["ntk", "fisher", "ssd", "first_order", "second_order", "sisa"])
def test_the_table_tells_the_source_the_needs_and_the_defaults(name: str) -> None:
    source, needs, defaults, *_ = (cell.strip() for cell in ROWS[name].split("|"))
    assert source == BASELINES[name].source
    words = {
        "first weights": "first=",
        "true labels": "true_labels=",
        "checkpoints": "checkpoints=",
        "trainer": "train=",
    }
    for need in BASELINES[name].needs - {"training"}:
        assert words.get(need, need) in needs
    config = BASELINES[name].config()
    letters = {"mu": "μ", "alpha": "α", "lam": "λ", "tau": "τ", "scale": "s", "damping": "δ"}
    stated = {
        letter: value for field, letter in letters.items() if isinstance(value := getattr(config, field, 0), float)
    }
    for letter, value in stated.items():
        (number,) = re.findall(rf"(?<!\w){letter} = ([\d.e-]+)", defaults)
        assert float(number) == value
