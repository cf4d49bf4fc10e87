"""Jobs are kept as soon as they are done, go on where they were, and refuse what does not belong to them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.running.jobs import Job, Outcome, run_jobs
from unweave.errors import ConfigError, MismatchError, StoreError


class Work:
    """Counts how often each job is done; fails where told to."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.failing: dict[str, BaseException] = {}

    def job(self, name: str, **settings: object) -> Job:
        def work() -> Outcome:
            self.runs.append(name)
            if name in self.failing:
                raise self.failing[name]
            return {"name": name, "value": np.float32(0.5)}, {"a": np.arange(3)}

        return Job(name, work, settings)

    def jobs(self) -> list[Job]:
        return [self.job(name, seed=i) for i, name in enumerate("abc")]


def silent(text: str) -> None:
    pass


def test_results_and_arrays_come_back_in_the_jobs_order(tmp_path: Path) -> None:
    done = run_jobs(Work().jobs(), tmp_path / "new" / "folder", made_by={"commit": "abc"}, say=silent)
    assert list(done) == ["a", "b", "c"]
    assert done["b"].result == {"name": "b", "value": 0.5}
    assert done["b"].arrays()["a"].tolist() == [0, 1, 2]
    document = json.loads((tmp_path / "new" / "folder" / "b.json").read_text())
    assert document["settings"] == {"seed": 1}
    assert document["seconds"] >= 0
    assert document["made_by"] == done["b"].made_by == {"commit": "abc"}


def test_a_job_without_arrays_has_none(tmp_path: Path) -> None:
    done = run_jobs([Job("a", lambda: {"x": 1})], tmp_path, say=silent)
    assert done["a"].arrays() == {}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    "trouble",
    [KeyboardInterrupt(), torch.OutOfMemoryError("Tried to allocate 9 GiB.")],
    ids=["interrupted", "out of memory"],
)
def test_an_interruption_loses_the_running_job_only(tmp_path: Path, trouble: BaseException) -> None:
    work, said = Work(), list[str]()
    work.failing["b"] = trouble
    with pytest.raises(type(trouble)):
        run_jobs(work.jobs(), tmp_path, say=said.append)
    assert [text.split(":")[0] for text in said] == ["[1/3] a"], "the caller knows of how many jobs these are a part"
    work.failing.clear()
    done = run_jobs(work.jobs(), tmp_path, say=said.append)
    assert work.runs == ["a", "b", "b", "c"]
    assert list(done) == ["a", "b", "c"]
    assert run_jobs(work.jobs(), tmp_path, say=said.append) == done
    assert len(work.runs) == 4, "all were done already"


def test_an_error_names_its_job_and_what_was_done_is_kept(tmp_path: Path) -> None:
    work = Work()
    work.failing["c"] = ZeroDivisionError("no")
    with pytest.raises(ZeroDivisionError) as raised:
        run_jobs(work.jobs(), tmp_path, say=silent)
    assert "in job c" in raised.value.__notes__[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.npz", "b.json", "b.npz"]


def test_a_job_whose_settings_changed_is_refused_before_anything_runs(tmp_path: Path) -> None:
    work = Work()
    run_jobs([work.job("b", epochs=30, lr=0.1)], tmp_path, say=silent)
    with pytest.raises(MismatchError, match=r"b\.json .*\(epochs: 30 then, 40 now\).*another folder, or delete"):
        run_jobs([work.job("a"), work.job("b", lr=0.1, epochs=40)], tmp_path, say=silent)
    assert work.runs == ["b"]
    run_jobs([work.job("b", lr=0.1, epochs=30)], tmp_path, say=silent)
    assert work.runs == ["b"], "the order of the keys does not matter"


def test_arrays_without_a_result_are_a_job_that_was_not_done(tmp_path: Path) -> None:
    work = Work()
    run_jobs([work.job("a")], tmp_path, say=silent)
    (tmp_path / "a.json").unlink()
    run_jobs([work.job("a")], tmp_path, say=silent)
    assert work.runs == ["a", "a"]


def test_of_two_that_do_the_same_job_the_first_is_kept(tmp_path: Path) -> None:
    """Result and arrays of one run, not of two."""

    def slow() -> Outcome:
        run_jobs([Job("a", lambda: ({"by": "the other"}, {"x": np.zeros(2)}))], tmp_path, say=silent)
        return {"by": "this one"}, {"x": np.ones(2)}

    done = run_jobs([Job("a", slow)], tmp_path, say=silent)
    assert done["a"].result == {"by": "the other"}
    assert done["a"].arrays()["x"].tolist() == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.npz"]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"settings": {}, "dig')
    with pytest.raises(StoreError, match=r"a\.json is not a kept job.*Move it away"):
        run_jobs([Work().job("a")], tmp_path, say=silent)


@pytest.mark.parametrize("names", [["../a"], [""], [".a"], ["a/b"], ["a", "a"]])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, names: list[str]) -> None:
    work = Work()
    with pytest.raises(ConfigError, match="Invalid job name"):
        run_jobs([work.job(name) for name in names], tmp_path, say=silent)
    assert not work.runs


def test_a_result_that_is_not_json_is_refused_and_nothing_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="result of job a: object is not JSON"):
        run_jobs([Job("a", lambda: ({"x": object()}, {"y": np.ones(1)}))], tmp_path, say=silent)
    assert list(tmp_path.iterdir()) == []


def test_progress_tells_the_time_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 50))
    monkeypatch.setattr("experiments.running.jobs.time.perf_counter", lambda: float(next(clock)))
    said: list[str] = []
    run_jobs(Work().jobs(), tmp_path, say=said.append)
    # The clock is read at the start, twice for a job and once when it is kept: 150 s a job, 50 of them its own.
    assert said == [
        "[1/3] a: 50.0 s, about 5 min left",
        "[2/3] b: 50.0 s, about 2 min left",
        "[3/3] c: 50.0 s, all done",
    ]


def _power(base: int) -> Callable[[], Outcome]:
    def work() -> Outcome:
        if base < 0:
            raise ZeroDivisionError("negative")
        return {"value": base**2}, {"a": np.full(2, base)}

    return work


def test_ray_makes_the_same_results(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="ray is an extra of its own")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        jobs = [Job(f"job {i}", _power(i), {"i": i}) for i in range(3)]
        done = run_jobs(jobs, tmp_path, workers="ray", say=silent)
        assert [kept.result["value"] for kept in done.values()] == [0, 1, 4]
        assert done["job 2"].arrays()["a"].tolist() == [2, 2]
        with pytest.raises(ZeroDivisionError, match="negative") as raised:
            run_jobs([*jobs, Job("bad", _power(-1))], tmp_path, workers="ray", say=silent)
        assert "in job bad" in raised.value.__notes__[0]
    finally:
        ray.shutdown()


def test_other_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Invalid workers: 'dask'"):
        run_jobs(Work().jobs(), tmp_path, workers="dask", say=silent)


def test_without_ray_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'unweave\[ray\]'"):
        run_jobs(Work().jobs(), tmp_path, workers="ray", say=silent)
