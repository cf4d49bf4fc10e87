"""The audit with many models, on synthetic logits: how long it takes and how much memory.

    python -m benchmarks.audit_ensemble [--models 50] [--unlearned 5] [--samples 1000] [--classes 200]

Prints a line and writes every number with what it was made by. The limits are those the audit was built for: 60 seconds
on two cores and 2 GiB for 50 + 50 + 5 models on 1,000 samples of 200 classes. Everything runs on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from benchmarks.provenance import provenance
from unweave.audit.ensemble import audit_ensemble, shadow_classifier, u_lira
from unweave.audit.klom import klom
from unweave.audit.outputs import Ensemble

LIMITS = {"seconds": 60.0, "peak_gib": 2.0}
MEMORY = {"full": 1.0, "unlearned": 0.2, "retrained": 0.0}
"""How much a sample's own logit is raised, in units of its spread over models."""


class Given(TypedDict):
    """What an audit with many models takes."""

    full: Ensemble
    retrained: Ensemble
    unlearned: Ensemble


def ensembles(models: int, unlearned: int, samples: int, classes: int) -> Given:
    """Models that scatter around one opinion a sample, the label's logit raised by what a kind remembers."""
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=samples)
    rows = np.arange(samples)
    opinion = rng.normal(size=(samples, classes))
    opinion[rows, labels] += rng.normal(6, 2, samples)

    def of(name: str, count: int) -> Ensemble:
        logits = opinion + rng.normal(size=(count, samples, classes))
        logits[:, rows, labels] += MEMORY[name]
        return Ensemble.of(logits, labels, name)

    return {
        "full": of("full", models),
        "retrained": of("retrained", models),
        "unlearned": of("unlearned", unlearned),
    }


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return call(), time.perf_counter() - began


def peak_gib() -> float:
    """The largest this process has ever been; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("models", 50), ("unlearned", 5), ("samples", 1000), ("classes", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, default=Path("results/bench-audit.json"))
    arguments = parser.parse_args()
    size = {name: getattr(arguments, name) for name in ("models", "unlearned", "samples", "classes")}
    given = ensembles(**size)
    before = peak_gib()
    load, worked = os.getloadavg()[0], time.process_time()
    (attacks, distances), seconds = timed(lambda: audit_ensemble(**given))
    peak, worked = peak_gib(), time.process_time() - worked
    parts = {
        "xgboost": timed(lambda: shadow_classifier(**given))[1],
        "u-lira": timed(lambda: u_lira(**given))[1],
        "klom": timed(lambda: klom(**given))[1],
    }
    aucs = {
        found.attack.name: {
            name: separation.auc.document()
            for name in ("unlearned", "original", "retrained")
            if (separation := getattr(found, name)) is not None
        }
        for found in attacks
    }
    chosen = getattr(attacks[0].attack, "settings", None)
    ok = seconds <= LIMITS["seconds"] and peak <= LIMITS["peak_gib"]
    print(
        f"{size}: {seconds:.1f} s, {worked:.1f} s of processor, load before {load:.1f} "
        f"({', '.join(f'{name} {value:.1f}' for name, value in parts.items())}), "
        f"peak {peak:.2f} GiB ({before:.2f} before): {'within' if ok else 'OVER'} the limits {LIMITS}"
    )
    document = {
        "made_by": provenance() | {"seconds": seconds},
        "size": size,
        "limits": LIMITS,
        "within_limits": ok,
        "seconds": {"whole": seconds, "processor": worked, **parts},
        "load before": load,
        "peak_gib": {"before": before, "whole": peak},
        "auc": aucs,
        "xgboost settings": chosen,
        "distances": [found.document() for found in distances],
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
