"""How long a request takes on real CIFAR-10, against retraining with the fast trainer, in one run.

    python -m benchmarks.request DATA_FOLDER [--epochs 30] [--repeats 5] [--out results/bench-request-cuda.json]

AllCNN forgets 500 samples of class 0, as in table 1: seconds of fit, of a request with its steps captured and with its
steps taken one kernel at a time, with the Grams on the GPU and in the machine's memory, and of retraining. Whether the
captured and the plain walk end at the same weights is noted too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import unweave
from benchmarks.provenance import provenance
from experiments.data import first_of_class, load_cifar10
from experiments.fast_training import train_fast
from experiments.models import allcnn
from unweave import captured
from unweave.rest import fingerprint


def timed(work: Callable[[], Any], repeats: int) -> tuple[Any, list[float]]:
    """The last outcome, and the seconds of all but the first, which warms up."""
    taken = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        made = work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return made, taken[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/bench-request-cuda.json"))
    options = parser.parse_args()
    data = load_cifar10(options.data, torch.device("cuda"))
    chosen = first_of_class(data.train.y, 0, 0, 500)
    kept = torch.ones(len(data.train), dtype=torch.bool, device="cuda").index_fill(0, chosen, False)
    forget, retain = data.train.where(chosen), data.train.where(kept.nonzero().squeeze(1))
    original = train_fast(allcnn, data.train, seed=0, epochs=options.epochs)
    record: dict[str, Any] = {"made_by": provenance(), "epochs": options.epochs, "seconds": {}}
    seconds = record["seconds"]
    _, seconds["retrain"] = timed(lambda: train_fast(allcnn, retain, seed=0, epochs=options.epochs), 1)
    grams, seconds["fit"] = timed(lambda: unweave.fit(original, data.train.batches(512), data.val.batches()), 2)
    here = grams.to("cuda")
    ends = {}
    for name, eager, sums in (("plain", 10**9, here), ("request", captured.EAGER, here), ("Grams on CPU", 3, grams)):
        with mock.patch.object(captured, "EAGER", eager):
            work = lambda sums=sums: unweave.forget(original, forget.batches(), sums, data.val.batches())  # noqa: E731
            result, seconds[name] = timed(work, options.repeats)
        ends[name] = fingerprint(result.model)
    record["request"] = {
        "ok": result.ok,
        "epochs": len(result.history) - 1,
        "same weights": len(set(ends.values())) == 1,
    }
    record["retraining takes so many requests"] = seconds["retrain"][0] / statistics.median(seconds["request"])
    for name, taken in seconds.items():
        print(f"{name}: {statistics.median(taken):.3f} s ({min(taken):.3f} to {max(taken):.3f})")
    print(json.dumps(record["request"]), f"ratio {record['retraining takes so many requests']:.1f}")
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
