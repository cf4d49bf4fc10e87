"""The frame around the commands: help, version, exit codes, what goes to which stream."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_project import Cli, Outcome, files

import unweave
from unweave.cli import init, screen
from unweave.cli import main as main_module
from unweave.errors import (
    ConfigError,
    DataError,
    LayerChoiceError,
    LayerError,
    MismatchError,
    ModelError,
    RankError,
    StoreError,
    UnweaveError,
)

WITHOUT_THE_PACKAGE = """
import importlib.util, sys, types
package = types.ModuleType("unweave")  # as if unweave/__init__.py had imported nothing
package.__path__ = list(importlib.util.find_spec("unweave").submodule_search_locations)
package.__version__ = "0"
sys.modules["unweave"] = package
from unweave.cli.main import COMMANDS, main
assert main(["--help"]) == 0
for name, path in COMMANDS:
    if importlib.util.find_spec(path):
        assert main([name, "--help"]) == 0
heavy = {"torch", "numpy", "rich", "PIL", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""


INTERRUPTED_TORCH = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:  # some import amid PyTorch does that
    pass
raise KeyboardInterrupt
"""


def _python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60, env=os.environ | environment
    )


def test_no_command_imports_anything_heavy_for_its_help() -> None:
    done = _python("-c", WITHOUT_THE_PACKAGE)
    assert done.returncode == 0, done.stderr


def test_help_as_a_module() -> None:
    done = _python("-m", "unweave.cli.main", "--help")
    assert done.returncode == 0, done.stderr
    assert "unweave forget --ids" in done.stdout


def test_version(cli: Cli) -> None:
    shown = cli("--version")
    assert (shown.code, shown.out) == (0, f"unweave {unweave.__version__}\n")


@pytest.mark.parametrize("command", ["init", "fit", "forget", "bench"])
def test_help_teaches_with_an_example(cli: Cli, command: str) -> None:
    shown = cli(command, "--help")
    assert shown.code == 0
    assert f"  unweave {command}" in shown.out.partition("example")[2]


@pytest.mark.parametrize("command", ["verify"])
def test_what_is_not_built_is_not_there(cli: Cli, command: str) -> None:
    assert not re.search(rf"^\s+{command}\b", cli("--help").out, re.MULTILINE)
    assert cli(command).code == 2


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fit", "--nonsense"],
        ["forget"],
        ["forget", "--ids", "a", "--classes", "1"],
        ["forget", "--ids", "a", "--drop"],
        ["forget", "--classes", ","],
        ["forget", "--ids", "a", "--epochs", "many"],
        ["forget", "--ids", "a", "--gamma", "layer="],
        ["forget", "--poisoned", "a", "--task", "samples"],
        ["fit", "--resize", "32"],
        ["fit", "--argument", "width"],
    ],
)
def test_wrong_usage(cli: Cli, words: list[str]) -> None:
    wrong = cli(*words)
    assert wrong.code == 2
    assert wrong.out == ""
    assert wrong.err.startswith("usage: unweave")


@pytest.mark.parametrize(
    "words, guess",
    [
        (["fit", "--weigths", "w.pt"], "--weigths w.pt. Did you mean '--weights'?"),
        (["fit", "--weigths=w.pt"], "Did you mean '--weights'?"),
        (["forget", "--ids", "a", "--keep-anyways"], "Did you mean '--keep-anyway'?"),
        (["audit", "--idss", "a"], "Did you mean '--ids'?"),
        (["report", "a.json", "--fource"], "Did you mean '--force'?"),
        (["init", "--xyzzyx"], "--xyzzyx.\n"),
    ],
)
def test_a_mistyped_flag(here: Path, cli: Cli, words: list[str], guess: str) -> None:
    wrong = cli(*words)
    assert wrong.code == 2
    assert wrong.err.startswith(f"usage: unweave {words[0]} ")
    assert guess in wrong.err


def test_an_error_of_ours_has_no_traceback(here: Path, cli: Cli) -> None:
    failed = cli("fit", "--config", "nowhere.toml")
    assert failed.code == 2
    assert failed.out == ""
    assert failed.err.startswith("unweave: error: ")
    assert failed.err.count("\n") == 1
    assert "Traceback" in cli("fit", "--config", "nowhere.toml", "--debug").err


def raised(error: UnweaveError, cause: Exception | None = None) -> UnweaveError:
    try:
        raise error from cause
    except UnweaveError as caught:
        return caught


@pytest.mark.parametrize(
    "error, code",
    [
        *((kind("…"), 2) for kind in (ConfigError, LayerChoiceError)),
        *((kind("…"), 1) for kind in (DataError, ModelError, LayerError, MismatchError, StoreError, RankError)),
        (raised(StoreError("…"), FileNotFoundError()), 2),
        (raised(DataError("…"), NotADirectoryError()), 2),
        (raised(StoreError("…"), PermissionError()), 1),
        (raised(StoreError("…"), ValueError()), 1),
    ],
    ids=lambda value: f"{value!r} from {value.__cause__!r}" if isinstance(value, Exception) else None,
)
def test_the_exit_code_says_whether_the_command_is_to_be_corrected(
    here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, error: UnweaveError, code: int
) -> None:
    def fail(arguments: Any) -> None:
        raise error

    monkeypatch.setattr(init, "run", fail)
    assert cli("init") == Outcome(code, "", "unweave: error: …\n")


def test_an_error_of_another_kind_is_not_swallowed(project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(unweave, "fit", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli("fit")


def test_json_is_all_there_is_on_stdout(project: Path, cli: Cli) -> None:
    """Even if the user's own code prints."""
    (project / "chatty_net.py").write_text(
        "from toy_net import build as b\ndef build():\n    print('hello')\n    return b()\n"
    )
    fit = cli("fit", "--json", "--factory", "chatty_net:build")
    assert fit.code == 0, fit.err
    assert fit.record["samples"] == 240
    assert fit.out.count("\n") == 1
    assert fit.err == "hello\n"
    done = cli("forget", "--ids", "ids.txt", "--json", "--factory", "chatty_net:build")
    assert done.record["ok"] is True
    assert done.record["history"] == json.loads((project / "forgotten.json").read_text())["history"]
    assert done.out.count("\n") == 1


def test_quiet(project: Path, cli: Cli) -> None:
    assert cli("fit", "--quiet") == Outcome(0, "", "")
    assert cli("forget", "--ids", "ids.txt", "--quiet") == Outcome(0, "", "")
    done = cli("forget", "--ids", "ids.txt", "--quiet", "--force", "--val=", "--epochs", "100")
    assert done.out == ""
    warned = json.loads((project / "forgotten.json").read_text())["warnings"]
    assert done.err.splitlines() == [f"unweave: warning: {text}" for text in warned]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_for_terminals(project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert (cli("fit").err != "") is terminal
    done = cli("forget", "--ids", "ids.txt")
    assert ("forget" in done.err) is terminal


@pytest.mark.parametrize("command", [["fit"], ["forget", "--ids", "ids.txt"]])
def test_ctrl_c_while_working(fitted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    (fitted / "grams.safetensors").rename(fitted / "g.safetensors")
    words = [*command, *(["--grams", "g.safetensors"] if command[0] == "forget" else [])]
    before = files(fitted)
    monkeypatch.setattr(unweave, command[0], interrupt)
    stopped = cli(*words)
    assert stopped.code == 130
    assert stopped.out == ""
    assert "nothing was changed" in stopped.err
    assert files(fitted) == before


@pytest.mark.parametrize(
    "saved, words", [(True, "are in sums: the same command goes on"), (False, "nothing was changed")]
)
def test_ctrl_c_says_what_fit_has_kept(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, saved: bool, words: str
) -> None:
    whole = unweave.fit

    def interrupt(*args: Any, **kwargs: Any) -> None:
        def progress(stage: str, done: int, total: int | None) -> None:
            if done == 3:
                raise KeyboardInterrupt

        whole(*args, **(kwargs | {"progress": progress}))

    resume = ("fit", "--resume", "sums", "--save-every", "2" if saved else "9")
    with monkeypatch.context() as patch:
        patch.setattr(unweave, "fit", interrupt)
        stopped = cli(*resume)
    assert (stopped.code, stopped.out) == (130, "")
    assert words in stopped.err
    assert cli(*resume).code == 0


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    "words", [["-m", "unweave"], ["-m", "unweave.cli.main"], ["unweave"], ["-c", "import unweave"]]
)
def test_ctrl_c_while_pytorch_is_loaded(here: Path, words: list[str]) -> None:
    """One line from the command, however it was called; a program that imports the package is left alone."""
    (here / "unweave").write_text("from unweave.cli.main import main\nmain()\n")
    (here / "torch.py").write_text(INTERRUPTED_TORCH)
    done = _python(*words, PYTHONPATH=os.pathsep.join([str(here), str(Path(unweave.__file__).parent.parent)]))
    if words[0] == "-c":
        assert done.returncode == -signal.SIGINT
        assert done.stderr.endswith("KeyboardInterrupt\n")
    else:
        assert (done.returncode, done.stdout) == (130, "")
        assert done.stderr == "unweave: interrupted; nothing was changed.\n"


def test_ctrl_c_while_writing(fitted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are written under a temporary name by then; nothing of that stays."""
    before = files(fitted)
    seen: list[set[str]] = []

    def interrupt(*args: Any, **kwargs: Any) -> None:
        seen.append(files(fitted))
        raise KeyboardInterrupt

    monkeypatch.setattr(unweave.LayerGrams, "save", interrupt)
    assert cli("forget", "--ids", "ids.txt").code == 130
    assert len(seen[0] - before) == 2, "weights and record should be staged by then"
    assert files(fitted) == before


def test_json_has_no_nan() -> None:
    assert screen.as_text({"a": float("nan"), "b": [1.0, float("inf")], "c": {1: (2,)}}, None) == (
        '{"a": null, "b": [1.0, null], "c": {"1": [2]}}'
    )


def test_the_table_of_commands_names_only_modules_of_this_package() -> None:
    names = ["init", "fit", "forget", "audit", "report", "demo", "reproduce", "bench"]
    assert [name for name, _ in main_module.COMMANDS] == names
    assert all(path == f"unweave.cli.{name}" for name, path in main_module.COMMANDS)
