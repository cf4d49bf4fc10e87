"""Forty people ask to be forgotten, one after the other or all at once: how near is that to retraining?

    python -m benchmarks.one_by_one [--seeds 3] [--retrained 12] [--out results/one-by-one.json]

The demonstration's network and images, four samples of each class. Each sample is aimed at where held-out samples of
its class are at its rank: among all training samples (default), or among those of the request, as without knowledge of
how training margins are spread; a sample that is alone is then in the middle of its class. Beside them networks that
were trained without the forty. Seeds begin at FIRST_SEED: lower ones were looked at while this was made.

"off" is the mean over samples of how far a margin is from the mean over retrained networks; its floor is that of a
retrained network from the mean of the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unweave
from benchmarks.provenance import provenance
from unweave import LayerGrams
from unweave.behaviour.outcomes import margin
from unweave.demo import data, network
from unweave.demo.data import Images

FIRST_SEED = 3
PER_CLASS = 4
RETRAINED_SEED = 1000
"""Of the first retrained network; those of another set of samples have others."""
READ_OUTS = ("forgotten", "off", "retained", "test")


def one_seed(seed: int, retrained: int) -> list[dict[str, Any]]:
    """A row for every way to forget one network's forty samples, with the original's and that of retraining."""
    train, val, test = (data.load(split) for split in ("train", "val", "test"))
    chosen = _chosen(train, seed)
    kept = torch.ones(len(train), dtype=torch.bool)
    kept[chosen] = False
    gone, rest = train.where(chosen), train.where(kept.nonzero().squeeze(1))
    nets = [network.train(rest, RETRAINED_SEED + 100 * seed + i) for i in range(retrained)]
    margins = torch.stack([margins_of(net, gone) for net in nets])

    def row(way: str, net: nn.Module, others: Tensor, **more: Any) -> dict[str, Any]:
        errors = {"forgotten": gone, "retained": rest, "test": test}
        found = {key: network.error(net, images) for key, images in errors.items()}
        off = (margins_of(net, gone) - others.mean(0)).abs().mean().item()
        return {"seed": seed, "way": way, **found, "off": off, **more}

    model = network.train(train, seed)
    grams = unweave.fit(model, train.batches(), val=val.batches())
    rows = [row("original", model, margins)]
    rows += [row("retrained", net, margins[torch.arange(len(nets)) != i]) for i, net in enumerate(nets)]
    for ranked, known in (("the training samples", grams), ("the request", without_spread(grams))):
        for size, words in ((1, "one by one"), (len(chosen), "at once")):
            began = time.perf_counter()
            requests = [train.where(part).batches() for part in chosen.split(size)]
            net, ok = _forgotten(model, requests, known, val)
            seconds = time.perf_counter() - began
            rows.append(row(f"{words}, ranked among {ranked}", net, margins, ok=ok, seconds=seconds))
    return rows


def _chosen(train: Images, seed: int) -> Tensor:
    """Positions of so many samples of each class, in a random order."""
    order = torch.Generator().manual_seed(seed)
    own = [(train.y == label).nonzero().squeeze(1) for label in train.y.unique()]
    some = torch.cat([places[torch.randperm(len(places), generator=order)[:PER_CLASS]] for places in own])
    return some[torch.randperm(len(some), generator=order)]


def _forgotten(
    model: nn.Module, requests: list[list[tuple[Tensor, Tensor]]], grams: LayerGrams, val: Images
) -> tuple[nn.Module, int]:
    """The network after some requests in a row, and how many of them were done."""
    net, done = model, 0
    for request in requests:
        result = unweave.forget(net, request, grams, val.batches(), first=model)
        net, grams, done = result.model, result.grams, done + result.ok
    return net, done


def without_spread(grams: LayerGrams) -> LayerGrams:
    """Grams that do not know how training margins are spread."""
    return LayerGrams({name: grams.grouped(name) for name in grams}, grams.layers, grams.origin, grams.held_out)


@torch.no_grad()
def margins_of(net: nn.Module, images: Images) -> Tensor:
    """[N], in float64."""
    return margin(net(images.x).double(), images.y)


def summed_up(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each way the means over networks."""
    ways = dict.fromkeys(row["way"] for row in rows)
    return [{"way": way, **_means([row for row in rows if row["way"] == way])} for way in ways]


def _means(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {"networks": len(rows), **{key: statistics.fmean(row[key] for row in rows) for key in READ_OUTS}}


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--retrained", type=int, default=12, help="networks to compare with, for each seed")
    parser.add_argument("--out", type=Path, default=Path("results/one-by-one.json"))
    options = parser.parse_args()
    began, rows = time.perf_counter(), list[dict[str, Any]]()
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
        rows += one_seed(seed, options.retrained)
        for row in summed_up([row for row in rows if row["seed"] == seed]):
            print(seed, {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()})
    record = {"made_by": provenance() | {"seconds": time.perf_counter() - began}, "per class": PER_CLASS}
    text = json.dumps({**record, "means": summed_up(rows), "rows": rows}, indent=1)
    options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
