"""What fit() and the eigendecompositions cost on many GPUs: a model of cost (``benchmarks.scale_check`` checks it).

    python -m benchmarks.scale_model                                    the tables of docs/scale.md
    python -m benchmarks.scale_model --out results/scale-model.json     and the numbers behind them

A network is built on the meta device and run once, so that its layers, rows and products are those that fit() itself
would see; Grams are priced as :mod:`unweave.arithmetic.routes` prices them. Nothing that is printed was timed: it is
products divided by rates. RATES says which rates were measured and which are assumed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.provenance import provenance
from benchmarks.scale_nets import Decoder, VisionTransformer, resnet50
from unweave import distributed
from unweave.arithmetic import fused, routes
from unweave.arithmetic.patches import Patches
from unweave.arithmetic.products import block_of
from unweave.fitting.taps import tapped
from unweave.layers import find_layers
from unweave.reading.rest import at_rest


class Rate(TypedDict):
    """So much a second; ``measured`` says on what, and None that it is assumed."""

    value: float
    unit: NotRequired[str]
    measured: str | None


Rates = dict[str, Rate]

RATES: Rates = {
    "float64": {"value": 54e12, "unit": "FLOP/s", "measured": "H200, one large GEMM"},
    "float32": {"value": 49e12, "unit": "FLOP/s", "measured": "H200, one large GEMM without TF32"},
    "bfloat16": {"value": 500e12, "unit": "FLOP/s", "measured": None},
    "memory": {"value": 4.0e12, "unit": "byte/s", "measured": None},
    "link inside a node": {"value": 360e9, "unit": "byte/s a GPU", "measured": None},
    "link between nodes": {"value": 40e9, "unit": "byte/s a GPU", "measured": None},
}
"""An H200's. What was not measured is assumed: about 60 % of the peak of bfloat16, 80 % of that of memory and links."""

EIGH = {1728: 0.021, 4608: 0.15, 8192: 0.55}
"""Seconds of torch.linalg.eigh in float64 on an H200, measured. Between them a power of d; beyond them d³, below d²."""

NODE = 8
"""GPUs that share the faster link."""


def eigh_model(d: int) -> float:
    """Seconds for one decomposition [d, d]."""
    known = sorted(EIGH)
    if d <= known[0]:
        return EIGH[known[0]] * (d / known[0]) ** 2
    if d >= known[-1]:
        return EIGH[known[-1]] * (d / known[-1]) ** 3
    low, high = next((a, b) for a, b in itertools.pairwise(known) if a <= d <= b)
    power = math.log(EIGH[high] / EIGH[low]) / math.log(high / low)
    return EIGH[low] * math.pow(d / low, power)


@dataclass(frozen=True)
class LayerCost:
    """One layer: its Gram [groups, d, d], and the seconds that a sample's rows take on one GPU."""

    name: str
    groups: int
    d: int
    rows: int
    products: float
    gram_seconds: float

    @property
    def gram_bytes(self) -> int:
        return 8 * self.groups * self.d**2

    @property
    def triangle_bytes(self) -> int:
        return 4 * self.groups * self.d * (self.d + distributed.STRIP)


@dataclass(frozen=True)
class NetCost:
    """A network: forward FLOP and seconds a sample, and its layers."""

    name: str
    parameters: int
    forward_flop: float
    forward_seconds: float
    layers: list[LayerCost]

    @property
    def gram_seconds(self) -> float:
        return sum(layer.gram_seconds for layer in self.layers)

    @property
    def gram_bytes(self) -> int:
        return sum(layer.gram_bytes for layer in self.layers)

    @property
    def triangle_bytes(self) -> int:
        return sum(layer.triangle_bytes for layer in self.layers)


class Meter:
    """A sink that prices rows in place of adding them up."""

    def __init__(self, device: str) -> None:
        self.device, self.rows, self.work = device, 0, routes.Work()

    def add(self, rows: Any) -> None:
        if isinstance(rows, Patches):
            self.rows += rows.count
            self.work += routes.work_of(routes.quickest(rows, self.device), rows, self.device)
            return
        for chunk in [rows] if isinstance(rows, Tensor) else rows:
            chunk = chunk if chunk.dim() == 3 else chunk[None]
            groups, n, d = chunk.shape
            half = (d + block_of(d)) / 2
            self.rows += n
            # The rows as float64, and the Gram itself, which every batch reads and writes.
            self.work += routes.Work(groups * n * d * half, moved=groups * d * (n + half))


def seconds_of(work: routes.Work, rates: Rates) -> float:
    """Products and transforms at the rate of float64 products, numbers moved (there and back) at that of memory."""
    products = 2 * (work.products + work.transforms) / rates["float64"]["value"]
    return products + 16 * work.moved / rates["memory"]["value"]


def cost_of(
    name: str,
    build: Callable[[], nn.Module],
    inputs: Tensor,
    precision: str,
    rates: Rates = RATES,
    device: str = "cuda",
) -> NetCost:
    """Price a network by one forward pass of a batch on the meta device. Embeddings are left out: their d is 1."""
    with torch.device("meta"):
        net = build()
    found = {n: layer for n, layer in find_layers(net, None).items() if layer.kind.name != "Embedding"}
    meters = {n: Meter(device) for n in found}
    sinks = {owner: meters[n] for n, layer in found.items() for owner in layer.owners}
    with at_rest(net), FlopCounterMode(display=False) as flop:
        net(inputs)
    has_triton = mock.patch.object(fused, "has_triton", return_value=True)  # as PyTorch's builds for GPUs have
    with at_rest(net), tapped(net, sinks), has_triton:  # type: ignore[arg-type]
        net(inputs)
    count = len(inputs)
    layers = [
        LayerCost(
            n, layer.groups, layer.d, meters[n].rows // count, meters[n].work.products / count,
            seconds_of(meters[n].work, rates) / count,
        )
        for n, layer in found.items()
    ]  # fmt: skip
    forward = flop.get_total_flops() / count
    parameters = sum(p.numel() for p in net.parameters())
    return NetCost(name, parameters, forward, forward / rates[precision]["value"], layers)


def networks() -> list[tuple[NetCost, int, str]]:
    """Each with its number of samples, and what a sample is."""
    pictures = torch.empty(256, 3, 224, 224, device="meta")
    ids = torch.zeros(4, 2048, dtype=torch.long, device="meta")
    return [
        (cost_of("ResNet-50", resnet50, pictures, "float32"), 1_281_167, "ImageNet-1k, float32"),
        (cost_of("ViT-L/16", VisionTransformer, pictures[:64], "float32"), 1_281_167, "ImageNet-1k, float32"),
        (cost_of("decoder of 7 billion", Decoder, ids, "bfloat16"), 488_281, "10⁹ tokens in 2,048s, bfloat16"),
    ]


@dataclass(frozen=True)
class Plan:
    """A fit and the decompositions after it on so many GPUs, in seconds and bytes a GPU."""

    gpus: int
    forward: float
    grams: float
    reduction: float
    eigh: float
    broadcast: float
    sent: float

    @property
    def total(self) -> float:
        return self.forward + self.grams + self.reduction + self.eigh + self.broadcast


def plan(net: NetCost, samples: int, gpus: int) -> Plan:
    """Samples divide evenly; one ring all-reduce of triangles; layers dealt by d³; every basis sent to every rank."""
    link = RATES["link inside a node" if gpus <= NODE else "link between nodes"]["value"]
    around = (gpus - 1) / gpus
    with mock.patch.object(distributed, "ranks", return_value=gpus):
        owner = distributed.divided({layer.name: layer.groups * layer.d**3 for layer in net.layers})
    load = [0.0] * gpus
    for layer in net.layers:
        load[owner[layer.name]] += layer.groups * eigh_model(layer.d)
    sent = 2 * around * net.triangle_bytes
    share = -(-samples // gpus)
    return Plan(
        gpus,
        share * net.forward_seconds,
        share * net.gram_seconds,
        sent / link,
        max(load),
        around * net.gram_bytes / link,
        sent + around * net.gram_bytes,
    )


def report() -> dict[str, Any]:
    record: dict[str, Any] = {"rates": RATES, "eigh s": EIGH, "networks": []}
    for net, samples, words in networks():
        widest = max(net.layers, key=lambda layer: layer.d)
        print(
            f"\n{net.name}: {words}; {net.parameters / 1e6:,.1f} M parameters, {len(net.layers)} layers, widest d = "
            f"{widest.d}\nforward {net.forward_flop / 1e9:,.1f} GFLOP and {1e3 * net.forward_seconds:.3f} ms a sample, "
            f"Grams {1e3 * net.gram_seconds:.3f} ms; Grams {net.gram_bytes / 2**30:.2f} GiB, triangles "
            f"{net.triangle_bytes / 2**30:.2f} GiB"
        )
        print("| GPUs | forward s | Grams s | reduction s | eigh s | bases s | all s | sent GiB a GPU |")
        plans = [plan(net, samples, gpus) for gpus in (1, 8, 64, 256, 1024)]
        for p in plans:
            numbers = (p.forward, p.grams, p.reduction, p.eigh, p.broadcast, p.total)
            print(f"| {p.gpus:,} | {' | '.join(f'{x:,.2f}' for x in numbers)} | {p.sent / 2**30:.2f} |")
        record["networks"].append(
            {"name": net.name, "samples": samples, "words": words, "forward FLOP": net.forward_flop,
             "forward s": net.forward_seconds, "Gram s": net.gram_seconds, "Gram bytes": net.gram_bytes,
             "triangle bytes": net.triangle_bytes, "plans": [asdict(p) | {"total": p.total} for p in plans]}
        )  # fmt: skip
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = {"provenance": provenance(), **report()}
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
