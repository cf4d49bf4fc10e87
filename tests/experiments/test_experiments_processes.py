"""Processes of our own: they share jobs, are interrupted and waited for as one, and do not outlive who started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from experiments.reproduce import Options, reproduce
from experiments.running.processes import side_by_side
from experiments.running.work import Work
from experiments.settings import SMOKE
from experiments.training.recipes import recipe_of
from unweave.errors import ConfigError

ALIKE = "*/original/*,*/retrained/*"
SLEEPERS = """\
import os, sys, time
from pathlib import Path
from experiments.running.processes import side_by_side

def sleep(number):
    Path(sys.argv[1], str(number)).write_text(str(os.getpid()))
    try:
        time.sleep(60)
    finally:
        time.sleep(0.5)  # a second interruption would end this
        Path(sys.argv[1], f"{number} ended").touch()

if __name__ == "__main__":
    side_by_side(sleep, 2)
"""


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True


def wait_until(reached: object, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def test_exit_codes_come_back_in_order() -> None:
    assert side_by_side(sys.exit, 2) == [1, 2]


def test_an_error_of_ours_is_said_plainly(capfd: pytest.CaptureFixture[str]) -> None:
    assert side_by_side(recipe_of, 1) == [1]  # type: ignore[arg-type]  # no recipe is named 1
    said = capfd.readouterr().err
    assert said.startswith("process 1: error: Invalid recipe: 1. Supported: ")
    assert "Traceback" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_they_are_interrupted_once_and_end_with_who_started_them(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "sleepers.py"
    script.write_text(SLEEPERS)
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        stderr=subprocess.PIPE,
        text=True,
    ) as starter:
        pids = [tmp_path / "1", tmp_path / "2"]
        wait_until(lambda: all(path.exists() and path.read_text() for path in pids))
        numbers = [int(path.read_text()) for path in pids]
        if how == signal.SIGINT:
            os.kill(numbers[0], how)  # as a terminal does, which tells everybody
            time.sleep(0.1)
        starter.send_signal(how)
        assert starter.stderr is not None
        said = starter.stderr.read()
    wait_until(lambda: not any(is_there(number) for number in numbers))
    assert all((tmp_path / f"{number} ended").exists() for number in (1, 2))
    assert ("KeyboardInterrupt" in said) == (how == signal.SIGINT)


def test_an_experiment_by_two_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = list[str]()
    options = Options(tmp_path, SMOKE, device="cpu", jobs=ALIKE, stage="run", processes=2)
    assert reproduce(["table1"], options, said.append) == {}
    names = Work(tmp_path, SMOKE, torch.device("cpu")).names()
    assert len(names) == 2 * SMOKE.models
    assert said == [f"{len(names)} jobs, 0 of them done before"]
    lines = [line.split() for line in capfd.readouterr().out.splitlines() if "/" in line]
    assert sorted(line[2] for line in lines) == sorted(names)
    assert {line[0] for line in lines} <= {"[1]", "[2]"}
    rows = [json.loads((tmp_path / "rows" / f"{name}.json").read_text()) for name in names]
    assert all(row["made_by"]["crowded"] for row in rows)
    assert all(row["made_by"]["threads"] == max(1, (os.cpu_count() or 1) // 2) for row in rows)


def test_processes_that_fail_end_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr("experiments.reproduce.side_by_side", lambda part, count: [0, 1][:count])
    options = Options(tmp_path, SMOKE, device="cpu", jobs=ALIKE, stage="both", processes=2)
    with pytest.raises(SystemExit) as left:
        reproduce(["table1"], options, said.append)
    assert left.value.code == 1
    assert said[-1] == f"1 of the processes failed: {2 * SMOKE.models} jobs left; the same command goes on"


@pytest.mark.parametrize(("number", "workers"), [(0, "here"), (2, "ray")])
def test_a_number_of_processes_that_cannot_be(tmp_path: Path, number: int, workers: str) -> None:
    options = Options(tmp_path, SMOKE, device="cpu", processes=number, workers=workers)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"Invalid --processes: {number}"):
        reproduce(["table1"], options)
