"""A tenth to nine tenths of one class ask to be forgotten: how near is that to retraining?

    python -m benchmarks.label_shift [--seeds 2] [--retrained 2] [--out results/label-shift.json]

The demonstration's network and images, 300 of each class. A network that is trained on fewer samples of a class says it
less often, so what to aim at is not where held-out samples are, but where they would be
(``unweave.behaviour.label_shift``). Beside it the same request without that, and networks that were trained without the
samples. Seeds begin at FIRST_SEED and the classes are CLASSES: lower seeds and other classes were looked at while this
was made.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unweave
from benchmarks.provenance import provenance
from unweave.demo import data, network
from unweave.demo.data import Images

FIRST_SEED = 310
RETRAINED_SEED = 4000
"""Of the first retrained network; those of another set of samples have others."""
CLASSES = (1, 4, 6)
SHARES = (0.1, 0.3, 0.6, 0.9)
WAYS = {"unlearned": True, "unlearned, as held out": False}
"""Name of a row → whether it reckons with what the class loses."""
READ_OUTS = ("forgotten", "own test", "own retained", "retained", "test")


def one_seed(seed: int, retrained: int) -> Iterator[dict[str, Any]]:
    """Rows of one original: for every class and share itself, networks retrained without them, and both ways."""
    train, val, test = (data.load(split) for split in ("train", "val", "test"))
    model = network.train(train, seed)
    grams = unweave.fit(model, train.batches(), val=val.batches())
    for place, (label, share) in enumerate((label, share) for label in CLASSES for share in SHARES):
        gone, rest = _divided(train, label, share, seed)
        sets = {"forgotten": gone, "own test": _of(test, label), "own retained": _of(rest, label)}
        sets |= {"retained": rest, "test": test}

        about = {"seed": seed, "class": label, "share": share}
        row = functools.partial(_row, about, sets)
        yield row("original", model)
        for i in range(retrained):
            yield row("retrained", network.train(rest, RETRAINED_SEED + 1000 * seed + 10 * place + i))
        for way, shifted in WAYS.items():
            config = unweave.ForgetConfig(label_shift=shifted)
            result = unweave.forget(model, gone.batches(), grams, val.batches(), config)
            yield row(way, result.model, ok=result.ok, target=result.goal.error, seconds=result.seconds)


def _row(about: dict[str, Any], sets: dict[str, Images], way: str, net: nn.Module, **more: Any) -> dict[str, Any]:
    return {**about, "way": way, **{key: network.error(net, images) for key, images in sets.items()}, **more}


def _divided(train: Images, label: int, share: float, seed: int) -> tuple[Images, Images]:
    """A share of a class, drawn at random, and everything else."""
    own = (train.y == label).nonzero().squeeze(1)
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))
    kept = torch.ones(len(train), dtype=torch.bool)
    kept[own[order[: round(share * len(own))]]] = False
    return train.where((~kept).nonzero().squeeze(1)), train.where(kept.nonzero().squeeze(1))


def _of(images: Images, label: int) -> Images:
    return images.where((images.y == label).nonzero().squeeze(1))


def summed_up(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each share and way the means over networks."""
    found = []
    for share in SHARES:
        for way in dict.fromkeys(row["way"] for row in rows):
            own = [row for row in rows if (row["share"], row["way"]) == (share, way)]
            means = {key: statistics.fmean(row[key] for row in own) for key in READ_OUTS}
            found.append({"share": share, "way": way, "networks": len(own), **means})
    return found


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--retrained", type=int, default=2, help="networks to compare with, for each request")
    parser.add_argument("--out", type=Path, default=Path("results/label-shift.json"))
    options = parser.parse_args()
    began, rows = time.perf_counter(), list[dict[str, Any]]()
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
        for row in one_seed(seed, options.retrained):
            rows.append(row)
            print(
                {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}, flush=True
            )
    record = {"made_by": provenance() | {"seconds": time.perf_counter() - began}, "classes": CLASSES, "shares": SHARES}
    text = json.dumps({**record, "means": summed_up(rows), "rows": rows}, indent=1)
    options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
