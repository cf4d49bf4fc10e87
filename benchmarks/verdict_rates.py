"""How often the verdict is right: made-up worlds with a known truth, before the judge.

    python -m benchmarks.verdict_rates [--worlds 100] [--out results/bench-verdict.json]

300 forgotten samples and 1,500 strangers, T0, the default limits (``tests/worlds.py`` makes them). One world is a
network that has forgotten, one stands at the limit (a true AUC of 0.60), and in two a tenth and a fifth of the samples
were left as they were.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import provenance

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from worlds import World, with_margins

from unweave.audit import Ensemble, Evidence, examine

MEMORY = 3.0
"""What the original gained on the forget set; margins vary by about 2."""
AT_THE_LIMIT = 0.74
"""What is left of it where the AUC is 0.60."""
WORLDS = {"forgotten": 0.0, "at the limit": AT_THE_LIMIT, "a tenth left": 0.1, "a fifth left": 0.2}


def one(kind: str, seed: int) -> tuple[str, float, float]:
    """The verdict, the margin attack's AUC, and the share of forgotten samples among the surest percent."""
    world = World(seed=seed)
    unlearned = world.answers(memory=AT_THE_LIMIT if kind == "at the limit" else 0.0)
    if kind.endswith("left"):
        labels = world.labels["forget"]
        left = np.where(world.rng.random(len(labels)) < WORLDS[kind], MEMORY, 0.0)
        margins = world.ease["forget"] + left + world.rng.normal(0, 0.5, (1, len(labels)))
        forget = Ensemble.of(with_margins(margins, labels, world.rng), labels)
        unlearned = dataclasses.replace(unlearned, forget=forget)
    audit = examine(Evidence(unlearned, world.answers(memory=MEMORY)), seed=seed)
    found = audit.attacks[0].unlearned
    surest = found.tpr_at(0.01)
    return audit.verdict.outcome, found.auc.value, float("nan") if surest is None else surest.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/bench-verdict.json"))
    options = parser.parse_args()
    record: dict[str, Any] = {"made_by": provenance(), "worlds": options.worlds}
    with ProcessPoolExecutor(2) as pool:
        for kind in WORLDS:
            found = list(pool.map(one, [kind] * options.worlds, range(options.worlds)))
            record[kind] = {
                "verdicts": dict(Counter(outcome for outcome, _, _ in found)),
                "mean AUC": statistics.mean(auc for _, auc, _ in found),
                "mean share among the surest percent": statistics.mean(share for _, _, share in found),
            }
            print(kind, record[kind], flush=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
