"""How long fit() takes over a whole data set, against a plain forward pass and against unfolding every convolution.

    python -m benchmarks.fit_pass [--device cuda] [--samples 50000] [--batch 512] [--threads 2] [--out results/….json]

The paper's AllCNN on images of noise with CIFAR-10's shape, already on the device: what is timed is the pass, not the
loader. ``--unfold`` also times the pass with patches for every layer. On a GPU, ``waits`` counts the places at which
the host waited for it after the first batch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import unweave
from benchmarks.provenance import provenance
from experiments.models import allcnn
from unweave.rest import at_rest

fit_module = importlib.import_module("unweave.fit")
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def timed(work: Callable[[], Any], device: str, repeats: int) -> list[float]:
    taken = []
    for _ in range(repeats + 1):  # the first one warms up
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return taken[1:]


def forward(net: nn.Module, batches: Batches) -> None:
    with at_rest(net):
        for x, _ in batches:
            net(x)


def waits(net: nn.Module, batches: Batches) -> list[str]:
    """Where the host waited for the GPU between the second batch and the last."""
    found: list[str] = []

    def progress(stage: str, done: int, total: int | None) -> None:
        mode = "warn" if 1 <= done < len(batches) else "default"
        torch.cuda.set_sync_debug_mode(mode)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        unweave.fit(net, batches, progress=progress)
        torch.cuda.set_sync_debug_mode("default")
        found += [f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--unfold", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    net = allcnn().to(options.device)
    x = torch.randn(options.samples, 3, 32, 32, device=options.device)
    labels = torch.arange(options.samples, device=options.device) % 10
    batches = list(zip(x.split(options.batch), labels.split(options.batch), strict=True))
    record: dict[str, Any] = {"provenance": provenance(), "samples": options.samples, "batch": options.batch}
    record["forward"] = timed(lambda: forward(net, batches), options.device, options.repeats)
    record["fit"] = timed(lambda: unweave.fit(net, batches), options.device, options.repeats)
    if options.unfold:
        with mock.patch.object(fit_module, "is_structured", return_value=False):
            record["fit by patches"] = timed(lambda: unweave.fit(net, batches), options.device, 1)
    if options.device == "cuda":
        record["waits"] = waits(net, batches[:8])
        record["peak MiB"] = torch.cuda.max_memory_allocated() / 2**20
    for name in ("forward", "fit", "fit by patches"):
        if name in record:
            print(f"{name}: {statistics.median(record[name]):.3f} s")
    print(f"waits: {sorted(set(record.get('waits', [])))}")
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
