"""How fast fit and a request could be on a machine whose rates are known, and how far from that they are.

Operations and bytes are counted on the meta device, layer by layer, as fit() itself would see them
(``benchmarks.scale_model``); rates are those of one large product and one large copy on the machine
(``python -m benchmarks.scale_check``). Three floors, none of which any way of doing the same can pass:

    forward      FLOP of a forward pass in full float32 / rate of float32 products
    Grams        FLOP of the products that are left / rate of float64 products + bytes written and read / rate of memory
    request      the decompositions + epochs × three forward passes over the forget set, at the speed measured for
                 one in TF32 + two passes over the validation set

The floor of a request takes the decompositions and TF32 passes as they were measured: it says what remains to be
gained around them, not what another eigensolver would gain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.scale_model import NetCost, Rates, cost_of
from experiments.training.models import ResNet18, allcnn, smallvgg

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "allcnn": (allcnn, 32),
    "smallvgg": (smallvgg, 32),
    "resnet18": (ResNet18, 64),
}
"""How each is built, and the pixels of a side."""
BATCH = 2048
AIMS = {
    ("allcnn", "fit"): 1.0,
    ("allcnn", "request"): 0.2,
    ("smallvgg", "request"): 0.7,
    ("resnet18", "fit"): 3.0,
    ("resnet18", "request"): 3.0,
}
"""Seconds that were set as goals before anything was measured: some are below the floor."""


def cost(network: str, rates: Rates) -> NetCost:
    """A network's operations and bytes, on a GPU that has Triton."""
    build, side = NETWORKS[network]
    return cost_of(network, build, torch.empty(BATCH, 3, side, side, device="meta"), "float32", rates)


def floors(entry: dict[str, Any], network: str, rates: Rates) -> dict[str, tuple[float, float]]:
    """(floor, measured) in seconds for fit, its parts and a request of a side-by-side entry."""
    found, ways = cost(network, rates), entry["ways"]
    samples, forget = entry["training samples"], entry["forget samples"]
    forward, grams = samples * found.forward_seconds, samples * found.gram_seconds
    measured = {name: ways[name]["median"] for name in ways}
    a_sample = measured["forward pass, TF32"] / samples
    epochs = ways["request"]["epochs"]
    request = measured["eigendecompositions"] + a_sample * (3 * epochs * forget + 2 * entry["validation samples"])
    return {
        "forward pass": (forward, measured["forward pass"]),
        "Grams": (grams, measured["fit"] - measured["forward pass"]),
        "fit": (forward + grams, measured["fit"]),
        f"request of {epochs} epochs": (request, measured["request"]),
    }


def table(result: dict[str, Any], rates: Rates) -> list[str]:
    """For docs/speed.md: a line for each thing that has a floor."""
    head = ["", "", "aimed at, s", "floor, s", "measured, s", "times the floor"]
    lines = ["", f"| {' | '.join(head)} |", "|---|---|---:|---:|---:|---:|"]
    for network, entry in result["networks"].items():
        if network in NETWORKS:
            for name, (floor, measured) in floors(entry, network, rates).items():
                aim = AIMS.get((network, name.split(" ")[0]), "")
                lines.append(f"| {network} | {name} | {aim} | {floor:.3g} | {measured:.3g} | {measured / floor:.1f} |")
    return lines
