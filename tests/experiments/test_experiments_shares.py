"""Processes that run the same command divide its jobs: everything once, in order, and nobody waits for ever."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from experiments.poisoning import poison_jobs
from experiments.reproduce import Options, reproduce
from experiments.running import shares
from experiments.running.alone import claimed
from experiments.running.jobs import Job
from experiments.running.shares import bundle_of, shared
from experiments.running.work import Work
from experiments.settings import SMOKE
from experiments.table1 import jobs as table1_jobs
from experiments.table4 import whole

PEOPLE = 4


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "PAUSE", 0.01)


def job(name: str, *after: str) -> Job:
    return Job(name, dict, after=after)


def test_a_bundle_is_a_request_and_a_seed_or_its_trials() -> None:
    assert bundle_of("net/500/pgu/3") == bundle_of("net/500/match gamma=0.8/3") == "net/500/3"
    assert bundle_of("net/500/search/ntk-3") == bundle_of("net/500/search/original") == "net/500/search"
    assert bundle_of("net/600/pgu/3") != bundle_of("net/500/pgu/3") != bundle_of("net/500/pgu/4")


def test_every_job_is_done_once_its_bundle_by_one_and_after_what_it_needs(tmp_path: Path) -> None:
    trials = [f"net/case/search/ntk-{i}" for i in range(4)]
    jobs = [job(f"net/case/{method}/{seed}") for seed in range(6) for method in ("original", "pgu")]
    jobs += [job(name) for name in trials] + [job(f"net/case/ntk/{seed}", *trials) for seed in range(6)]
    done, who, lock = list[str](), dict[str, set[int]](), threading.Lock()
    at_work = set[str]()

    def work(number: int) -> None:
        for one in shared(jobs, lambda name: name in done, tmp_path, lambda _: None):
            bundle = bundle_of(one.name)
            with lock:
                assert bundle not in at_work
                at_work.add(bundle)
                assert set(one.after) <= set(done)
                who.setdefault(bundle, set()).add(number)
            time.sleep(0.002)
            with lock:
                at_work.remove(bundle)
                done.append(one.name)

    with ThreadPoolExecutor(PEOPLE) as pool:
        list(pool.map(work, range(PEOPLE)))
    assert sorted(done) == sorted(one.name for one in jobs)
    assert [name for name in done if name in trials] == trials
    assert len({number for numbers in who.values() for number in numbers}) > 1, "they did share"


def test_what_is_needed_but_not_asked_for_is_not_waited_for(tmp_path: Path) -> None:
    done = set[str]()
    for one in shared([job("net/case/ntk/0", "net/case/search/ntk-0")], done.__contains__, tmp_path):
        done.add(one.name)
    assert done == {"net/case/ntk/0"}


def test_who_dies_lets_go_and_who_is_told_to_ends_waiting(tmp_path: Path) -> None:
    script = "import sys, time; from pathlib import Path; from experiments.running.alone import claimed\n"
    script += "with claimed(Path(sys.argv[1])) as mine: print(mine, flush=True); time.sleep(60)"
    lock = tmp_path / "net/case/0.lock"
    with subprocess.Popen([sys.executable, "-c", script, str(lock)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with claimed(lock) as mine:
            assert not mine
        said, looks = list[str](), iter([False, False, True])
        assert list(shared([job("net/case/pgu/0")], lambda _: False, tmp_path, said.append, lambda: next(looks))) == []
        assert len(said) == 1
        other.kill()
    with claimed(lock) as mine:
        assert mine


def test_tuned_baselines_come_after_their_trials(tmp_path: Path) -> None:
    work = Work(tmp_path, SMOKE, torch.device("cpu"))
    for made in (table1_jobs(work), poison_jobs(work, whole(work), SMOKE.budgets, ("first_order",))):
        names = {one.name for one in made}
        needing = {one.name.split("/")[-2]: one.after for one in made if one.after}
        assert all(set(after) <= names for after in needing.values())
        assert ("ntk" in needing) or ("first_order" in needing)
        assert not {"match", "pgu", "original", "sisa"} & set(needing)


def test_two_commands_divide_the_jobs_of_an_experiment(tmp_path: Path) -> None:
    def run(_: int) -> list[str]:
        said = list[str]()
        options = Options(tmp_path, SMOKE, device="cpu", jobs="*/original/*,*/retrained/*", stage="run", crowded=True)
        reproduce(["table1"], options, said.append)
        return [line.split()[1] for line in said if line[0].isdigit() and "/" in line.split()[0]]

    with ThreadPoolExecutor(2) as pool:
        mine, yours = pool.map(run, range(2))
    names = Work(tmp_path, SMOKE, torch.device("cpu")).names()
    assert sorted(mine + yours) == names
    assert len(names) == 2 * SMOKE.models
    rows = [json.loads((tmp_path / "rows" / f"{name}.json").read_text()) for name in names]
    assert all(row["made_by"]["crowded"] for row in rows)
