"""The model of cost against one machine: the same networks, timed, with the machine's own rates measured first.

python -m benchmarks.scale_check --out results/scale-check-cuda.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.provenance import provenance
from benchmarks.scale_model import Rates, cost_of
from benchmarks.scale_nets import Decoder, VisionTransformer, resnet50
from unweave.fit import stream
from unweave.grams import Manner
from unweave.layers import find_layers
from unweave.reading.rest import at_rest, fingerprint

REPEATS = {"cpu": 1, "cuda": 3}
"""Of every pass, the least of which counts: what is wanted is a difference of two, and a GPU's host is not still."""


def timed(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    # One thread's own processor time: other programs on the machine do not lengthen it.
    clock = time.perf_counter if device == "cuda" else time.process_time
    start = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def rates_here(device: str) -> Rates:
    """What this machine does: large products, and a copy there and back."""

    def products(dtype: torch.dtype) -> float:
        n = 8192 if device == "cuda" else 1024
        a = torch.randn(n, n, device=device).to(dtype)
        return 2 * n**3 / min(timed(lambda: a @ a, device) for _ in range(4))

    numbers = torch.randn(1 << (28 if device == "cuda" else 25), dtype=torch.float64, device=device)
    there = torch.empty_like(numbers)
    values = {str(t).removeprefix("torch."): products(t) for t in (torch.float64, torch.float32, torch.bfloat16)}
    values["memory"] = 16 * len(numbers) / min(timed(lambda: there.copy_(numbers), device) for _ in range(4))
    return {name: {"value": value, "measured": "here"} for name, value in values.items()}


def fit_seconds(build: Callable[[], nn.Module], inputs: Tensor, batches: int) -> dict[str, float]:
    """Seconds of the pass of fit() and of a plain forward pass for each sample, less what any pass costs.

    Fetching the Grams is timed by itself: it takes as long however many samples there were.
    """
    device = inputs.device.type
    torch.manual_seed(0)
    with torch.device(device):
        net = build()
    net = net.to(inputs.dtype) if inputs.is_floating_point() else net.bfloat16()
    names = [n for n, layer in find_layers(net, None).items() if layer.kind.name != "Embedding"]
    labels = torch.arange(len(inputs), device=device)

    manner, known = Manner("", "layer", "float32"), fingerprint(net)  # hashed once: it takes longer than a short pass

    def one_fit(count: int) -> float:
        batches = [(inputs, labels)] * count
        return timed(lambda: stream(net, batches, "training", names, manner, made_from=known), device)

    def fit(count: int) -> float:
        return min(one_fit(count) for _ in range(REPEATS[device]))

    def forward(count: int) -> None:
        with at_rest(net):
            for _ in range(count):
                net(inputs)

    one_fit(2)
    short, long = fit(2), fit(2 + batches)
    walk = timed(lambda: forward(batches), device)
    grams, _ = stream(net, [(inputs, labels)], "training", names, manner, made_from=known)
    fetch = timed(lambda: grams.to("cpu"), device)
    each = batches * len(inputs)
    return {"fit s": (long - short) / each, "forward s": walk / each, "two batches s": short, "fetching s": fetch}


def cases(device: str) -> list[tuple[str, Callable[[], nn.Module], Tensor, int, str]]:
    """Name, network, a batch, how many of them, and the precision; a CPU gets little of each."""
    pictures = torch.randn(256 if device == "cuda" else 8, 3, 224, 224, device=device)
    tokens = (4, 2048) if device == "cuda" else (2, 256)
    blocks, some = 2 if device == "cuda" else 1, 64 if device == "cuda" else 2
    ids = torch.randint(32_000, tokens, device=device)
    return [
        ("ResNet-50", resnet50, pictures, 16 if device == "cuda" else 2, "float32"),
        ("ViT-L/16", VisionTransformer, pictures[:some], 16 if device == "cuda" else 1, "float32"),
        (f"decoder, {blocks} of 32 blocks", lambda: Decoder(blocks), ids, 32 if device == "cuda" else 2, "bfloat16"),
    ]


def measure() -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    rates = rates_here(device)
    found: dict[str, Any] = {"device": device, "rates": rates, "networks": {}}
    for name, build, inputs, batches, precision in cases(device):
        model = cost_of(name, build, inputs.to("meta"), precision, rates, device)
        got = fit_seconds(build, inputs, batches)
        got |= {"Gram s": got["fit s"] - got["forward s"], "model Gram s": model.gram_seconds}
        got |= {"model forward s": model.forward_seconds}
        found["networks"][name] = got
        print(
            f"{name}: Grams {1e3 * got['Gram s']:.2f} ms a sample, the model says {1e3 * model.gram_seconds:.2f}; "
            f"forward {1e3 * got['forward s']:.2f}, the model says {1e3 * model.forward_seconds:.2f}; "
            f"fetching the Grams {got['fetching s']:.2f} s",
            flush=True,
        )
    found["eigh s"] = {}
    for d in (1024, 1728, 2048) if device == "cpu" else (1024, 2048, 4096, 4608, 8192, 11008):
        gram = torch.randn(d, d, dtype=torch.float64, device=device)
        gram = gram @ gram.mT
        found["eigh s"][d] = min(timed(partial(torch.linalg.eigh, gram), device) for _ in range(2))
    print("eigh", found["eigh s"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = {"provenance": provenance(), **measure()}
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
