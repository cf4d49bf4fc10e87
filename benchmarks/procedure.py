"""What U-LiRA sees of the samples, and what of the procedure.

    python -m benchmarks.procedure [--networks 20] [--out results/procedure.json]

On the demonstration's network. A: its first request, 20 samples of each class. B: as many others of each class. The
attacker asks about A alone, and compares

    unlearned              trained on everything, then made to forget A
    original               trained on everything
    original, others gone  trained on everything, then made to forget B

with

    retrained              trained without A
    retrained, others gone trained without A, then made to forget B

U-LiRA as the project's tables have it compares unlearned with retrained networks: a request was carried out on one side
only, so that what a request does to any sample tells as well. Hayes et al. carry one out on either side. Whatever is
left then is about A. "retrained, others gone" against "retrained" is the procedure by itself, seen on samples that
nobody was asked to forget.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import unweave
from benchmarks.provenance import provenance
from unweave.audit import Ensemble, separate
from unweave.audit.lira import ULiRA
from unweave.demo import data, network, requests
from unweave.demo.data import CLASSES, Images

FIRST_SEED = 70
WITHOUT = 1000
"""Networks that never saw A have other seeds: so much is added."""
PAIRS = (
    ("unlearned", "retrained"),
    ("unlearned", "retrained, others gone"),
    ("retrained, others gone", "retrained"),
    ("original", "retrained"),
    ("original, others gone", "retrained, others gone"),
)


def others(train: Images) -> Images:
    """B: the images of every class that come after those of the first request."""
    of_class = ((train.y == label).nonzero().squeeze(1) for label in range(len(CLASSES)))
    return train.where(torch.cat([own[requests.PER_CLASS : 2 * requests.PER_CLASS] for own in of_class]))


def both_sides(seed: int, train: Images, val: Images) -> tuple[dict[str, np.ndarray], dict[str, bool]]:
    """Logits on A [n, classes] of one network of each kind, and whether the requests were done."""
    split = requests.samples(train)
    asked, more = split.forget, others(train)
    found, done = dict[str, np.ndarray](), dict[str, bool]()

    def after(what: str, net: nn.Module, grams: unweave.LayerGrams, images: Images) -> None:
        result = unweave.forget(net, images.batches(), grams, val.batches())
        found[what], done[what] = _logits(result.model, asked), result.ok

    for kind, images, own in (("original", train, seed), ("retrained", split.retain, WITHOUT + seed)):
        net = network.train(images, own)
        grams = unweave.fit(net, images.batches(), val=val.batches())
        found[kind] = _logits(net, asked)
        after(f"{kind}, others gone", net, grams, more)
        if kind == "original":
            after("unlearned", net, grams, asked)
    return found, done


@torch.no_grad()
def _logits(net: nn.Module, images: Images) -> np.ndarray:
    return torch.cat([net(x) for x, _ in images.batches()]).numpy()


def compared(outputs: dict[str, np.ndarray], labels: np.ndarray) -> list[dict[str, Any]]:
    """What the attacker tells apart; outputs [networks, n, classes] of each kind.

    Where both kinds were made of the same trained networks, one half of these is asked about on either side: else the
    attacker would compare a network with itself.
    """
    rows = []
    for one, other in PAIRS:
        alike = one.partition(",")[0] == other.partition(",")[0]
        half = len(outputs[one]) // 2
        groups = (outputs[one][:half], outputs[other][half:]) if alike else (outputs[one], outputs[other])
        ensembles = [Ensemble.of(g, labels, name) for g, name in zip(groups, (one, other), strict=True)]
        found = separate(*ULiRA().score(*ensembles), same_samples=True)
        networks = [len(group) for group in groups]
        rows.append({"of": one, "against": other, "networks": networks, "auc": found.document()["auc"]})
    return rows


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=20, help="trained on everything, and as many without A")
    parser.add_argument("--out", type=Path, default=Path("results/procedure.json"))
    options = parser.parse_args()
    began, train, val = time.perf_counter(), data.load("train"), data.load("val")
    every, finished = list[dict[str, np.ndarray]](), list[dict[str, bool]]()
    for number in range(options.networks):
        outputs, done = both_sides(FIRST_SEED + number, train, val)
        every.append(outputs)
        finished.append(done)
        print(f"{number + 1}/{options.networks} {time.perf_counter() - began:.0f} s {done}", flush=True)
    labels = requests.samples(train).forget.y.numpy()
    rows = compared({kind: np.stack([one[kind] for one in every]) for kind in every[0]}, labels)
    for row in rows:
        print(row)
    record = {
        "made_by": provenance() | {"seconds": time.perf_counter() - began},
        "first seed": FIRST_SEED,
        "samples": len(labels),
        "requests done": {kind: sum(done[kind] for done in finished) for kind in finished[0]},
        "rows": rows,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
