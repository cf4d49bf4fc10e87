"""A run that ends early says what is kept of all of it, wherever it was; and its exit code tells a script."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import gamma, table3
from experiments.documents.tables import TABLES
from experiments.running import shares
from experiments.running.alone import claimed
from experiments.running.jobs import Job
from unweave.cli.main import main

NAMES = [f"net/case/{method}/{seed}" for seed in range(2) for method in ("original", "pgu")]
INTERRUPTED = "Interrupted: {} jobs are kept in {}; the same command goes on\n"


class Run:
    """``unweave reproduce table3`` with four jobs, of which one may fail; and other experiments, where told to."""

    def __init__(self, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.out, self.capsys, self.names = out, capsys, ["table3"]
        self.failing: dict[str, BaseException] = {}
        self.began = list[str]()

    def jobs(self, work: Any) -> list[Job]:
        return [Job(name, partial(self.job, name)) for name in NAMES]

    def job(self, name: str) -> dict[str, Any]:
        self.began.append(name)
        if name in self.failing:
            raise self.failing.pop(name)
        return {}

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main(["reproduce", *self.names, "--quick", "--device", "cpu", "--out", str(self.out), *words])
        return code, *self.capsys.readouterr()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    made = Run(tmp_path / "out", capsys)
    monkeypatch.setattr(table3, "jobs", made.jobs)
    return made


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_in_a_job_counts_all_jobs_and_the_same_command_goes_on(run: Run) -> None:
    run.failing[NAMES[2]] = KeyboardInterrupt()
    code, out, err = run("--stage", "run")
    assert (code, err) == (130, "")
    assert out.endswith(INTERRUPTED.format("2 of 4", run.out))
    assert out.count("are kept") == 1, "once, not of every part"
    assert run("--stage", "run")[0] == 0
    assert run.began == [*NAMES[:3], *NAMES[2:]]


def test_only_jobs_that_were_asked_for_are_counted(run: Run) -> None:
    assert run("--stage", "run", "--jobs", "*/original/0")[0] == 0
    run.failing[NAMES[3]] = KeyboardInterrupt()
    assert run("--stage", "run", "--jobs", "*/pgu/*")[1].endswith(INTERRUPTED.format("1 of 2", run.out))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("Tried to allocate 9 GiB.\nmore"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ],
    ids=["allocator", "cublas", "cudnn"],
)
def test_out_of_gpu_memory_counts_all_jobs_too(run: Run, error: RuntimeError) -> None:
    run.failing[NAMES[3]] = error
    code, out, _ = run("--stage", "run")
    assert code == 1
    last, told = out.splitlines()[-1], str(error).splitlines()[0].rstrip(".")
    assert last.startswith(f"Out of GPU memory: {told}. 3 of 4 jobs are kept in {run.out}. Free ")
    assert last.endswith("(--together, --processes); the same command goes on")


def test_another_error_of_a_library_is_not_taken_for_a_full_gpu(run: Run) -> None:
    run.failing[NAMES[3]] = RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")
    with pytest.raises(RuntimeError, match="INTERNAL_ERROR") as raised:
        run("--stage", "run")
    assert raised.value.__notes__ == ["in job 1; the jobs before it are kept"]


def test_trainings_that_go_on_where_they_were_are_counted(run: Run) -> None:
    for number, words in ((1, "1 half-trained network"), (2, "2 half-trained networks")):
        kept = run.out / "weights" / "net" / "full" / f".{number}.halfway"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()
        run.failing[NAMES[0]] = KeyboardInterrupt()
        assert f"Interrupted: 0 of 4 jobs and {words} are kept in {run.out};" in run("--stage", "run")[1]


def test_ctrl_c_while_waiting_for_other_processes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares.time, "sleep", interrupt)
    with claimed(run.out / "claims" / "net" / "case" / "1.lock") as mine:
        assert mine
        code, out, err = run("--stage", "run", "--crowded")
    assert (code, err) == (130, "")
    assert out.endswith(INTERRUPTED.format("2 of 4", run.out))


@pytest.mark.parametrize(("words", "done"), [([], 4), (["--stage", "assemble"], 0)], ids=["both", "assemble"])
def test_ctrl_c_while_assembling(run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], done: int) -> None:
    monkeypatch.setattr(table3, "assemble", interrupt)
    code, out, err = run(*words)
    assert (code, err) == (130, "")
    assert out.endswith(INTERRUPTED.format(f"{done} of 4", run.out))


def test_nothing_to_assemble_is_an_error_after_the_other_documents(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gamma, "assemble", lambda work: {"made_by": [{}]})
    monkeypatch.setitem(TABLES, "gamma", lambda document: "a table")
    run.names.append("gamma")
    code, _, err = run("--stage", "assemble")
    assert code == 1
    assert f"There are no outcomes of table3 in {run.out}, so there is nothing to assemble. Run the same" in err
    assert "--keep" not in err
    assert [path.name for path in sorted(run.out.iterdir())] == ["gamma.json", "gamma.md"]


def test_a_run_that_did_nothing_in_its_time_is_no_error(run: Run) -> None:
    code, out, err = run("--minutes", "0")
    assert (code, err) == (0, "")
    assert out.endswith("table3: nothing was run yet, so there is no document\n")
