"""Processes that share a folder and a GPU: no seconds that other work has spoilt, and no file that is half of one's."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from experiments.documents.summary import method_rows, timing
from experiments.reproduce import Options, options_of
from experiments.running import work as works
from experiments.running.alone import one_at_a_time
from experiments.running.jobs import Job
from experiments.running.training_sets import FULL
from experiments.running.turns import run as run_all
from experiments.running.work import Work, in_all
from experiments.settings import SMOKE, Setting, samples_of_class_0
from unweave.cli.reproduce import add_options
from unweave.files import write_atomically
from unweave.reading.rest import fingerprint

CPU = torch.device("cpu")
CASE = samples_of_class_0(SMOKE)
PEOPLE = 6


def at_once(do: Callable[[int], Any]) -> list[Any]:
    """What each of some people gets who start at the same time; each opens files of their own, as processes do."""
    start = threading.Barrier(PEOPLE)

    def one(number: int) -> Any:
        start.wait()
        return do(number)

    with ThreadPoolExecutor(PEOPLE) as pool:
        return list(pool.map(one, range(PEOPLE)))


def write_row(work: Work, name: str, result: dict[str, Any], **settings: Any) -> None:
    path = work.rows / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"settings": settings, "result": result, "made_by": {}, "seconds": 1.0}
    write_atomically(path, json.dumps(document).encode())


def crowded(folder: Path) -> Work:
    work = Work(folder, SMOKE, CPU)
    work.crowded = True
    return work


# ---------------------------------------------------------------------------------------------------------- seconds


def test_nothing_is_timed_beside_other_work(tmp_path: Path) -> None:
    assert crowded(tmp_path).timed(lambda: 7) == (7, None)
    made, seconds = Work(tmp_path, SMOKE, CPU).timed(lambda: 7)
    assert made == 7
    assert seconds is not None
    assert seconds >= 0


def test_a_network_remembers_whether_its_training_was_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(works, "train", lambda setting, data, seeds, _: [setting.build(10) for _ in seeds])
    setting = SMOKE.allcnn
    assert crowded(tmp_path).seconds_to_train(setting, FULL, 0) is None
    assert Work(tmp_path, SMOKE, CPU).seconds_to_train(setting, FULL, 0) is None, "also for who asks later, alone"
    timed = Work(tmp_path, SMOKE, CPU).seconds_to_train(setting, FULL, 1)
    assert timed is not None
    assert crowded(tmp_path).seconds_to_train(setting, FULL, 1) == timed, "what was timed alone stays"


def test_seconds_are_summed_up_over_what_was_timed(tmp_path: Path) -> None:
    assert timing([None, 3.0, None, 1.0]) == {"mean": 2.0, "std": 1.4142, "values": [3.0, 1.0]}
    assert timing([None]) is timing([]) is None
    assert in_all([1.0, 2.5]) == 3.5
    assert in_all([1.0, None]) is None
    work = Work(tmp_path, replace(SMOKE, seeds=3), CPU)
    for seed, seconds in enumerate([None, 4.0, 2.0]):
        both = {"seconds": seconds, "fit seconds": seconds}
        write_row(work, f"{CASE.setting.name}/{CASE.name}/match/{seed}", {"errors": {"test": float(seed)}, **both})
        write_row(work, f"{CASE.setting.name}/{CASE.name}/pgu/{seed}", {"errors": {"test": 1.0}, "seconds": None})
    rows = method_rows(work, CASE, ["match", "pgu"])
    assert rows["match"]["seeds"] == [0, 1, 2]
    assert rows["match"]["errors"]["test"]["values"] == [0.0, 1.0, 2.0]
    assert rows["match"]["seconds"]["values"] == rows["match"]["fit seconds"]["values"] == [4.0, 2.0]
    assert rows["match"]["seconds"]["median"] == 3.0
    assert rows["pgu"]["seconds"] is None


@pytest.mark.parametrize("beside", [True, False])
def test_an_outcome_says_that_it_was_made_beside_other_work_and_only_then(tmp_path: Path, beside: bool) -> None:
    work = Work(tmp_path, SMOKE, CPU)
    work.crowded = beside
    run_all(
        work, [Job("a/b/0", lambda: {"x": 1})], Options(tmp_path, SMOKE), lambda text: None, lambda options: (work, [])
    )
    found = work.document("a/b/0")
    assert found is not None
    assert found["made_by"].get("crowded") == (True if beside else None)
    assert found["made_by"]["torch"]


@pytest.mark.parametrize("words", [[], ["--crowded"]])
def test_the_flag_reaches_the_work(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert options_of(parser.parse_args(words)).crowded == bool(words)


# ------------------------------------------------------------------------------------------------------------ files


def test_one_at_a_time(tmp_path: Path) -> None:
    inside, most = list[int](), list[int]()

    def visit(number: int) -> None:
        for _ in range(20):
            with one_at_a_time(tmp_path / "deep" / "lock"):
                inside.append(number)
                time.sleep(0.001)  # for others to come in, if they can
                most.append(len(inside))
                inside.remove(number)

    at_once(visit)
    assert len(most) == 20 * PEOPLE
    assert max(most) == 1


def test_an_old_outcome_is_set_aside_once_and_never_a_new_one(tmp_path: Path) -> None:
    """Whoever finds it gone makes it anew at once; nobody who still took it for old moves that."""
    outcomes = [f"net/case/scrub/{number}" for number in range(30)]
    work = Work(tmp_path, SMOKE, CPU)
    for name in outcomes:
        write_row(work, name, {"is": "old"}, method="scrub")
        np.savez(work.rows / f"{name}.npz", a=np.zeros(1))

    def everybody(number: int) -> int:
        own, moved = Work(tmp_path, SMOKE, CPU), 0
        for name in outcomes:
            if own.set_aside(name):
                moved += 1
                np.savez(own.rows / f"{name}.npz", a=np.ones(1))
                write_row(own, name, {"is": "new"}, method="scrub", tuning=works.SCHEME)
        return moved

    assert sum(at_once(everybody)) == len(outcomes)
    for name in outcomes:
        assert work.row(name) == {"is": "new"}
        assert work.arrays(name)["a"].tolist() == [1]
        assert json.loads((tmp_path / "set-aside" / f"{name}.json").read_text())["result"] == {"is": "old"}
        assert np.load(tmp_path / "set-aside" / f"{name}.npz")["a"].tolist() == [0]


def test_an_outcome_that_goes_while_it_is_looked_at_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path, SMOKE, CPU)
    write_row(work, "net/case/scrub/0", {}, method="scrub")
    write_row(work, "net/case/scrub/1", {}, method="scrub", tuning=works.SCHEME)
    listed = work.names()
    work.set_aside("net/case/scrub/0")
    monkeypatch.setattr(Work, "names", lambda self, prefix="": listed)
    assert [work.document(name) is None for name in work.names()] == [True, False]
    assert not work.of_another_tuning("net/case/scrub/0")
    assert not work.set_aside("net/case/scrub/0")


def test_who_wants_a_network_that_is_being_trained_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some train in groups that overlap, some alone: every network once, and nobody waits for ever."""
    seeds, lock = range(10), threading.Lock()
    data = Work(tmp_path, SMOKE, CPU).data(SMOKE.allcnn)
    used: dict[int, list[str]] = {seed: [] for seed in seeds}
    trained = list[int]()

    def train(setting: Setting, data: object, seeds: list[int], _: object) -> list[nn.Module]:
        with lock:
            trained.extend(seeds)
        time.sleep(0.01)
        return [setting.build(setting.classes) for _ in seeds]

    def work(number: int) -> None:
        own = crowded(tmp_path)
        own.together = 1 + number % 3
        order = list(seeds) if number % 2 else list(reversed(seeds))
        for _ in range(2):  # two experiments announce the same ones
            own.expect(SMOKE.allcnn, FULL, [*order, *order])
        for seed in order:
            used[seed].append(fingerprint(own.network(SMOKE.allcnn, FULL, seed)))

    monkeypatch.setattr(works, "train", train)
    monkeypatch.setattr(Work, "data", lambda self, setting: data)
    at_once(work)
    folder = tmp_path / "weights" / SMOKE.allcnn.name / FULL.name
    assert {path.name for path in folder.glob("*.safetensors")} == {f"{seed}.safetensors" for seed in seeds}
    for prints in used.values():
        assert len(prints) == PEOPLE
        assert len(set(prints)) == 1
    assert sorted(trained) == list(seeds)
    for seed in seeds:
        with safe_open(folder / f"{seed}.safetensors", "pt") as stored:
            assert stored.metadata()["seconds"] == ""
