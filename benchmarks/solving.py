"""Samples forgotten by solving for their margins, beside walking there: what it costs the others, and how many steps.

    python -m benchmarks.solving [--seeds 4] [--out results/solving.json]

Problems of points (those of :mod:`benchmarks.protection`) and the demonstration's network with its first request. "off"
is the mean over forgotten samples of how far a margin is from the middle of retrained networks'; "steps" are epochs of
a walk (not those that were tried to find its step), or solved steps. Errors are in points: of forgotten and test
samples over retrained networks', of retained samples over the original's. Seeds are others than those looked at while
it was made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unweave
from benchmarks.protection import PROBLEMS, Points, wrong
from benchmarks.provenance import provenance
from unweave.behaviour.outcomes import margin
from unweave.demo import data, network, requests

FIRST_SEED = 30
IMAGE_SEEDS = 3
"""Of the demonstration's network, at most: it takes longer."""
RETRAINED = 3
"""Networks to compare with, for each seed."""
WAYS = {
    "walk, hard": unweave.ForgetConfig(protect="hard"),
    "walk, soft": unweave.ForgetConfig(protect="soft"),
    "walk": unweave.ForgetConfig(),
    "solve, hard": unweave.ForgetConfig(way="solve", protect="hard"),
    "solve, auto": unweave.ForgetConfig(way="solve", protect="auto"),
    "solve": unweave.ForgetConfig(way="solve"),
}
READ_OUTS = ("steps", "felt", "forgotten", "off", "retained", "test", "seconds")

Part = tuple[Tensor, Tensor]


def margins_of(net: nn.Module, part: Part) -> Tensor:
    """[N], float64."""
    with torch.no_grad():
        return margin(net(part[0]).double(), part[1])


def each_way(
    net: nn.Module, retrained: list[nn.Module], whole: Part, gone: Part, rest: Part, val: Part, test: Part
) -> Iterator[dict[str, Any]]:
    """A row for each way to forget."""
    grams = unweave.fit(net, [whole], val=[val])
    middle = torch.stack([margins_of(other, gone) for other in retrained]).median(0).values
    usual = {name: statistics.mean(wrong(other, part) for other in retrained) for name, part in _named(gone, test)}
    for way, config in WAYS.items():
        result = unweave.forget(net, [gone], grams, val=[val], config=config)
        yield {
            **{"way": way, "ok": result.ok, "steps": result.final.epoch, "seconds": result.seconds},
            **{name: wrong(result.model, part) - usual[name] for name, part in _named(gone, test)},
            "felt": max(result.shift.values()),
            "off": (margins_of(result.model, gone) - middle).abs().mean().item(),
            "retained": wrong(result.model, rest) - wrong(net, rest),
        }


def _named(gone: Part, test: Part) -> tuple[tuple[str, Part], ...]:
    return ("forgotten", gone), ("test", test)


def on_points(problem: Points, seed: int) -> Iterator[dict[str, Any]]:
    """The rows of one problem."""
    x, y = problem.draw(problem.samples, seed)
    val, test = problem.draw(1000, seed + 50), problem.draw(2000, seed + 90)
    gone, rest = (x[: problem.forget], y[: problem.forget]), (x[problem.forget :], y[problem.forget :])
    retrained = [problem.train(*rest, seed + 1000 * i) for i in range(RETRAINED)]
    yield from each_way(problem.train(x, y, seed), retrained, (x, y), gone, rest, val, test)


def on_images(seed: int) -> Iterator[dict[str, Any]]:
    """The rows of the demonstration's network."""
    train, val, test = (data.load(split) for split in ("train", "val", "test"))
    split = requests.samples(train)
    retrained = [network.train(split.retain, seed + 1000 * i) for i in range(RETRAINED)]
    parts = [(images.x, images.y) for images in (train, split.forget, split.retain, val, test)]
    yield from each_way(network.train(train, seed), retrained, *parts)


def summed_up(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over everything but the way, and the largest number of steps."""
    found = []
    for way in WAYS:
        own = [row for row in rows if row["way"] == way]
        means = {name: statistics.mean(row[name] for row in own) for name in READ_OUTS}
        counts = {"requests": len(own), "ok": sum(row["ok"] for row in own), "most": max(row["steps"] for row in own)}
        found.append({"way": way, **counts, **means})
    return found


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("results/solving.json"))
    options = parser.parse_args()
    began, seeds = time.perf_counter(), range(FIRST_SEED, FIRST_SEED + options.seeds)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks of points are too small for more
    rows: dict[str, list[dict[str, Any]]] = {"points": [], "images": []}
    for i, problem in enumerate(PROBLEMS):
        for seed in seeds:
            rows["points"] += [{"problem": i, "seed": seed, **row} for row in on_points(problem, seed)]
    torch.set_num_threads(threads)
    for seed in seeds[:IMAGE_SEEDS]:
        rows["images"] += [{"seed": seed, **row} for row in on_images(seed)]
    means = {name: summed_up(own) for name, own in rows.items()}
    for name, table in means.items():
        for row in table:
            print(name, {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    record = {"made_by": provenance() | {"seconds": time.perf_counter() - began}, "retrained": RETRAINED, **means}
    options.out.write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
