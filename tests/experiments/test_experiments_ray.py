"""Experiments on Ray's workers: the same jobs, kept in the same folder, whose outcomes become the same document."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.reproduce import Options, reproduce
from experiments.settings import SMOKE

pytest.importorskip("ray", reason="ray is an extra of its own")
PACKAGE = Path(__file__).parents[2] / "src"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As Ray's workers have, so that numbers are the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def errors(document: dict[str, Any]) -> dict[str, Any]:
    """By method and γ."""
    methods = {f"{name} {key}": row for name, rows in document["methods"].items() for key, row in rows.items()}
    return {name: row["errors"] for name, row in (document["references"] | methods).items()}


def test_an_experiment_on_rays_workers_is_the_same_experiment(tmp_path: Path, one_thread: None) -> None:
    there, said = Options(tmp_path / "ray", SMOKE, device="cpu", workers="ray"), list[str]()
    found = reproduce(["gamma"], there, said.append)["gamma"]
    assert said[0] == "4 jobs, 0 of them done before"
    assert sum("quick-smallvgg/" in line.partition(" ")[2] for line in said) >= 4
    assert errors(found) == errors(reproduce(["gamma"], Options(tmp_path / "here", SMOKE, device="cpu"))["gamma"])
    said.clear()
    reproduce(["gamma"], there, said.append)
    assert said[0] == "4 jobs, 4 of them done before"


def test_the_command_finds_the_experiments_on_rays_workers_from_any_folder(tmp_path: Path) -> None:
    words = ["reproduce", "gamma", "--quick", "--device", "cpu", "--workers", "ray", "--stage", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "unweave", *words, "--jobs", "*/original/*", "--out", tmp_path / "work"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},  # the checkout itself is found by the command
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "work" / "rows").rglob("original/*.json"))) == 2
