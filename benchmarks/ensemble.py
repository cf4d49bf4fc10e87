"""How long fifty full and fifty retrained AllCNNs take to train, by some of them, and how well these learn.

    unweave bench ensemble --device cuda --cifar10 PATH

Whole trainings by the shortest recipe there is for the networks of an attack, several at once: as many groups of full
networks, and of networks retrained without table 1's samples, as --slow-repeats says, in turn. What a process spends
once on loading and compiling kernels, before the first of them, is timed apart, and is less where another benchmark ran
before in it. Without --cifar10 the pixels are noise, and only seconds are told; on a CPU it is a small network, and the
demonstration's images. A hundred are counted as so many groups, of which one may hold networks of both kinds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.cases import CIFAR10, SOME_OF_CIFAR10
from benchmarks.options import Document, Options, document
from benchmarks.several import TOGETHER
from benchmarks.timing import timed
from benchmarks.training import noise_for
from experiments.data import Labelled, first_of_class, load_cifar10, load_embedded, without
from experiments.datasets.images import error
from experiments.training.fast import train_many
from experiments.training.recipes import RECIPES, Recipe

NOISE = "noise"
FIFTY = 50
"""Of each kind, as in the paper."""
RETRAINED = 1000
"""Where the seeds of retrained networks begin."""


@dataclass(frozen=True)
class Task:
    """What is trained, and the samples that retrained networks do without."""

    recipe: Recipe
    train: Labelled
    test: Labelled | None
    """None where the pixels are noise: then errors say nothing."""
    pixels: str
    forget: int
    """So many, the first of class 0."""


def task_of(options: Options) -> Task:
    """AllCNN on a GPU, a small network on a CPU and for a quick look."""
    if options.quick or options.device == "cpu":
        data = load_embedded(torch.device(options.device), 30 if options.quick else 300)
        recipe = replace(RECIPES["quick"], epochs=2) if options.quick else RECIPES["quick"]
        return Task(recipe, data.train, data.test, SOME_OF_CIFAR10, 10)
    recipe = RECIPES["allcnn-cifar10-short"]
    if options.cifar10 is None:
        return Task(recipe, noise_for(recipe, options), None, NOISE, 500)
    data = load_cifar10(options.cifar10, torch.device(options.device))
    return Task(recipe, data.train, data.test, CIFAR10, 500)


def run(options: Options) -> Document:
    """Seconds of every group, errors of every network, and what a hundred networks would take."""
    began, task = time.perf_counter(), task_of(options)
    forgotten = first_of_class(task.train.y, 0, 0, task.forget)
    sets = {"full": task.train, "retrained": task.train.where(without(len(task.train), forgotten))}
    parts = {} if task.test is None else {"retained": sets["retrained"], "test": task.test}
    first_epoch = task.recipe.lasting(1)
    _, start = _trained(first_epoch, task.train, [options.seed], options)
    made: Document = {}
    networks, groups = list[dict[str, Any]](), list[float]()
    for number in range(options.slow_repeats):
        for kind, data in sets.items():
            first = options.seed + TOGETHER * number + (RETRAINED if kind == "retrained" else 0)
            seeds = range(first, first + TOGETHER)
            nets, seconds = _trained(task.recipe, data, seeds, options)
            groups.append(seconds)
            for seed, net in zip(seeds, nets, strict=True):
                networks.append({"kind": kind, "seed": seed} | {name: error(net, part) for name, part in parts.items()})
            made = document(
                "ensemble",
                options,
                began,
                recipe=task.recipe.settings(),
                together=TOGETHER,
                pixels=task.pixels,
                start=start,
                groups=groups,
                hundred=start + 2 * FIFTY / TOGETHER * statistics.median(groups),
                networks=networks,
            )
            options.keep(made)
    return made


def _trained(recipe: Recipe, data: Labelled, seeds: Sequence[int], options: Options) -> tuple[list[nn.Module], float]:
    """Networks, and the seconds of all of them together."""
    nets, (seconds,) = timed(partial(train_many, recipe, data, seeds), options.device, 1, warm=0)
    return nets, seconds


def sentences(result: Document) -> list[str]:
    """About seconds and errors, for a screen and for docs/speed.md."""
    recipe, count = result["recipe"], len(result["networks"])
    each = statistics.median(result["groups"]) / result["together"]
    plain = f", {recipe['plain_epochs']} of them without augmentation" if "plain_epochs" in recipe else ""
    compiles = "" if result["settings"]["device"] == "cpu" else ", which compiles"
    said = [
        f"{count} networks by `{recipe['name']}` ({recipe['epochs']} epochs{plain}) on {result['pixels']}, "
        f"{result['together']} at once: {each:.2f} s each, after {result['start']:.1f} s for a first epoch{compiles}. "
        f"{FIFTY} full and {FIFTY} retrained ones take {result['hundred'] / 60:.1f} minutes at this pace."
    ]
    for kind in ("full", "retrained"):
        rows = [row for row in result["networks"] if row["kind"] == kind and "test" in row]
        if rows:
            errors = (f"{name} samples {_spread([row[name] for row in rows])}" for name in ("retained", "test"))
            said.append(f"Percent wrong, {kind} networks: {', '.join(errors)}.")
    return said


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def table(result: Document) -> str:
    """For a screen."""
    return "\n".join(sentences(result))
