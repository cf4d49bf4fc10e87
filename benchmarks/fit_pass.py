"""How long fit() takes over a whole data set, against a plain forward pass and against unfolding every convolution.

    unweave bench fit --device cuda

The paper's AllCNN on images of noise with CIFAR-10's shape, already on the device: what is timed is the pass, not the
loader. On a GPU, ``waits`` are the places at which the host waited for it after the first batch.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import unweave
from benchmarks.options import Document, Options, document
from benchmarks.timing import summed_up, timed
from experiments.training.models import allcnn
from unweave.reading.rest import at_rest

Batches = list[tuple[torch.Tensor, torch.Tensor]]


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


def run(options: Options) -> Document:
    """Seconds of both passes, and of the pass with patches for every layer; on a GPU also the waits and the memory."""
    began = time.perf_counter()
    device, (samples, batch) = options.device, (8, 4) if options.quick else (50_000, 512)
    torch.manual_seed(options.seed)
    net = allcnn().to(device)
    x = torch.randn(samples, 3, 32, 32, device=device)
    labels = torch.arange(samples, device=device) % 10
    batches = list(zip(x.split(batch), labels.split(batch), strict=True))
    ways = {
        "forward": summed_up(timed(lambda: forward(net, batches), device, options.repeats)[1]),
        "fit": summed_up(timed(lambda: unweave.fit(net, batches), device, options.repeats)[1]),
    }
    more: dict[str, Any] = {}
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        unweave.fit(net, batches)
        more = {"waits": waits(net, batches[:8]), "peak MiB": torch.cuda.max_memory_allocated() / 2**20}
    with mock.patch("unweave.fitting.sums.quickest", return_value="patches"):
        ways["fit by patches"] = summed_up(timed(lambda: unweave.fit(net, batches), device, 1)[1])
    return document("fit", options, began, samples=samples, batch=batch, ways=ways, **more)


def table(result: Document) -> str:
    """For a screen."""
    lines = [f"{name}: {row['median']:.3f} s" for name, row in result["ways"].items()]
    return "\n".join([*lines, f"waits: {sorted(set(result.get('waits', [])))}"])
