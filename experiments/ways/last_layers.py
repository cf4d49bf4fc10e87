"""EU-k in a table: its layers are trained as the networks are, by the setting's own recipe.

The authors of PGU run EU-k by their training script, with the layers before the last k frozen. So the schedule is the
network's, and so is the speed: the same captured steps as those of retraining, which EU-k is timed against. Unlike
theirs, frozen batch norms gather no statistics, and fresh ones begin without any (docs/baselines.md).
``unweave.baselines.eu_k``, which takes any network and loader, has the schedule of EU-k's own authors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from experiments.running.sources import recipe_of
from experiments.running.training_sets import FULL
from experiments.running.work import Work
from experiments.settings import Case
from experiments.training.fast import Learning, train_end
from experiments.ways.outcome import Outcome, all_finite
from unweave.baselines import BASELINES
from unweave.baselines.last_layers import EUkConfig, last_layers
from unweave.baselines.reset import reset
from unweave.errors import ConfigError
from unweave.reading.rest import duplicate


def by_last_layers(work: Work, case: Case, seed: int, settings: dict[str, Any]) -> Outcome:
    """Reset the last layers of an original network and train them on what stays.

    Args:
        work: where the network comes from.
        case: what is to be forgotten, and not looked at.
        seed: of the original network, and of the new layers.
        settings: ``k``, the number of layers, in place of the paper's three, and ``pace``, so many times the recipe's
            learning rate, in place of once.

    Raises:
        ConfigError: other settings.
    """
    if unknown := settings.keys() - {"k", "pace"}:
        raise ConfigError(f"Invalid settings of EU-k: {', '.join(sorted(unknown))}. Supported: k, pace.")
    net, retain = work.network(case.setting, FULL, seed), work.parts(case).retain
    recipe, most = recipe_of(case.setting), work.scale.baseline_epochs
    rate, size = recipe.lr * settings.get("pace", 1.0), min(recipe.batch_size, len(retain))
    recipe = replace(recipe.lasting(min(recipe.epochs, most or recipe.epochs)), lr=rate, batch_size=size)

    def trained() -> nn.Module:
        copy = duplicate(net)
        end = last_layers(copy, settings.get("k", EUkConfig.k))
        reset(end.modules, seed, work.device)
        return train_end(recipe, Learning(copy, end.weights, end.still), retain, seed)

    made, seconds = work.timed(trained)
    finite = all_finite(made)
    words = f"all {recipe.epochs} epochs done" if finite else "values are not finite"
    needs = sorted(BASELINES["eu_k"].needs)
    return Outcome(made, seconds, {"ok": finite, "stopped": words, "config": settings, "needs": needs})
