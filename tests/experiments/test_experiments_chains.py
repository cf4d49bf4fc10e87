"""Requests in a row: what a chain hands from step to step, and which way is told the original network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unweave
from experiments import incremental_long, table3
from experiments.poisoning import repair
from experiments.running.training_sets import FULL
from experiments.running.work import Work
from experiments.settings import QUICK, SMOKE, step_alone
from experiments.ways.chains import CHAINED, WITH_FIRST, chain
from unweave.reading.rest import fingerprint

STEPS = 3


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    made = Work(tmp_path_factory.mktemp("work"), SMOKE, torch.device("cpu"))
    made.crowded = True  # nothing is timed, so nothing is run beforehand
    return made


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """For each request the network that it changes, and the one that it is told of as first."""
    found = list[tuple[str, str | None]]()
    forget = unweave.forget

    def watched(net: nn.Module, *given: Any, first: nn.Module | None = None) -> unweave.ForgetResult:
        found.append((fingerprint(net), None if first is None else fingerprint(first)))
        return forget(net, *given, first=first)

    monkeypatch.setattr(unweave, "forget", watched)
    return found


@pytest.mark.parametrize("method", CHAINED)
def test_one_way_is_told_the_original_network_from_its_second_request_on(
    work: Work, told: list[tuple[str, str | None]], method: str
) -> None:
    setting = SMOKE.smallvgg
    ended = [fingerprint(step.net) for step in chain(work, setting, SMOKE.per_class, STEPS, method, 0)]
    original = fingerprint(work.network(setting, FULL, 0))
    assert [given for given, _ in told] == [original, *ended[:-1]], "each goes on with what the one before left"
    first = original if method == WITH_FIRST else None
    assert [given for _, given in told] == [None, first, first]


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("kind", ["chain", "wrong labels"])
def test_kernels_are_loaded_by_a_short_request_before_the_first_that_is_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, crowded: bool
) -> None:
    work, asked, forget = Work(tmp_path, SMOKE, torch.device("cpu")), list[int](), unweave.forget
    work.crowded = crowded

    def watched(*given: Any, **told: Any) -> unweave.ForgetResult:
        asked.append(given[-1].epochs)
        return forget(*given, **told)

    monkeypatch.setattr(unweave, "forget", watched)
    whole = SMOKE.pgu_epochs
    if kind == "chain":
        steps = list(chain(work, SMOKE.smallvgg, SMOKE.per_class, 2, "match", 0))
    else:
        steps = [repair(work, SMOKE.smallvgg, SMOKE.budgets[0], "match", 0) for _ in range(2)]
    assert asked == ([whole, whole] if crowded else [2, whole, whole])
    assert [step.seconds is None for step in steps] == [crowded, crowded]


def test_with_the_original_network_the_sums_lose_what_was_added(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is taken out at the second step is what the original network saw, to rounding."""
    work, results, forget = Work(tmp_path, QUICK, torch.device("cpu")), list[unweave.ForgetResult](), unweave.forget
    setting, data = QUICK.smallvgg, work.data(QUICK.smallvgg)
    whole, original = work.grams(setting, 0)[0], work.network(setting, FULL, 0)
    gone = torch.cat([step_alone(setting, QUICK.per_class, number).chosen(data.train.y) for number in (1, 2)])
    aim = whole - unweave.fit(original, data.train.where(gone).batches())
    name, apart = aim.names[-1], dict[str, float]()
    monkeypatch.setattr(unweave, "forget", lambda *a, **k: results.append(forget(*a, **k)) or results[-1])
    for method in ("match", WITH_FIRST):
        assert len({fingerprint(step.net) for step in chain(work, setting, QUICK.per_class, 2, method, 0)}) == 2
        apart[method] = float((results[-1].grams[name] - aim[name]).norm() / aim[name].norm())
    assert apart[WITH_FIRST] < 1e-6 < apart["match"]


def test_both_experiments_ask_for_it_and_what_was_there_keeps_its_name() -> None:
    names = [
        job.name
        for module in (table3, incremental_long)
        for job in module.jobs(Work(Path("unused"), SMOKE, torch.device("cpu")))
    ]
    last = f"first-{SMOKE.per_class * SMOKE.steps}-a-class"
    for folder in (f"quick-smallvgg/{last}", "quick-allcnn/long-run-of-10-a-class"):
        assert {f"{folder}/{method}/0" for method in ("pgu", "match", "match first")} <= set(names)
