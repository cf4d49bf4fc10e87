"""Attackers after one step of a chain, on made-up outputs whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from experiments.documents.along_chains import WITHOUT_HELD_OUT, AfterStep
from experiments.documents.summary import attacks_by
from experiments.running.jobs import Job, run_jobs
from experiments.running.work import Work
from experiments.settings import SMOKE, steps_of

STEPS = steps_of(SMOKE.smallvgg, SMOKE.per_class, 2)
SAMPLES, CLASSES, NETWORKS = 40, 10, 8


def answers(rng: np.random.Generator, lift: float, count: int = SAMPLES) -> np.ndarray:
    """Logits [n, C], surer of class 0 by ``lift``."""
    logits = rng.normal(size=(count, CLASSES)).astype(np.float32)
    logits[:, 0] += 2 + lift
    return logits


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Chains that have forgotten nothing after the first step and everything after the second."""
    work = Work(tmp_path_factory.mktemp("work"), SMOKE, torch.device("cpu"))
    rng = np.random.default_rng(0)

    def trained(count: int, lift: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        labels = np.zeros(count, dtype=np.int16)
        return {"seconds": 1.0}, {"forget": answers(rng, lift, count), "forget_labels": labels}

    def chain(seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        row, arrays = trained(2 * SAMPLES, 0.0)
        steps = {"step_1": answers(rng, 2.0), "step_2": arrays["forget"]}
        done = 1 if seed == NETWORKS - 1 else 2  # the last one ended early
        return {**row, "steps": [{}] * done}, {
            **arrays,
            **{f"step_{i}": steps[f"step_{i}"] for i in range(1, done + 1)},
        }

    def make(case: str, method: str, jobs: list[Job]) -> None:
        run_jobs(jobs, work.rows / SMOKE.smallvgg.name / case / method, say=lambda _: None)

    for number, case in enumerate(STEPS, start=1):
        for method, lift in (("original", 2.0), ("retrained", 0.0)):
            run = lambda number=number, lift=lift: trained(number * SAMPLES, lift)  # noqa: E731
            make(case.name, method, [Job(str(seed), run) for seed in range(NETWORKS)])
    make(STEPS[-1].name, "match", [Job(str(s), lambda s=s: chain(s)) for s in range(NETWORKS)])
    return work


METHODS = ["original", "retrained", "match"]


def test_chains_are_judged_by_what_they_were_after_the_step(work: Work) -> None:
    """Against networks that were retrained without what was forgotten until then."""
    first, last = (attacks_by(AfterStep(work, STEPS, n, METHODS, every=True), WITHOUT_HELD_OUT) for n in (1, 2))
    for attack in ("xgboost", "u-lira"):
        assert first["methods"]["match"][attack]["auc"]["value"] > 0.75
        assert 0.4 < last["methods"]["match"][attack]["auc"]["value"] < 0.6
        assert last["methods"]["original"][attack]["auc"]["value"] > 0.75


def test_a_chain_that_did_not_come_so_far_is_not_asked_about(work: Work) -> None:
    seeds = [AfterStep(work, STEPS, number, METHODS).seeds("match") for number in (1, 2)]
    assert seeds == [list(range(NETWORKS)), list(range(NETWORKS - 1))]


def test_its_samples_are_those_of_the_step(work: Work) -> None:
    for number in (1, 2):
        attackers = AfterStep(work, STEPS, number, METHODS)
        kinds = [attackers.outputs(method, [0, 1]) for method in METHODS]
        assert [kind.samples for kind in kinds] == [number * SAMPLES] * 3
