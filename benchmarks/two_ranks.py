"""How much faster several gloo ranks fit than one: one thread each, the same batches, alternately in one job.

    python -m benchmarks.two_ranks [--ranks 2] [--samples 1024] [--batch 32] [--repeats 5] [--out results/….json]

The paper's AllCNN on images of noise with CIFAR-10's shape. In each repeat rank 0 fits all of it by itself while the
others wait, and then all ranks fit their shares, sum and return. Timed is the wall, from a barrier to the last rank's
return; beside it stands the processor time of the busiest rank, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import unweave
from benchmarks.provenance import provenance
from experiments.training.models import allcnn
from unweave import distributed


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the wall until the last rank is through, and of the busiest rank's processor."""
    dist.barrier()
    wall, own = time.perf_counter(), time.process_time()
    work()
    own = time.process_time() - own
    # Waiting in gloo takes no processor time, so this is what the rank itself has done.
    busiest = max(distributed.exchange("timing", own))
    return time.perf_counter() - wall, busiest


def rank_main(rank: int, options: argparse.Namespace, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=options.ranks)
    torch.manual_seed(0)
    net = allcnn()
    x, y = torch.randn(options.samples, 3, 32, 32), torch.arange(options.samples) % 10
    batches = list(zip(x.split(options.batch), y.split(options.batch), strict=True))

    def alone() -> None:
        if rank == 0:
            with distributed.alone():
                unweave.fit(net, batches)

    def together() -> None:
        unweave.fit(net, unweave.shard(batches))

    record: dict[str, Any] = {"one rank": [], "ranks": [], "load before": os.getloadavg()}
    for i in range(options.repeats + 1):
        one, all_of_them = timed(alone), timed(together)
        if i:  # the first one warms up
            record["one rank"].append(one)
            record["ranks"].append(all_of_them)
    record["load after"] = os.getloadavg()
    if rank == 0:
        finish(options, record)
    dist.barrier()
    dist.destroy_process_group()


def finish(options: argparse.Namespace, record: dict[str, Any]) -> None:
    pairs = list(zip(record["one rank"], record["ranks"], strict=True))
    record["ratio"] = [one[0] / several[0] for one, several in pairs]
    record["processor ratio"] = [one[1] / several[1] for one, several in pairs]
    record["median ratio"] = statistics.median(record["ratio"])
    record["median processor ratio"] = statistics.median(record["processor ratio"])
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    record = {"provenance": provenance(), "settings": settings, **record}
    one, several = (statistics.median(pair[0] for pair in record[key]) for key in ("one rank", "ranks"))
    print(
        f"one rank {one:.2f} s, {options.ranks} ranks {several:.2f} s: {record['median ratio']:.2f} times as fast "
        f"(median of {options.repeats}; from {min(record['ratio']):.2f} to {max(record['ratio']):.2f}); "
        f"by processor time {record['median processor ratio']:.2f}; load {record['load before'][0]:.1f}"
    )
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank_main, (options, str(Path(folder) / "meeting")), nprocs=options.ranks)


if __name__ == "__main__":
    main()
