"""Many AllCNNs for the attacks that learn from models: full, retrained, and unlearned in several ways.

    python -m experiments.ensemble DATA_FOLDER OUT_FOLDER [--models 16] [--epochs 30]

Forgets 500 samples of class 0, as in table 1. Writes OUT_FOLDER/outputs-OBJECTIVE.npz, which ``unweave audit`` reads,
and OUT_FOLDER/ensemble.json with the errors. Each unlearned model is made of its own original. Every model is kept as
soon as it is done: started again, the script goes on where it was.
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
from experiments.data import Cifar10, Labelled, first_of_class, load_cifar10
from experiments.datasets.images import error
from experiments.training.fast import train_fast
from experiments.training.models import allcnn
from unweave.audit import collect, save_evidence

FORGET = 500
HELD_OUT = 250
"""Test samples a class whose outputs are kept."""
OBJECTIVES = ("match", "paper")


class Ensemble:
    """The models of one run, and what is kept of them."""

    def __init__(self, data: Cifar10, out: Path, epochs: int) -> None:
        self.data, self.out, self.epochs = data, out, epochs
        chosen = first_of_class(data.train.y, 0, 0, FORGET)
        kept = torch.ones(len(data.train), dtype=torch.bool, device=chosen.device)
        kept[chosen] = False
        self.forget, self.retain = data.train.where(chosen), data.train.where(kept.nonzero().squeeze(1))
        classes = [(data.test.y == c).nonzero().squeeze(1)[:HELD_OUT] for c in range(10)]
        self.held_out = data.test.where(torch.cat(classes))
        out.mkdir(parents=True, exist_ok=True)

    def one(self, seed: int) -> None:
        """An original, the network retrained with the same seed, and the original made to forget in each way."""
        if (self.out / f"model-{seed}.npz").exists():
            return
        made: dict[str, Any] = {}  # arrays
        rows: dict[str, Any] = {}
        original, seconds = self._timed(lambda: train_fast(allcnn, self.data.train, seed=seed, epochs=self.epochs))
        self._note(made, rows, "original", original, seconds)
        retrained, seconds = self._timed(lambda: train_fast(allcnn, self.retain, seed=1000 + seed, epochs=self.epochs))
        self._note(made, rows, "retrained", retrained, seconds)
        grams, seconds = self._timed(lambda: unweave.fit(original, self.data.train.batches(), self.data.val.batches()))
        rows["fit"] = {"seconds": seconds}
        for objective in OBJECTIVES:
            config = unweave.ForgetConfig(objective=objective)
            request = (original, self.forget.batches(), grams, self.data.val.batches(), config)
            result, seconds = self._timed(lambda request=request: unweave.forget(*request))
            self._note(made, rows, objective, result.model, seconds)
            rows[objective] |= {"ok": result.ok, "target": result.goal.error, "epochs": len(result.history) - 1}
        (self.out / f"rows-{seed}.json").write_text(json.dumps(rows))
        np.savez_compressed(self.out / f"model-{seed}.npz", **made)
        print(seed, json.dumps(rows), flush=True)

    def _timed(self, work: Any) -> tuple[Any, float]:
        began = time.perf_counter()
        made = work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return made, time.perf_counter() - began

    def _note(self, made: dict[str, np.ndarray], rows: dict[str, Any], name: str, net: nn.Module, took: float) -> None:
        own = Labelled(self.data.test.x[self.data.test.y == 0], self.data.test.y[self.data.test.y == 0])
        sets = {"retained": self.retain, "forgotten": self.forget, "test": self.data.test, "held-out of its class": own}
        rows[name] = {part: error(net, images) for part, images in sets.items()} | {"seconds": took}
        made[f"{name}_forget"] = collect(net, self.forget.batches()).logits.astype(np.float32)
        made[f"{name}_held_out"] = collect(net, self.held_out.batches()).logits.astype(np.float32)

    def together(self, models: int, began: float) -> None:
        """One file of outputs for each way of forgetting, and the table of errors."""
        parts = [np.load(self.out / f"model-{seed}.npz") for seed in range(models)]
        labels = {"forget_labels": self.forget.y.cpu().numpy(), "held_out_labels": self.held_out.y.cpu().numpy()}
        for objective in OBJECTIVES:
            names = {"original": "original", "retrained": "retrained", "unlearned": objective}
            arrays = {
                f"{group}_{part}": np.stack([p[f"{name}_{part}"] for p in parts])
                for group, name in names.items()
                for part in ("forget", "held_out")
            }
            save_evidence(self.out / f"outputs-{objective}.npz", **arrays, **labels)
        rows = {str(seed): json.loads((self.out / f"rows-{seed}.json").read_text()) for seed in range(models)}
        settings = {"epochs": self.epochs, "forget": FORGET, "held out a class": HELD_OUT}
        document = {"made_by": provenance(), "settings": settings, "seconds": time.perf_counter() - began}
        (self.out / "ensemble.json").write_text(json.dumps({**document, "models": rows}, indent=1) + "\n")


def main() -> None:
    """Train, forget and write; models that are there already are not made again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args()
    began = time.perf_counter()
    data = load_cifar10(arguments.data, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    ensemble = Ensemble(data, arguments.out, arguments.epochs)
    for seed in range(arguments.models):
        ensemble.one(seed)
        ensemble.together(seed + 1, began)


if __name__ == "__main__":
    main()
