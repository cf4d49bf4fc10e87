"""Where an experiment's images come from and how its networks are trained."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from experiments import data as data_sets
from experiments.data import Cifar10, Labelled, first_of_class
from experiments.settings import Setting
from experiments.training.fast import RECIPES, Recipe, train_many
from experiments.training.halfway import Halfway
from unweave.demo.data import CLASSES


def load(setting: Setting, folder: Path | None, device: torch.device, download: bool = False) -> Cifar10:
    """The data set of a setting, from the folder a person has it in, the cache of an earlier run, or where it is kept.

    Raises:
        StoreError: it is not there, damaged, or another one.
    """
    if setting.data == "embedded":
        found = data_sets.load_embedded(device, setting.limit or 300)
        if setting.limit is None:
            return found
        val, test = (_some_of(part, found.classes, setting.limit // 3) for part in (found.val, found.test))
        return replace(found, val=val, test=test)
    if folder is not None and (folder / setting.data).exists():
        folder = folder / setting.data  # one folder for all data sets
    return data_sets.load(setting.data, folder, device, download=download)


def _some_of(part: Labelled, classes: int, count: int) -> Labelled:
    """So many images a class."""
    return part.where(torch.cat([first_of_class(part.y, c, 0, count) for c in range(classes)]))


def recipe_of(setting: Setting) -> Recipe:
    """The setting's recipe, with its network and number of epochs."""

    @functools.wraps(setting.build)
    def build() -> nn.Module:
        return setting.build(setting.classes)

    recipe = replace(RECIPES[setting.recipe], build=build)
    return recipe if setting.epochs is None else recipe.lasting(setting.epochs)


def train(setting: Setting, data: Labelled, seeds: Sequence[int], halfway: Sequence[Halfway] = ()) -> list[nn.Module]:
    """Networks trained by the setting's recipe, in eval mode; several at once on one GPU."""
    return train_by(recipe_of(setting), data, seeds, halfway)


def train_by(recipe: Recipe, data: Labelled, seeds: Sequence[int], halfway: Sequence[Halfway] = ()) -> list[nn.Module]:
    """The same by any recipe; a batch is at most the data, so that small data are no error."""
    return train_many(replace(recipe, batch_size=min(recipe.batch_size, len(data))), data, seeds, halfway)


def class_name(setting: Setting, label: int) -> str:
    """A word for a class where there is one."""
    return CLASSES[label] if setting.classes == len(CLASSES) else str(label)
