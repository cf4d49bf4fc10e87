"""How long a training by each recipe takes on this machine: the short one, and the paper's own schedule.

    unweave bench training --device cuda

From a few epochs, on images of noise with the data sets' shapes, already on the device. What starts a training (kernels
chosen and compiled, the step captured) is taken out: a short run is subtracted from a longer one. On a GPU with Triton
steps are compiled and captured, by all recipes alike, so this is the least that a retraining has to take here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from benchmarks.options import DEMO, Document, Options, document
from benchmarks.timing import summed_up, timed
from experiments.data import Labelled
from experiments.training.fast import train_recipe
from experiments.training.recipes import RECIPES, Recipe

SHORT, LONG = 1, 4
"""Epochs of the two runs whose difference is timed."""
SHAPES = {"cifar10": (50_000, 32, 10), "tiny": (100_000, 64, 200), "quick": (1_000, 32, 10)}
"""Images, pixels a side, classes."""


def run(options: Options) -> Document:
    """Seconds an epoch for each recipe, and of all its epochs by that."""
    began = time.perf_counter()
    recipes: dict[str, Any] = {}
    for recipe in _recipes(options):
        recipes[recipe.name] = _timed(recipe, options)
        options.keep(document("training", options, began, recipes=recipes))
    return document("training", options, began, recipes=recipes)


def _recipes(options: Options) -> list[Recipe]:
    """Each network's short recipe and the paper's; for the demonstration's network the quick one."""
    wanted = (DEMO,) if options.quick else options.wanted()
    return [recipe for name, recipe in RECIPES.items() if (DEMO if name == "quick" else name.split("-")[0]) in wanted]


def _timed(recipe: Recipe, options: Options) -> dict[str, Any]:
    data = _noise(recipe, options)

    def seconds(epochs: int, warm: int) -> list[float]:
        cut = replace(recipe, epochs=epochs)
        return timed(lambda: train_recipe(cut, data, options.seed), options.device, options.slow_repeats, warm)[1]

    pairs = zip(seconds(SHORT, warm=1), seconds(LONG, warm=0), strict=True)
    epoch = summed_up([(longer - shorter) / (LONG - SHORT) for shorter, longer in pairs])
    row = {"images": len(data), **recipe.settings(), "an epoch": epoch, "all epochs": recipe.epochs * epoch["median"]}
    print(f"{recipe.name}: {row['all epochs']:.1f} s", flush=True)
    return row


def _noise(recipe: Recipe, options: Options) -> Labelled:
    images, side, classes = next(shape for name, shape in SHAPES.items() if name in recipe.name.split("-"))
    generator = torch.Generator(options.device).manual_seed(options.seed)
    x = torch.randn(images, 3, side, side, generator=generator, device=options.device)
    return Labelled(x, torch.arange(images, device=options.device) % classes)


def table(result: Document) -> str:
    """For a screen."""
    return "\n".join(
        f"{name}: {row['an epoch']['median']:.3g} s an epoch, {row['all epochs']:.3g} s for {row['epochs']}"
        for name, row in result["recipes"].items()
    )
