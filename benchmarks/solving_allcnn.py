"""Table 1's request on AllCNN and all of CIFAR-10, solved for and walked to, on a CPU in an hour or three.

    python -m benchmarks.solving_allcnn --cifar10 FOLDER [--work FOLDER] [--out results/solving-allcnn.json]

The network, the data, the split and the request are table 1's; the trainings are 12 epochs in place of 30, in bfloat16,
and few. Networks and outcomes are kept in the work folder as soon as they are there, and a run goes on where it was.
Errors are percent wrong; "own" is of test samples of the forgotten ones' class; "off" is how far margins of forgotten
samples are from the middle of retrained networks', on average; "felt" the largest relative change of a layer's outputs
on retained samples.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unweave
from benchmarks.provenance import provenance
from experiments.running.jobs import Job, run_jobs
from experiments.running.readout import read_out
from experiments.running.training_sets import FULL, RETRAINED_SEEDS, Training, retained
from experiments.running.work import Work
from experiments.settings import PAPER, Case, samples_of_class_0
from unweave.outcomes import margin

EPOCHS = 12
RETRAINED = 2
WAYS = {
    "walk, hard": unweave.ForgetConfig(),
    "walk, soft": unweave.ForgetConfig(protect="soft"),
    "solve, hard": unweave.ForgetConfig(way="solve", protect="hard"),
    "solve": unweave.ForgetConfig(way="solve"),
    "walk, loss of the paper": unweave.ForgetConfig(objective="paper"),
}

Made = tuple[Mapping[str, Any], Mapping[str, np.ndarray]]


def work_folder(folder: Path, cifar10: Path | None) -> Work:
    """Where networks are kept; table 1's setting with shorter trainings."""
    short = replace(PAPER.allcnn, name=f"allcnn-cifar10-{EPOCHS}-epochs", epochs=EPOCHS)
    return Work(folder, replace(PAPER, allcnn=short), torch.device("cpu"), cifar10)


def trained(work: Work, case: Case, training: Training, seed: int) -> Made:
    """A network, in bfloat16, and what it makes of the sets."""
    with torch.autocast("cpu", torch.bfloat16):
        net = work.network(case.setting, training, seed)
    errors, arrays = read_out(net, case, work.parts(case))
    return {"errors": errors, "seconds": work.seconds_to_train(case.setting, training, seed)}, arrays


def forgotten(work: Work, case: Case, way: str, seed: int) -> Made:
    """The original after one way to forget."""
    net, parts = work.network(case.setting, FULL, seed), work.parts(case)
    grams, fitted = _grams(work, case, seed)
    result = unweave.forget(net, parts.forget.batches(), grams, parts.val.batches(), WAYS[way])
    errors, arrays = read_out(result.model, case, parts)
    story = {
        "ok": result.ok,
        "stopped": result.stopped,
        "steps": result.final.epoch,
        "felt": max(result.shift.values()),
    }
    distances = [look.distance for look in result.history]
    return {"errors": errors, "seconds": result.seconds, **story, "distances": distances, "fit seconds": fitted}, arrays


def _grams(work: Work, case: Case, seed: int) -> tuple[unweave.LayerGrams, float | None]:
    """Kept in a file: the pass takes long on a CPU."""
    path = work.folder / f"grams-{seed}.safetensors"
    if path.exists():
        return unweave.LayerGrams.load(path), None
    grams, seconds = work.grams(case.setting, seed)
    grams.save(path)
    return grams, seconds


def jobs(work: Work, case: Case, seed: int) -> list[Job]:
    """The networks first, then each way."""
    settings = {"epochs": EPOCHS, "seed": seed}
    made = [Job(f"original {seed}", partial(trained, work, case, FULL, seed), settings)]
    for i in range(RETRAINED):
        other = RETRAINED_SEEDS + i
        made.append(Job(f"retrained {i}", partial(trained, work, case, retained(case), other), settings))
    return made + [Job(f"{way} {seed}", partial(forgotten, work, case, way, seed), settings) for way in WAYS]


def rows_of(done: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One for each network, with how far its margins are from the middle of retrained networks'."""
    margins = {name: _margins(one.arrays()) for name, one in done.items()}
    middle = np.median([m for name, m in margins.items() if name.startswith("retrained")], axis=0)
    found = []
    for name, one in done.items():
        off = float(np.abs(margins[name] - middle).mean())
        found.append({"network": name.rpartition(" ")[0], "seed": int(name.split()[-1]), "off": off, **one.result})
    return found


def _margins(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    logits, labels = (torch.from_numpy(arrays[name]) for name in ("forget", "forget_labels"))
    return margin(logits.double(), labels.long()).numpy()


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path, help="CIFAR-10 as unweave reproduce takes it; not needed once cached")
    parser.add_argument("--work", type=Path, default=Path("solving-allcnn"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/solving-allcnn.json"))
    options = parser.parse_args()
    began, work = time.perf_counter(), work_folder(options.work, options.cifar10)
    case = samples_of_class_0(work.scale)
    done = run_jobs(jobs(work, case, options.seed), options.work / "outcomes", made_by=provenance())
    rows = rows_of(done)
    for row in rows:
        errors = {key: round(value, 2) for key, value in row["errors"].items()}
        print(row["network"], row["seed"], errors, round(row["off"], 3), row.get("steps", ""), row.get("felt", ""))
    made = {"made_by": provenance() | {"seconds": time.perf_counter() - began}, "epochs of training": EPOCHS}
    options.out.write_text(json.dumps({**made, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
