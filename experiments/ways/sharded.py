"""SISA in a table: it is a way to train, so it has networks of its own; its request is the retraining of its shards."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from experiments.running.sources import recipe_of, train_by
from experiments.running.work import Work
from experiments.settings import Case
from experiments.ways.outcome import Outcome
from unweave.baselines import BASELINES
from unweave.baselines.sisa import SISA, SisaConfig

SHARDS = 5


def by_shards(work: Work, case: Case, seed: int) -> Outcome:
    """Five shards of one slice, each trained by the setting's recipe on its fifth; probabilities are averaged.

    Forgotten samples are dealt to all shards, so that all are trained again: the case that SISA is worst at.
    """
    data, recipe = work.data(case.setting).train, recipe_of(case.setting)

    def trained(model: nn.Module | None, ids: list[int], epochs: int, seed: int) -> nn.Module:
        assert model is None, "one slice a shard is trained from the start"
        chosen = torch.tensor(ids, device=data.y.device)
        return train_by(replace(recipe, epochs=epochs), data.where(chosen), [seed])[0]

    config = SisaConfig(shards=SHARDS, slices=1, epochs=recipe.epochs, rule="mean", seed=seed)
    template = case.setting.build(case.setting.classes).to(work.device)
    ids = case.chosen(data.y).tolist()
    beside = work.folder / "shards"
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{case.setting.name}-{seed}-", dir=beside) as folder:  # one a process
        shards = SISA(Path(folder), template, config)
        _, fitted = work.timed(lambda: shards.fit(range(len(data)), trained))
        result, seconds = work.timed(lambda: BASELINES["sisa"].run(checkpoints=shards, ids=ids, train=trained))
    story = {"ok": result.ok, "stopped": result.stopped, "config": {"shards": SHARDS}, "fit seconds": fitted}
    return Outcome(result.model.to(work.device).eval(), seconds, {**story, "needs": sorted(BASELINES["sisa"].needs)})
