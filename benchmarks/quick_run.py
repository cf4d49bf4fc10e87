"""How long ``unweave reproduce all --quick`` takes, from the start of the process to its end, and what takes it.

    python -m benchmarks.quick_run [--out results/bench-reproduce.json]

The command is run once, in an empty folder on the CPU, and the run is added to those that the file has. Every job keeps
its own seconds. Experiments share jobs and networks, so a job counts for the first experiment that asks for it, and a
network for the first job that needs it. The rest of the whole is the start of Python, the attacks and the documents.
Other work on the machine lengthens the wall's seconds more than the processor's; both are kept, and the load before and
after.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.provenance import provenance
from experiments.reproduce import EXPERIMENTS
from experiments.running.work import Work
from experiments.settings import QUICK, Scale
from unweave.files import write_atomically

WORDS = ("reproduce", "all", "--quick", "--device", "cpu")


def measured(folder: Path) -> dict[str, Any]:
    """Run the command in an empty folder and say what took how long.

    Raises:
        SystemExit: the command failed, with its own code.
    """
    load = os.getloadavg()
    began, spent = time.perf_counter(), processor_seconds()
    done = subprocess.run([sys.executable, "-m", "unweave", *WORDS, "--out", str(folder)], check=False)
    seconds, spent = time.perf_counter() - began, processor_seconds() - spent
    if done.returncode:
        raise SystemExit(done.returncode)
    found = by_experiment(folder, QUICK)
    return {
        "provenance": provenance(),
        "command": " ".join(["unweave", *WORDS]),
        "load before": load,
        "load after": os.getloadavg(),
        "seconds": seconds,
        "processor seconds": spent,
        "experiments": found,
        "rest": seconds - sum(one["seconds"] for one in found.values()),
        "documents": sorted(path.stem for path in folder.glob("*.json")),
    }


def processor_seconds() -> float:
    """Of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_experiment(folder: Path, scale: Scale) -> dict[str, dict[str, float]]:
    """Name of an experiment → how many jobs it was the first to ask for, and their seconds.

    Raises:
        FileNotFoundError: a job was not done.
    """
    work = Work(folder, scale, torch.device("cpu"))
    counted, found = set[str](), dict[str, dict[str, float]]()
    for name, path in EXPERIMENTS.items():
        new = {job.name for job in importlib.import_module(path).jobs(work)} - counted
        counted |= new
        kept = [json.loads((work.rows / f"{job}.json").read_text("utf-8")) for job in new]
        found[name] = {"jobs": len(new), "seconds": sum(one["seconds"] for one in kept)}
    return found


def with_run(place: Path, record: dict[str, Any]) -> dict[str, Any]:
    """What the file has, and one run more."""
    runs = json.loads(place.read_text("utf-8"))["runs"] if place.exists() else []
    return {"runs": [*runs, record]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        record = measured(Path(folder))
    if out:
        write_atomically(out, (json.dumps(with_run(out, record), indent=1) + "\n").encode())
    shown = ", ".join(f"{name} {one['seconds']:.0f} s" for name, one in record["experiments"].items())
    print(f"{record['seconds']:.0f} s, {record['processor seconds']:.0f} s of processors; {shown}")


if __name__ == "__main__":
    main()
