"""docs/baselines.md: its code runs, and its table says what the methods say about themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unweave.baselines import BASELINES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "baselines.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
ROWS = {
    name: [cell.strip() for cell in rest.split("|")] for name, rest in re.findall(r"^\| `(\w+)` \|(.*)\|$", TEXT, re.M)
}
ARGUMENTS = {
    "first weights": "`first=`",
    "true labels": "`true_labels=`",
    "importances": "`importances=`",
    "checkpoints": "`checkpoints=`",
    "trainer": "`train=`",
    "training": "training data",
}
LETTERS = {
    "mu": "μ",
    "alpha": "α",
    "gamma": "γ",
    "lam": "λ",
    "tau": "τ",
    "scale": "s",
    "damping": "δ",
    "a": "a",
    "k": "k",
}


@pytest.mark.parametrize("block", BLOCKS)
def test_the_code_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "docs/baselines.md", "exec"), {})
    assert capsys.readouterr().out


def test_there_is_code_and_a_row_for_every_method_in_the_order_of_the_registry() -> None:
    assert len(BLOCKS) == 3
    assert list(ROWS) == list(BASELINES)


@pytest.mark.parametrize("name", BASELINES)
def test_the_table_tells_title_needs_and_source(name: str) -> None:
    title, needs, source, *_ = ROWS[name]
    method = BASELINES[name]
    assert re.match(rf"{re.escape(method.title)}[: (]", title)
    assert source == method.source
    always = set(needs.split(";")[0].split(", "))
    assert always & {"forget", "retain", "val"} == method.needs & {"forget", "retain", "val"}
    for need in method.needs - {"forget", "retain", "val"}:
        assert ARGUMENTS[need] in needs
    told = re.findall(r"; (\w+) for `(\w+)`", needs)
    assert {setting: need for need, setting in told} == dict(method.also)


@pytest.mark.parametrize("name", BASELINES)
def test_the_table_tells_the_defaults(name: str) -> None:
    defaults, config = ROWS[name][3], BASELINES[name].config()
    if hasattr(config, "epochs"):
        assert re.search(rf"(?<!\d){config.epochs} epochs", defaults)
    if hasattr(config, "lr"):
        kind, rate = re.findall(r"(SGD|Adam) ([\d.e-]+)", defaults)[0]
        assert (kind.lower(), float(rate)) == (config.optimizer, config.lr)
    for field, letter in LETTERS.items():
        value = getattr(config, field, False)
        if not isinstance(value, bool):
            (number,) = re.findall(rf"(?<!\w){letter} = ([\d.e-]+)", defaults)
            assert float(number) == value
