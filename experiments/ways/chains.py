"""Requests in a row: each step forgets equally many samples of every class from what the step before left.

The Grams go from step to step (``result.grams``); nothing of the training set is seen again. A chain is one job: its
Grams are too large to keep between jobs, and its steps take seconds.

A chain goes on with the network of the step before alone, as the authors' does, but for ``match first``: that is
``match`` with ``unweave.forget(…, first=)``, the original network, from the second step on, which the README advises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

import unweave
from experiments.running.training_sets import FULL
from experiments.running.work import Work
from experiments.settings import Case, Setting, step_alone
from experiments.ways.methods import SAMPLES, capped, pgu_config, pgu_story, timed_request

WITH_FIRST = "match first"
"""The way that is told the original network."""
CHAINED = (*SAMPLES, WITH_FIRST)
"""The ways whose chains are compared: those for samples, and the one that only a chain tells from another."""


@dataclass(frozen=True)
class Step:
    """One request of a chain, done."""

    number: int
    """From 1."""
    request: Case
    net: nn.Module
    seconds: float | None
    """None where it was not timed (``Work.crowded``)."""
    story: dict[str, Any]


def chain(work: Work, setting: Setting, per_class: int, steps: int, method: str, seed: int) -> Iterator[Step]:
    """Step after step, each handed out when it is done; ends early where a step would ask for more than is left."""
    first = step_alone(setting, per_class, 1)
    config, stride = pgu_config(method, first)
    config = capped(work, config)
    grams, _ = work.grams(setting, seed, stride=stride)
    net = original = work.network(setting, FULL, seed)
    data = work.data(setting)
    available = int(data.train.y.bincount().min()) // per_class
    for number in range(1, min(steps, available) + 1):
        asked = step_alone(setting, per_class, number)
        forget = data.train.where(asked.chosen(data.train.y))
        loaders = forget.batches(), data.val.batches()
        told = original if method == WITH_FIRST and number > 1 else None
        ask = partial(unweave.forget, net, loaders[0], grams, loaders[1], first=told)
        result, seconds = timed_request(work, setting, config, ask)
        net, grams = result.model, result.grams
        yield Step(number, asked, net, seconds, pgu_story(result))
        if work.device.type == "cuda":
            torch.cuda.empty_cache()
