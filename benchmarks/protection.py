"""Soft against hard protection: small problems that are hard to forget on, and the demonstration's network.

    python -m benchmarks.protection [--seeds 4] [--out results/protection.json]

Points around one centre a class, noisy enough that held-out samples are often wrong while the network knows its own by
heart: forgetting has to move far, and there is little room. All aim at the same landing, the held-out error of the
forgotten samples' classes; "ok" counts who got there. The control is a request without any protection. Seeds begin at
FIRST_SEED: lower ones were looked at while soft protection was made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unweave
from benchmarks.provenance import provenance
from unweave.demo import data, network, requests
from unweave.protection import PROTECTIONS

FIRST_SEED = 10
IMAGE_SEEDS = 2
"""Of the demonstration's network, at most: it takes longer."""
GAMMAS = (0.5, 0.9, 0.99)
READ_OUTS = ("felt", "retained", "test")
UNPROTECTED = unweave.ForgetConfig(gamma=1e-6, rank_rule="le")
"""By the rule that counts shares up to γ no direction is protected."""


@dataclass(frozen=True)
class Points:
    """A problem of points, and the network that learns it."""

    samples: int
    classes: int
    width: int
    noise: float
    hidden: int
    epochs: int
    forget: int

    def draw(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Points [count, width] and labels; the centres are the same for every seed."""
        generator = torch.Generator().manual_seed(seed)
        centres = torch.randn(self.classes, self.width, generator=torch.Generator().manual_seed(99))
        labels = torch.randint(self.classes, (count,), generator=generator)
        return centres[labels] + self.noise * torch.randn(count, self.width, generator=generator), labels

    def train(self, x: Tensor, y: Tensor, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        hidden = [nn.Linear(self.width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.hidden), nn.ReLU()]
        net = nn.Sequential(*hidden, nn.Linear(self.hidden, self.classes))
        optimiser = torch.optim.AdamW(net.parameters(), 1e-3)
        for _ in range(self.epochs):
            for chosen in torch.randperm(len(x)).split(64):
                optimiser.zero_grad()
                F.cross_entropy(net(x[chosen]), y[chosen]).backward()
                optimiser.step()
        return net.eval()


PROBLEMS = (
    Points(1500, 5, 20, 2.0, 128, 60, 100),
    Points(1500, 5, 20, 2.5, 256, 100, 100),
    Points(3000, 10, 50, 3.0, 256, 60, 100),
    Points(1500, 5, 20, 2.0, 128, 15, 100),
    Points(1500, 5, 100, 3.0, 128, 40, 50),
    Points(600, 3, 10, 1.5, 64, 200, 20),
)


def wrong(net: nn.Module, part: tuple[Tensor, Tensor]) -> float:
    """Percent."""
    with torch.no_grad():
        return 100 * float((net(part[0]).argmax(1) != part[1]).double().mean())


def on_points(problem: Points, seed: int) -> Iterator[dict[str, Any]]:
    """A row for each protection and γ: points of error over the original's (retained) and over retrained (others)."""
    x, y = problem.draw(problem.samples, seed)
    val, test = problem.draw(1000, seed + 50), problem.draw(2000, seed + 90)
    gone, rest = (x[: problem.forget], y[: problem.forget]), (x[problem.forget :], y[problem.forget :])
    net, retrained = problem.train(x, y, seed), problem.train(*rest, seed)
    grams = unweave.fit(net, [(x, y)], val=[val])
    ways = {(g, p): unweave.ForgetConfig(gamma=g, protect=p) for g in GAMMAS for p in PROTECTIONS}
    for (gamma, protect), config in {(0.0, "none"): UNPROTECTED, **ways}.items():
        result = unweave.forget(net, [gone], grams, val=[val], config=config)
        yield {
            **{"seed": seed, "gamma": gamma, "protect": protect, "ok": result.ok},
            "felt": max(result.shift.values()),
            "forgotten": wrong(result.model, gone) - wrong(retrained, gone),
            "retained": wrong(result.model, rest) - wrong(net, rest),
            "test": wrong(result.model, test) - wrong(retrained, test),
            "epochs": len(result.history) - 1,
        }


def on_images(seed: int) -> Iterator[dict[str, Any]]:
    """The demonstration's three requests with either protection, γ = 0.9: points of error over the original's.

    On the test set, without the class that is forgotten where one is.
    """
    train, val, test = (data.load(split) for split in ("train", "val", "test"))
    poisoned, wrong_labels, _ = requests.poison(train)
    clean_net, poisoned_net = network.train(train, seed=seed), network.train(poisoned, seed=seed)
    for task, net, images, split in (
        ("samples", clean_net, train, requests.samples(train)),
        ("classes", clean_net, train, requests.one_class(train)),
        ("poison", poisoned_net, poisoned, wrong_labels),
    ):
        grams = unweave.fit(net, images.batches(), val=val.batches())
        judged = test.where((test.y != requests.CLASS).nonzero().squeeze(1)) if task == "classes" else test
        ways = {protect: unweave.ForgetConfig(task=task, protect=protect) for protect in PROTECTIONS}
        for protect, config in {"none": replace(UNPROTECTED, task=task), **ways}.items():
            result = unweave.forget(net, split.forget.batches(), grams, val=val.batches(), config=config)
            yield {
                **{"task": task, "seed": seed, "protect": protect, "ok": result.ok},
                "felt": max(result.shift.values()),
                "retained": network.error(result.model, split.retain) - network.error(net, split.retain),
                "test": network.error(result.model, judged) - network.error(net, judged),
                "epochs": len(result.history) - 1,
            }


def summed_up(rows: list[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """Means over everything but some keys, in the order of the rows."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        dict(zip(keys, values, strict=True))
        | {name: statistics.mean(row[name] for row in group) for name in (*READ_OUTS, "epochs")}
        | {"requests": len(group), "ok": sum(row["ok"] for row in group)}
        for values, group in groups.items()
    ]


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("results/protection.json"))
    options = parser.parse_args()
    began, seeds = time.perf_counter(), range(FIRST_SEED, FIRST_SEED + options.seeds)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks of points are too small for more
    points = [
        {"problem": i, **row}
        for i, problem in enumerate(PROBLEMS)
        for seed in seeds
        for row in on_points(problem, seed)
    ]
    torch.set_num_threads(threads)
    images = [row for seed in seeds[:IMAGE_SEEDS] for row in on_images(seed)]
    tables = {"points": summed_up(points, "gamma", "protect"), "images": summed_up(images, "task", "protect")}
    for name, table in tables.items():
        for row in table:
            print(name, {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    problems = [asdict(problem) for problem in PROBLEMS]
    record = {"made_by": provenance() | {"seconds": time.perf_counter() - began}, "problems": problems, **tables}
    text = json.dumps({**record, "rows": {"points": points, "images": images}}, indent=1)
    options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
