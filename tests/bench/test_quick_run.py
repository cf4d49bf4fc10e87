"""What is said of how long all quick experiments take."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

from benchmarks.quick_run import by_experiment, with_run
from experiments.reproduce import EXPERIMENTS
from experiments.running.work import Work
from experiments.settings import SMOKE

ROOT = Path(__file__).resolve().parents[2]


def names(folder: Path, experiment: str) -> set[str]:
    work = Work(folder, SMOKE, torch.device("cpu"))
    return {job.name for job in importlib.import_module(EXPERIMENTS[experiment]).jobs(work)}


def test_a_job_counts_once_for_the_first_experiment_that_asks_for_it(tmp_path: Path) -> None:
    every = {job for experiment in EXPERIMENTS for job in names(tmp_path, experiment)}
    for job in every:
        path = tmp_path / "rows" / f"{job}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"seconds": 0.5}))
    found = by_experiment(tmp_path, SMOKE)
    assert list(found) == list(EXPERIMENTS)
    assert sum(one["jobs"] for one in found.values()) == len(every)
    own = names(tmp_path, "attacks") - names(tmp_path, "table1")
    assert found["attacks"] == {"jobs": len(own), "seconds": len(own) / 2}
    assert names(tmp_path, "attacks") & names(tmp_path, "table1"), "or nothing is shared"


def test_a_job_that_was_not_done_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        by_experiment(tmp_path, SMOKE)


def test_a_run_is_added_to_those_that_are_kept(tmp_path: Path) -> None:
    place = tmp_path / "runs.json"
    for number in range(2):
        place.write_text(json.dumps(with_run(place, {"seconds": number})))
    assert json.loads(place.read_text()) == {"runs": [{"seconds": 0}, {"seconds": 1}]}


def test_the_runs_that_are_kept_are_of_everything() -> None:
    runs = json.loads((ROOT / "results" / "bench-reproduce.json").read_text())["runs"]
    for run in runs:
        assert set(run["experiments"]) == set(run["documents"]) == set(EXPERIMENTS)
        assert run["seconds"] == pytest.approx(run["rest"] + sum(one["seconds"] for one in run["experiments"].values()))
        assert run["provenance"]["processors"] == 2
        assert run["processor seconds"] < 2 * 600, "more than two processors could do in ten minutes"
    assert min(run["seconds"] for run in runs) < 600
