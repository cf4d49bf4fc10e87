"""Processes of our own: they share jobs, are interrupted and waited for as one, and do not outlive who started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
import torch

from experiments.reproduce import Options, _prepared, reproduce
from experiments.running.processes import side_by_side
from experiments.running.turns import _take_part
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
        time.sleep(600)
    except KeyboardInterrupt:
        time.sleep(0.5)  # a second interruption would end this
        Path(sys.argv[1], f"{number} was told").touch()
        raise

if __name__ == "__main__":
    side_by_side(sleep, 2, print)
"""


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True
    except OSError:
        return False


def wait_until(reached: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def test_exit_codes_come_back_in_order() -> None:
    assert side_by_side(sys.exit, 2, print) == [1, 2]


def test_an_error_of_ours_is_said_plainly(capfd: pytest.CaptureFixture[str]) -> None:
    assert side_by_side(recipe_of, 1, print) == [2]  # type: ignore[arg-type]  # no recipe is named 1
    said = capfd.readouterr().err
    assert said.startswith("process 1: error: Invalid recipe: 1. Supported: ")
    assert "Traceback" not in said


def be_killed(number: int) -> None:
    """As by a signal that nothing can have been told to ignore, as nohup does with others."""
    signal.raise_signal(signal.SIGKILL)


def test_who_is_killed_is_told_of() -> None:
    said = list[str]()
    assert side_by_side(be_killed, 1, said.append) == [-signal.SIGKILL]
    assert said == ["process 1 was ended by signal 9; the others take up its jobs"]


def test_those_that_did_start_end_where_others_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = SpawnProcess.start, list[SpawnProcess]()

    def refuse(process: SpawnProcess) -> None:
        if begun:
            raise BlockingIOError("no more processes")
        begun.append(process)
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", refuse)
    with pytest.raises(ConfigError, match=r"Cannot start 2 processes \(no more processes\)\. Give fewer --processes"):
        side_by_side(partial(time.sleep, 600), 2, print)  # type: ignore[arg-type]  # too many arguments, if it began
    assert not begun[0].is_alive()


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Who started two processes that sleep, and their numbers; nobody is left behind."""
    script = tmp_path / "sleepers.py"
    script.write_text(SLEEPERS)
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])
    with open(tmp_path / "stderr", "w") as errors:
        starter = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": paths},
            stderr=errors,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's & lets it be ignored
        )
    pids = [tmp_path / "1", tmp_path / "2"]
    numbers = list[int]()
    try:
        wait_until(lambda: all(path.exists() and path.read_text() for path in pids))
        numbers += [int(path.read_text()) for path in pids]
        yield starter, numbers
    finally:
        for pid in (starter.pid, *numbers):
            if is_there(pid):
                os.kill(pid, signal.SIGKILL)
        starter.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("everybody", [True, False], ids=["by a terminal", "alone"])
def test_ctrl_c_is_passed_on_once(
    sleepers: tuple[subprocess.Popen[str], list[int]], tmp_path: Path, everybody: bool
) -> None:
    starter, numbers = sleepers
    for number in numbers if everybody else ():
        os.kill(number, signal.SIGINT)
    starter.send_signal(signal.SIGINT)
    wait_until(lambda: starter.poll() is not None)
    assert not any(map(is_there, numbers))
    assert all((tmp_path / f"{number} was told").exists() for number in (1, 2))
    assert (tmp_path / "stderr").read_text().count("KeyboardInterrupt") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_a_second_ctrl_c_kills(sleepers: tuple[subprocess.Popen[str], list[int]], tmp_path: Path) -> None:
    starter, numbers = sleepers
    for number in numbers:
        os.kill(number, signal.SIGSTOP)  # they cannot hear
    starter.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert starter.poll() is None
    starter.send_signal(signal.SIGINT)
    wait_until(lambda: starter.poll() is not None)
    assert not any(map(is_there, numbers))


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_they_end_with_who_started_them(sleepers: tuple[subprocess.Popen[str], list[int]], tmp_path: Path) -> None:
    starter, numbers = sleepers
    starter.kill()
    wait_until(lambda: not any(map(is_there, numbers)))
    assert all((tmp_path / f"{number} was told").exists() for number in (1, 2))


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
    assert all(row["made_by"]["threads"] == max(1, torch.get_num_threads() // 2) for row in rows)


def test_the_time_of_a_run_is_that_of_its_processes(tmp_path: Path) -> None:
    said = list[str]()
    reproduce(
        ["table1"], Options(tmp_path, SMOKE, device="cpu", jobs=ALIKE, stage="run", minutes=0, processes=2), said.append
    )
    assert said[-1].endswith(f" minutes are over: {2 * SMOKE.models} jobs left; the same command goes on")


def test_of_an_interruption_only_who_started_them_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.running.turns._work_off", interrupt)
    with pytest.raises(SystemExit) as left:
        _take_part(partial(_prepared, ["table1"]), Options(tmp_path, SMOKE, device="cpu", processes=2), 1)
    assert left.value.code == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("codes", [[0, 1], [-9, 2], [130, 2]])
def test_processes_that_fail_end_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[int]) -> None:
    said = list[str]()
    monkeypatch.setattr("experiments.running.turns.side_by_side", lambda part, count, say: codes)
    options = Options(tmp_path, SMOKE, device="cpu", jobs=ALIKE, stage="both", processes=2)
    with pytest.raises(SystemExit) as left:
        reproduce(["table1"], options, said.append)
    assert left.value.code == (2 if 2 in codes else 1)
    failed = sum(code != 0 for code in codes)
    assert said[-1] == f"{failed} of 2 processes failed: 0 of {2 * SMOKE.models} jobs are kept in {tmp_path}"


@pytest.mark.parametrize(("number", "workers"), [(0, "here"), (2, "ray")])
def test_a_number_of_processes_that_cannot_be(tmp_path: Path, number: int, workers: str) -> None:
    options = Options(tmp_path, SMOKE, device="cpu", processes=number, workers=workers)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"Invalid --processes: {number}"):
        reproduce(["table1"], options)
