"""The demonstration over several seeds, and its default call on networks trained for 5, 15 and 40 epochs.

    python -m benchmarks.demo_seeds [--seeds 3] [--out results/demo.json]

Prints a table and writes every number with what it was made by. Everything runs on the CPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import unweave
from benchmarks.provenance import provenance
from unweave.demo import data, network, requests
from unweave.demo.story import Chapter, Story

EPOCHS = (5, 15, 40)
BOUNDS = {"forgotten": 2.5, "test": 1.0, "retained": 0.5}


def one_seed(seed: int) -> list[Chapter]:
    """The whole demonstration with one seed."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder), seed, say=lambda text: None, tick=lambda what, done, total: None)
        return story.tell()


def retrained_again(count: int) -> dict[str, list[float]]:
    """The errors of networks that were all trained without the forget set, from seeds of their own."""
    train, test = data.load("train"), data.load("test")
    split = requests.samples(train)
    nets = [network.train(split.retain, seed=100 + seed) for seed in range(count)]
    return {
        "forgotten": [network.error(net, split.forget) for net in nets],
        "test": [network.error(net, test) for net in nets],
        "retained": [network.error(net, split.retain) for net in nets],
    }


def pairs_within(errors: dict[str, list[float]]) -> dict[str, float]:
    """How many of all pairs of retrained networks are within the bounds of each other on the forget and the test set.

    Of two networks that both never saw the samples, one would be taken for badly unlearned where they are not: what a
    bound may ask of a single comparison. "three in a row" is the chance of three that know nothing of each other.
    """
    pairs = list(itertools.combinations(range(len(errors["forgotten"])), 2))
    near = {
        key: [abs(errors[key][i] - errors[key][j]) <= BOUNDS[key] for i, j in pairs] for key in ("forgotten", "test")
    }
    both = statistics.mean(map(all, zip(*near.values(), strict=True)))
    return {**{key: statistics.mean(found) for key, found in near.items()}, "both": both, "three in a row": both**3}


def one_length(epochs: int) -> dict[str, Any]:
    """The default call, no learning rate given, on a network trained for a number of epochs."""
    train, val, test = (data.load(split) for split in ("train", "val", "test"))
    split = requests.samples(train)
    model = network.train(train, seed=0, epochs=epochs)
    grams = unweave.fit(model, train.batches(), val=val.batches())
    rows: dict[str, Any] = {"epochs": epochs, "train error": network.error(model, train)}
    for objective in ("match", "paper"):
        config = unweave.ForgetConfig(objective=objective)
        result = unweave.forget(model, split.forget.batches(), grams, val=val.batches(), config=config)
        rows[objective] = {
            "ok": result.ok,
            "stopped": result.stopped,
            "target": result.goal.error,
            "forgotten": [network.error(model, split.forget), network.error(result.model, split.forget)],
            "retained": [network.error(model, split.retain), network.error(result.model, split.retain)],
            "test": [network.error(model, test), network.error(result.model, test)],
            "lr": result.history[1].lr if len(result.history) > 1 else None,
            "epochs": len(result.history) - 1,
            "seconds": result.seconds,
        }
    return rows


def distances(chapters: list[Chapter]) -> dict[str, float]:
    """Unlearned less retrained on the forget and the test set, and less the original on the retained set."""
    first = chapters[0]
    assert first.retrained is not None
    return {
        "forgotten": first.unlearned.forgotten - first.retrained.forgotten,
        "test": first.unlearned.test - first.retrained.test,
        "retained": first.unlearned.retained - first.original.retained,
    }


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--retrained", type=int, default=12, help="networks to compare with each other")
    parser.add_argument("--out", type=Path, default=Path("results/demo.json"))
    arguments = parser.parse_args()
    began = time.perf_counter()
    runs = {seed: one_seed(seed) for seed in range(arguments.seeds)}
    gaps = {seed: distances(chapters) for seed, chapters in runs.items()}
    means = {key: statistics.mean(gap[key] for gap in gaps.values()) for key in BOUNDS}
    for seed, gap in [*gaps.items(), ("mean", means)]:
        print(f"seed {seed}: " + "  ".join(f"{key} {value:+.2f} (bound {BOUNDS[key]})" for key, value in gap.items()))
    again = retrained_again(arguments.retrained)
    near = pairs_within(again)
    print("pairs of retrained networks within the bounds: " + "  ".join(f"{key} {v:.0%}" for key, v in near.items()))
    lengths = [one_length(epochs) for epochs in EPOCHS]
    for row in lengths:
        print({key: value if not isinstance(value, dict) else value["stopped"] for key, value in row.items()})
    document = {
        "made_by": provenance() | {"seconds": time.perf_counter() - began},
        "unlearned less retrained (forgotten, test) or less original (retained), in points": gaps,
        "mean over seeds": means,
        "bounds, in points": BOUNDS,
        "other retrained networks": again,
        "share of their pairs within the bounds": near,
        "runs": {
            seed: [asdict(chapter) | {"margins": None} for chapter in chapters] for seed, chapters in runs.items()
        },
        "networks trained for other numbers of epochs": lengths,
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
