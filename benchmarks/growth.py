"""How seconds and memory of fit and of a request grow with the samples, the classes, the network and the image.

    unweave bench growth --device cuda

One thing is changed at a time, from a network of 3×3 convolutions at random weights. A request's number of epochs
depends on the data, so here it runs a fixed number of them (stop="epochs", a fixed step, no validation set): what is
measured is the price of an epoch and of what comes before it, not how many are needed. ``space`` is the
eigendecompositions alone.
Memory is the peak beyond what was there before: by the allocator on a GPU; on a CPU by following every tensor, so that
what an operator holds inside itself is not seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

import unweave
from benchmarks.memory import peak_bytes
from benchmarks.options import Document, Options, document
from benchmarks.power import power_law
from benchmarks.timing import summed_up, timed

EPOCHS = 3
BATCH = {"cpu": 32, "cuda": 512}
"""Samples a batch of the pass: fewer than the fewest samples, so that only their number changes."""
STAGES = ("fit", "space", "request")


@dataclass(frozen=True)
class Size:
    """A problem, by its numbers."""

    training_samples: int
    forget_samples: int
    classes: int
    width: int
    """Channels of every convolution."""
    depth: int
    """How many convolutions."""
    image: int
    """Pixels of a side."""


BASE = Size(8192, 512, 10, 64, 4, 32)
AXES = {
    "forget_samples": (256, 512, 1024, 2048, 4096),
    "training_samples": (4096, 8192, 16384, 32768),
    "classes": (10, 50, 100, 200, 1000),
    "width": (32, 64, 128, 256),
    "depth": (2, 4, 8, 16),
    "image": (16, 32, 64, 128),
}
CPU_BASE = Size(512, 64, 10, 16, 3, 16)
CPU_AXES = {
    "forget_samples": (32, 64, 128, 256),
    "training_samples": (256, 512, 1024, 2048),
    "classes": (10, 50, 100, 200),
    "width": (8, 16, 32, 64),
    "depth": (2, 4, 8),
    "image": (8, 16, 32),
}
QUICK_BASE = Size(96, 16, 4, 8, 2, 8)
QUICK_AXES = {
    "forget_samples": (8, 16, 32),
    "training_samples": (48, 96, 192),
    "classes": (4, 16),
    "width": (4, 8, 16),
    "depth": (1, 2, 4),
    "image": (6, 12),
}


def network(size: Size) -> nn.Module:
    """``depth`` convolutions of ``width`` channels with batch norm, mean over the places, one linear layer."""
    layers: list[nn.Module] = []
    channels = 3
    for _ in range(size.depth):
        layers += [nn.Conv2d(channels, size.width, 3, padding=1, bias=False), nn.BatchNorm2d(size.width), nn.ReLU()]
        channels = size.width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, size.classes))


def works(size: Size, device: str) -> dict[str, Callable[[], Any]]:
    """What is to be measured of a problem; everything they need is made."""
    with torch.random.fork_rng(devices=[device] if device != "cpu" else []):
        torch.manual_seed(0)
        net = network(size).to(device).eval()
        x = torch.randn(size.training_samples, 3, size.image, size.image, device=device)
    y = torch.arange(size.training_samples, device=device) % size.classes
    batch = BATCH[torch.device(device).type]
    train = list(zip(x.split(batch), y.split(batch), strict=True))
    forget = [(x[: size.forget_samples], y[: size.forget_samples])]
    config = unweave.ForgetConfig(objective="paper", stop="epochs", epochs=EPOCHS, lr=1e-4, max_damage=None)
    grams = unweave.fit(net, train).to(device)
    return {
        "fit": lambda: unweave.fit(net, train),
        "space": lambda: unweave.CoreSpace.from_grams(grams, config.gamma),
        "request": lambda: unweave.forget(net, forget, grams, config=config),
    }


def measure(sizes: list[Size], device: str, repeats: int) -> list[dict[str, Any]]:
    """Seconds and bytes of each stage for each size.

    All sizes take turns, so that a machine that is slower for a while is so for all of them.
    """
    problems = [works(size, device) for size in sizes]
    points: list[dict[str, Any]] = []
    for problem in problems:  # the first time loads kernels, and tells the memory
        points.append({stage: {"bytes": peak_bytes(work, device)} for stage, work in problem.items()})
    taken: list[dict[str, list[float]]] = [{stage: [] for stage in problem} for problem in problems]
    for _ in range(repeats):
        for problem, seconds in zip(problems, taken, strict=True):
            for stage, work in problem.items():
                seconds[stage] += timed(work, device, 1, warm=0)[1]
    for point, seconds in zip(points, taken, strict=True):
        for stage, each in seconds.items():
            point[stage]["seconds"] = summed_up(each)
    return points


def run(options: Options) -> Document:
    """For each axis its points, and the exponents of growth over all points and between the last two."""
    began = time.perf_counter()
    base, axes = (CPU_BASE, CPU_AXES) if options.device == "cpu" else (BASE, AXES)
    if options.quick:
        base, axes = QUICK_BASE, QUICK_AXES
    settings = {"base": asdict(base), "epochs of a request": EPOCHS, "stop": "epochs"}
    grown: dict[str, Any] = {}

    def so_far() -> Document:
        return document("growth", options, began, problem=settings, axes=grown)

    for axis, values in axes.items():
        sizes = [replace(base, **{axis: value}) for value in values]
        if axis == "forget_samples":  # something must be retained
            sizes = [replace(size, training_samples=max(size.training_samples, 2 * max(values))) for size in sizes]
        found = measure(sizes, options.device, options.repeats)
        points = [{"value": value, **point} for value, point in zip(values, found, strict=True)]
        for point in points:
            print(f"{axis} {point['value']}: {_seconds(point)}", flush=True)
        grown[axis] = {"points": points, "exponents": exponents(points)}
        options.keep(so_far())
    return so_far()


def exponents(points: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of seconds and bytes for each stage; y = factor · value^exponent."""
    found: dict[str, dict[str, Any]] = {}
    values = [point["value"] for point in points]
    for stage in STAGES:
        series = {
            "seconds": [point[stage]["seconds"]["median"] for point in points],
            "bytes": [max(1, point[stage]["bytes"]) for point in points],
        }
        found[stage] = {
            name: {"all": power_law(values, ys).as_dict(), "last two": power_law(values[-2:], ys[-2:]).as_dict()}
            for name, ys in series.items()
        }
    return found


def _seconds(point: dict[str, Any]) -> str:
    return ", ".join(f"{stage} {1e3 * point[stage]['seconds']['median']:.1f} ms" for stage in STAGES)


def table(result: Document) -> str:
    """For a screen: exponents over all points, seconds and bytes."""
    lines = ["grows as a power of    " + "".join(f"{stage + ' s':>11}{stage + ' B':>11}" for stage in STAGES)]
    for axis, entry in result["axes"].items():
        cells = (
            f"{entry['exponents'][stage][what]['all']['exponent']:>11.2f}"
            for stage in STAGES
            for what in ("seconds", "bytes")
        )
        lines.append(f"{axis.replace('_', ' '):<23}" + "".join(cells))
    return "\n".join(lines)
