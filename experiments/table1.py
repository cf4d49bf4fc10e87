"""Table 1, as far as it is built: AllCNN on CIFAR-10 forgets 500 samples of class 0.

    python -m experiments.table1 DATA_FOLDER [--epochs 100] [--seeds 1] [--out results/table1-pgu.json]

Original, retrained, and this project's methods: the authors' settings, the paper's objective with our step and target,
and ``match``. The other baselines and the attacks are not in here yet.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unweave
from benchmarks.provenance import provenance
from experiments.data import Cifar10, Labelled, first_of_class, load_cifar10
from experiments.models import allcnn
from experiments.training import error, train

FORGET = 500
METHODS = {
    "authors": unweave.ForgetConfig.paper("allcnn-cifar10"),
    "paper": unweave.ForgetConfig(objective="paper"),
    "match": unweave.ForgetConfig(),
}


def readout(net: nn.Module, data: Cifar10, forget: Labelled, retain: Labelled) -> dict[str, float]:
    """Errors on the sets of the paper, and on held-out samples of the forgotten samples' own class."""
    own = Labelled(data.val.x[data.val.y == 0], data.val.y[data.val.y == 0])
    sets = {"retained": retain, "forgotten": forget, "test": data.test, "held-out of its class": own}
    return {name: error(net, part) for name, part in sets.items()}


def one_seed(data: Cifar10, seed: int, epochs: int) -> dict[str, Any]:
    """Train, retrain, fit and forget with one seed; errors in percent, seconds by the wall clock."""
    chosen = first_of_class(data.train.y, 0, 0, FORGET)
    kept = torch.ones(len(data.train), dtype=torch.bool, device=chosen.device)
    kept[chosen] = False
    forget, retain = data.train.where(chosen), data.train.where(kept.nonzero().squeeze(1))
    rows: dict[str, Any] = {}
    nets: dict[str, nn.Module] = {}
    for name, part in {"original": data.train, "retrained": retain}.items():
        torch.manual_seed(seed)
        began = time.perf_counter()
        nets[name] = train(allcnn(), part, seed=seed, epochs=epochs)
        rows[name] = readout(nets[name], data, forget, retain) | {"seconds": _since(began)}
        print(seed, name, rows[name], flush=True)
    grams = {}
    for stride in ("layer", "one"):
        began = time.perf_counter()
        grams[stride] = unweave.fit(nets["original"], data.train.batches(500), val=data.val.batches(), stride=stride)
        rows[f"fit, stride {stride}"] = {"seconds": _since(began)}
    for name, config in METHODS.items():
        stride = "one" if name == "authors" else "layer"
        arguments = (nets["original"], forget.batches(), grams[stride], data.val.batches(), config)
        unweave.forget(*arguments)  # the first request of a process also loads kernels
        began = time.perf_counter()
        result = unweave.forget(*arguments)
        rows[name] = readout(result.model, data, forget, retain) | {
            "seconds": _since(began),
            "ok": result.ok,
            "stopped": result.stopped,
            "target": result.goal.error,
            "epochs": len(result.history) - 1,
            "ranks": result.ranks,
        }
        print(seed, name, rows[name], flush=True)
    return rows


def _since(began: float) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """Run and write; a seed that is in the file already is not run again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/table1-pgu.json"))
    arguments = parser.parse_args()
    document: dict[str, Any] = {"made_by": {}, "epochs": arguments.epochs, "seeds": {}}
    if arguments.out.exists():
        document = json.loads(arguments.out.read_text())
    data = load_cifar10(arguments.data, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    for seed in range(arguments.seeds):
        if str(seed) not in document["seeds"]:
            document["seeds"][str(seed)] = one_seed(data, seed, arguments.epochs)
            document["made_by"] = provenance()
            document["methods"] = {name: config.resolved().as_dict() for name, config in METHODS.items()}
            arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
