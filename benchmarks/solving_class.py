"""A third of one class forgotten, by walking and by solving: what the held-out samples of that class pay for it.

    python -m benchmarks.solving_class [--seeds 2] [--out results/solving-class.json]

AllCNN of half the width, trained on the demonstration's images, three requests for each network and a network that was
trained without those samples beside each. "own" is of test images of the class; errors are percent wrong. "off" is the
mean over forgotten samples of how far a margin is from the retrained network's, "felt" the largest relative change of a
layer's outputs on retained samples, "steps" are epochs of a walk or solved steps. "priced by rows" is solving where a
layer's price is μ alone (:mod:`unweave.walking.prices`). Other seeds and classes were looked at while it was made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import unweave
from benchmarks.provenance import provenance
from benchmarks.solving import margins_of
from experiments.training.models import allcnn
from unweave.demo import data, network
from unweave.demo.data import Images

FIRST_SEED = 70
RETRAINED_SEED = 7000
WIDTH, EPOCHS = 48, 24
CLASSES = (2, 5, 9)
FORGOTTEN = 100
READ_OUTS = ("forgotten", "retained", "test", "own")


@dataclass(frozen=True)
class Way:
    """Settings of a request, and whether layers are priced by their rows alone."""

    config: unweave.ForgetConfig
    by_rows: bool = False

    def prices(self) -> AbstractContextManager[Any]:
        """Inside, layers are priced in this way."""
        return mock.patch("unweave.walking.prices._slope", return_value=1.0) if self.by_rows else nullcontext()


WAYS = {
    "walk, hard": Way(unweave.ForgetConfig(protect="hard")),
    "walk, soft": Way(unweave.ForgetConfig(protect="soft")),
    "solve, hard": Way(unweave.ForgetConfig(way="solve", protect="hard")),
    "solve, priced by rows": Way(unweave.ForgetConfig(way="solve"), by_rows=True),
    "solve": Way(unweave.ForgetConfig(way="solve")),
    "solve, γ 0.99": Way(unweave.ForgetConfig(way="solve", gamma=0.99)),
}


def trained(images: Images, seed: int) -> nn.Module:
    """AllCNN of half the width."""
    return network.train(images, seed, EPOCHS, make=partial(allcnn, width=WIDTH))


def one_seed(seed: int) -> Iterator[dict[str, Any]]:
    """Rows of one original: for every class itself, a network without some of its samples, and every way."""
    train, val, test = (data.load(split) for split in ("train", "val", "test"))
    model = trained(train, seed)
    grams = unweave.fit(model, train.batches(), val=val.batches())
    for label in CLASSES:
        gone, rest = _divided(train, label)
        retrained = trained(rest, RETRAINED_SEED + 10 * seed + label)
        sets = {"forgotten": gone, "retained": rest, "test": test, "own": test.where(_of(test, label))}
        about = {"seed": seed, "class": label}
        for name, net in (("original", model), ("retrained", retrained)):
            yield {**about, "way": name, **_errors(net, sets), "off": _off(net, retrained, gone)}
        for name, way in WAYS.items():
            with way.prices():
                result = unweave.forget(model, gone.batches(), grams, val.batches(), way.config)
            story = {"ok": result.ok, "steps": result.final.epoch, "felt": max(result.shift.values())}
            ends = {**_errors(result.model, sets), "off": _off(result.model, retrained, gone)}
            yield {**about, "way": name, **ends, **story, "seconds": result.seconds}


def _of(images: Images, label: int) -> torch.Tensor:
    return (images.y == label).nonzero().squeeze(1)


def _divided(train: Images, label: int) -> tuple[Images, Images]:
    """The first samples of a class, and everything else."""
    rest = torch.ones(len(train), dtype=torch.bool)
    rest[_of(train, label)[:FORGOTTEN]] = False
    return train.where((~rest).nonzero().squeeze(1)), train.where(rest.nonzero().squeeze(1))


def _errors(net: nn.Module, sets: Mapping[str, Images]) -> dict[str, float]:
    return {name: network.error(net, images) for name, images in sets.items()}


def _off(net: nn.Module, other: nn.Module, gone: Images) -> float:
    part = gone.x, gone.y
    return (margins_of(net, part) - margins_of(other, part)).abs().mean().item()


def summed_up(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds and classes."""
    found = []
    for way in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == way]
        names = [name for name in (*READ_OUTS, "off", "steps", "felt", "seconds") if name in own[0]]
        landed = {"ok": sum(row["ok"] for row in own)} if "ok" in own[0] else {}
        means = {name: statistics.fmean(row[name] for row in own) for name in names}
        found.append({"way": way, "requests": len(own), **landed, **means})
    return found


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/solving-class.json"))
    options = parser.parse_args()
    began, rows = time.perf_counter(), list[dict[str, Any]]()
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
        for row in one_seed(seed):
            rows.append(row)
            print(
                {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}, flush=True
            )
    means = summed_up(rows)
    for row in means:
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    setting = {"width": WIDTH, "epochs": EPOCHS, "classes": CLASSES, "forgotten": FORGOTTEN}
    record = {"made_by": provenance() | {"seconds": time.perf_counter() - began}, **setting}
    options.out.write_text(json.dumps({**record, "means": means, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
