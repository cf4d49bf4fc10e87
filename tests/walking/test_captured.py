"""Captured steps: on a CPU they are the steps themselves; on a GPU a replay changes no bit of the outcome."""

from __future__ import annotations

import copy
from dataclasses import replace

import problems
import pytest
import torch
from torch import Tensor

from unweave import ForgetConfig, forget
from unweave.reading.rest import fingerprint
from unweave.reading.samples import LOOK_ELEMENTS, Samples
from unweave.walking import captured
from unweave.walking.captured import Captured


def test_on_a_cpu_a_step_is_just_taken() -> None:
    seen: list[tuple[int, ...]] = []

    def step(inputs: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        seen.append(tuple(inputs.shape))
        return inputs.sum()

    taken = Captured(step)
    for size in (2, 2, 2, 2, 2, 3):
        assert taken(torch.ones(size, 4), torch.zeros(size), torch.arange(size)) == 4 * size
    assert seen == [(2, 4)] * 5 + [(3, 4)]


def test_a_cpu_looks_at_as_many_as_a_step_takes() -> None:
    samples = Samples([(torch.ones(10, 4), torch.zeros(10, dtype=torch.long))])
    assert samples.look_size(3) == 3


def test_a_gpu_looks_at_more_as_long_as_inputs_are_small() -> None:
    labels = torch.zeros(10, dtype=torch.long, device="meta")  # any device but a CPU
    assert Samples([(torch.ones(10, 4, device="meta"), labels)]).look_size(3) == LOOK_ELEMENTS // 4
    ids = torch.zeros(10, 4, dtype=torch.long, device="meta")
    assert Samples([((torch.ones(10, 4, device="meta"), ids), labels)]).look_size(3) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "config",
    [
        ForgetConfig(),
        ForgetConfig(protect="soft"),
        ForgetConfig(objective="paper"),
        ForgetConfig(objective="paper", stop="epochs", epochs=6, lr=0.01, lr_end=0.001),
        ForgetConfig(task="classes"),
        ForgetConfig(task="poison", epochs=6),
        ForgetConfig(task="poison", objective="paper", epochs=6),
    ],
    ids=lambda config: f"{config.task} {config.objective} {config.protect} {config.lr}",
)
def test_a_replayed_walk_ends_at_the_same_weights_to_the_bit(
    config: ForgetConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problems.points()
    asked = problem.samples((problem.y == 1).nonzero().squeeze(1)) if config.task == "classes" else problem.forgotten
    model = copy.deepcopy(problem.model).cuda()
    val = [(x.cuda(), y.cuda()) for x, y in problem.val]
    if config.task == "poison":
        val = None  # these labels are right: a walk that validation samples speak against would be taken back
    recorded, record = [], captured._Recording.of
    monkeypatch.setattr(captured._Recording, "of", lambda *step: recorded.append(record(*step)) or recorded[-1])
    ends = []
    for eager in (10**9, captured.EAGER):
        monkeypatch.setattr(captured, "EAGER", eager)
        done = forget(model, asked, problem.grams, val, replace(config, batch_size=16))
        ends.append(fingerprint(done.model))
    assert ends[0] == ends[1] != fingerprint(model)
    assert recorded
    assert None not in recorded, "a step could not be recorded, and both walks were the same"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_walk_on_a_gpu_that_is_not_the_current_one_is_recorded_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step recorded on another GPU would be empty, and every replay of it would leave the weights where they are."""
    problem = problems.points()
    model = copy.deepcopy(problem.model).to("cuda:1")
    ends = []
    for eager in (10**9, captured.EAGER):
        monkeypatch.setattr(captured, "EAGER", eager)
        done = forget(model, problem.forgotten, problem.grams, problem.val, ForgetConfig(batch_size=16))
        ends.append(fingerprint(done.model))
    assert ends[0] == ends[1]
