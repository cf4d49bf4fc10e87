"""How long a training by each recipe takes on this machine: the short one, and the paper's own schedule.

    unweave bench training --device cuda

From a few epochs, on images of noise with the data sets' shapes, already on the device, one network at a time. What
starts a training (kernels chosen and compiled, the step captured) is taken out: a short run is subtracted from a longer
one. On a GPU with Triton steps are compiled and captured, by all recipes alike; beside that each recipe is run as it
would be written plainly (:mod:`benchmarks.plain_training`). Retraining has a few images less.

AllCNN's recipe is also run for several networks at once, in three ways (:mod:`benchmarks.several`): an epoch is then
one of all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.options import DEMO, Document, Options, document
from benchmarks.plain_training import train_plainly
from benchmarks.several import TOGETHER, WAYS
from benchmarks.timing import OverTimeError, summed_up, timed
from experiments.data import Labelled
from experiments.training.fast import train_recipe
from experiments.training.recipes import RECIPES, Recipe

SHORT, LONG = 1, 4
"""Epochs of the two runs whose difference is timed."""
SEVERAL = ("allcnn-cifar10", "quick")
"""Recipes that are run for several networks at once."""
SHAPES = {"cifar10": (50_000, 32, 10), "tiny": (100_000, 64, 200), "quick": (1_000, 32, 10)}
"""Images, pixels a side, classes."""


def run(options: Options) -> Document:
    """Seconds an epoch for each recipe, and of all its epochs by that."""
    began = time.perf_counter()
    recipes: dict[str, Any] = {}
    for recipe in recipes_for(options):
        print(f"{recipe.name} …", flush=True)
        recipes[recipe.name] = _timed(recipe, options)
        options.keep(document("training", options, began, recipes=recipes))
        recipes[recipe.name] |= _together(recipe, options)
        options.keep(document("training", options, began, recipes=recipes))
    return document("training", options, began, recipes=recipes)


def recipes_for(options: Options) -> list[Recipe]:
    """Each network's short recipes and the paper's; for the demonstration's network the quick one."""
    wanted = (DEMO,) if options.quick else options.wanted()
    return [recipe for name, recipe in RECIPES.items() if (DEMO if name == "quick" else name.split("-")[0]) in wanted]


def _timed(recipe: Recipe, options: Options) -> dict[str, Any]:
    data = noise_for(recipe, options)
    told = {"pixels": "noise", "images": len(data), **recipe.settings()}
    return told | _by(train_recipe, recipe, data, options) | {"plain": _by(train_plainly, recipe, data, options)}


def _together(recipe: Recipe, options: Options) -> dict[str, Any]:
    """Several networks at once, in each way; nothing for networks that are not made so."""
    if recipe.name not in SEVERAL:
        return {}
    data = noise_for(recipe, options)
    return {"several": {"networks": TOGETHER, "ways": {way: _at_once(way, recipe, data, options) for way in WAYS}}}


def _at_once(way: str, recipe: Recipe, data: Labelled, options: Options) -> Document:
    """Networks in one module are compiled as no other here: what that cannot do must not cost the rest."""
    torch.compiler.reset()  # it keeps the steps of a few networks only, and would run further ones as they are
    try:
        return _by(WAYS[way], recipe, data, options, options.limit)
    except (RuntimeError, OverTimeError) as error:  # a compiler's errors and those of a full GPU are the former
        return {"an epoch": None, "failed": str(error).splitlines()[0]}


def _by(
    train: Callable[[Recipe, Labelled, int], object],
    recipe: Recipe,
    data: Labelled,
    options: Options,
    limit: float | None = None,
) -> Document:
    """Short and long in turn, so that a slow moment of the machine hits both; each ends after so many seconds."""
    taken: dict[int, list[float]] = {SHORT: [], LONG: []}
    for i in range(options.slow_repeats):
        for epochs, seconds in taken.items():
            run = partial(train, recipe.lasting(epochs), data, options.seed)
            seconds += timed(run, options.device, 1, warm=1 if i == 0 and epochs == SHORT else 0, limit=limit)[1]
    epoch = summed_up([(more - less) / (LONG - SHORT) for less, more in zip(taken[SHORT], taken[LONG], strict=True)])
    known = epoch["median"] > 0  # else something else kept the machine busy
    return {
        "seconds of so many epochs": {str(epochs): seconds for epochs, seconds in taken.items()},
        "an epoch": epoch if known else None,
        "all epochs": recipe.epochs * epoch["median"] if known else None,
    }


def noise_for(recipe: Recipe, options: Options) -> Labelled:
    """As many images as the recipe's data set has, of the same shape; a fifth of them for a quick look."""
    images, side, classes = next(shape for name, shape in SHAPES.items() if name in recipe.name.split("-"))
    images = images // 5 if options.quick else images
    generator = torch.Generator(options.device).manual_seed(options.seed)
    x = torch.randn(images, 3, side, side, generator=generator, device=options.device)
    return Labelled(x, torch.arange(images, device=options.device) % classes)


def table(result: Document) -> str:
    """For a screen."""
    lines = [
        f"{name}{how}: {_told(row, recipe['epochs'])}"
        for name, recipe in result["recipes"].items()
        for how, row in (("", recipe), (", plainly", recipe["plain"]), *_several(recipe))
    ]
    return "\n".join(lines)


def _several(recipe: Document) -> list[tuple[str, Document]]:
    found = recipe.get("several", {"ways": {}})
    return [(f", {found['networks']} at once, {way}", row) for way, row in found["ways"].items()]


def _told(row: Document, epochs: int) -> str:
    if "failed" in row:
        return f"failed: {row['failed']}"
    if row["an epoch"] is None:
        return "not known, the machine was too busy; try again"
    return f"{row['an epoch']['median']:.3g} s an epoch, {row['all epochs']:.3g} s for {epochs}"
