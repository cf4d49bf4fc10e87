"""The ways to a convolution's Gram, side by side: through its patches, correlations of its maps, or all their pixels.

    unweave bench gram [--device cuda]

For each geometry: seconds of each (median and spread over interleaved repeats; pixels only of maps that are small
enough for them), patches to correlations as a ratio, the memory each takes beyond the maps and what it sums in, and
the largest error against a float64 product of all patches, relative to the largest entry. With one thread the seconds
are the processor's own, which other programs do not lengthen. Then the prices of :mod:`unweave.arithmetic.routes`,
fitted to these seconds, and what the rule chose.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.memory import peak_bytes
from benchmarks.options import Document, Options, document
from benchmarks.power import power_law
from unweave.arithmetic import routes
from unweave.arithmetic.patches import Patches
from unweave.arithmetic.pixels import PixelSums
from unweave.arithmetic.structured import PatchSums
from unweave.fitting.sums import GramSum
from unweave.layers import find_layers

# samples, channels, side, kernel, stride, dilation, groups
SMALL = [
    *((n, c, side, 3, 1, 1, 1) for c, side in ((128, 32), (128, 16), (128, 8), (128, 4)) for n in (8, 64)),
    *((n, c, side, 3, 1, 1, 1) for c, side in ((256, 16), (256, 8), (256, 4), (512, 8), (512, 4)) for n in (8, 32)),
    *((n, c, 16, 3, 1, 1, 1) for c in (3, 16, 32, 64) for n in (8, 64)),
    *((n, c, 16, 3, 2, 1, 1) for c in (16, 64, 128, 256) for n in (8, 64)),
    *((8, c, 8, 3, 2, 1, 1) for c in (64, 128, 256)),
    (1, 128, 16, 3, 1, 1, 1),
    (1, 256, 4, 3, 1, 1, 1),
    (64, 128, 2, 3, 1, 1, 1),
    (8, 64, 16, 3, 1, 2, 1),
    (32, 128, 16, 3, 1, 1, 4),
    (32, 128, 16, 3, 1, 1, 32),
    (32, 128, 16, 1, 1, 1, 1),
    (32, 128, 16, 1, 2, 1, 1),
    (8, 64, 16, 5, 1, 1, 1),
    (8, 128, 14, 7, 1, 1, 1),
    (8, 3, 32, 7, 2, 1, 1),
]
LARGE = [
    *((n, 96, 32, 3, 1, 1, 1) for n in (64, 512)),
    *((512, 96, 32, 3, 2, 1, 1), (512, 192, 16, 3, 1, 1, 1), (512, 192, 16, 3, 2, 1, 1), (512, 192, 8, 3, 1, 1, 1)),
    *((512, 3, 32, 3, 1, 1, 1), (512, 192, 8, 1, 1, 1, 1)),
    *((256, c, side, 3, 1, 1, 1) for c, side in ((64, 56), (128, 28), (256, 14), (512, 7), (32, 32), (16, 32))),
    *((256, c, side, 3, 2, 1, 1) for c, side in ((64, 56), (128, 28), (256, 14))),
    *((8, 128, 16, 3, 1, 1, 1), (8, 128, 8, 3, 1, 1, 1), (1, 128, 16, 3, 1, 1, 1), (8, 128, 16, 3, 2, 1, 1)),
    *((2048, 512, 2, 3, 1, 1, 1), (2048, 256, 4, 3, 1, 1, 1), (2048, 256, 4, 3, 2, 1, 1), (64, 512, 2, 3, 1, 1, 1)),
    *((256, 128, 16, 3, 1, 1, 4), (256, 128, 16, 3, 1, 1, 32), (64, 64, 16, 5, 1, 1, 1), (256, 3, 224, 7, 2, 1, 1)),
]


QUICK = [(4, 8, 8, 3, 1, 1, 1), (4, 8, 8, 3, 2, 1, 1), (4, 16, 8, 1, 1, 1, 1)]
HEADER = "   N    C side  k  s  d   g   patches  correl.  ratio    pixels  MiB: pat.  corr.   error  chosen"


def conv_of(channels: int, kernel: int, stride: int, dilation: int, groups: int) -> nn.Conv2d:
    padding = dilation * (kernel // 2)
    return nn.Conv2d(channels, groups, kernel, stride, padding, dilation, groups=groups, bias=False)


def by_patches(conv: nn.Conv2d, patches: Patches) -> Callable[[], GramSum]:
    """Through the package's own loop; a plain generator hides what the patches could do otherwise."""
    total = GramSum(find_layers(conv)[""])

    def once() -> GramSum:
        total.add(chunk for chunk in patches)
        return total

    return once


def by_correlations(patches: Patches) -> Callable[[], PatchSums]:
    total = PatchSums(patches.axes, patches.groups, patches.maps.shape[2], patches.maps.device)

    def once() -> PatchSums:
        total.add(patches)
        return total

    return once


def by_pixels(patches: Patches) -> Callable[[], PixelSums]:
    groups, channels, *sizes = patches.maps.shape[1:]
    total = PixelSums(patches.axes, tuple(sizes), groups, channels, patches.maps.device)

    def once() -> PixelSums:
        total.add(patches)
        return total

    return once


def seconds(work: Callable[[], Any], device: str) -> float:
    if device == "cpu":
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        work()
        return clock() - start
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start_event.record()
    work()
    end_event.record()
    torch.cuda.synchronize()
    milliseconds: float = start_event.elapsed_time(end_event)
    return milliseconds / 1000


def error(conv: nn.Conv2d, patches: Patches) -> dict[str, float]:
    """Of the ways on the first samples, against one product of all patches in float64."""
    few = Patches(patches.maps[:8], patches.axes)
    rows = torch.cat([chunk.double() for chunk in few], 1)
    exact = rows.mT @ rows
    ways = {"patches": by_patches(conv, few)().result().cpu(), "correlations": by_correlations(few)().gram().cpu()}
    if routes.has_few_pixels(few):
        ways["pixels"] = by_pixels(few)().gram().cpu()
    return {way: ((gram - exact.cpu()).abs().max() / exact.abs().max().cpu()).item() for way, gram in ways.items()}


def measure(case: tuple[int, ...], device: str, repeats: int) -> dict[str, Any]:
    samples, channels, side, kernel, stride, dilation, groups = case
    conv = conv_of(channels, kernel, stride, dilation, groups).to(device)
    x = torch.randn(samples, channels, side, side, generator=torch.Generator().manual_seed(0)).relu().to(device)
    patches = Patches.of(conv, x)
    ways: dict[str, Callable[[], Any]] = {
        "patches": by_patches(conv, patches),
        "correlations": by_correlations(patches),
    }
    if routes.has_few_pixels(patches):
        ways["pixels"] = by_pixels(patches)
    for work in ways.values():
        work()
    memory = {way: peak_bytes(work, device) for way, work in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, work in ways.items():
            times[way].append(seconds(work, device))
    return {
        "geometry": dict(zip(("N", "C", "side", "kernel", "stride", "dilation", "groups"), case, strict=True)),
        "seconds": {way: statistics.median(taken) for way, taken in times.items()},
        "spread": {way: [min(taken), max(taken)] for way, taken in times.items()},
        "ratio": statistics.median(p / c for p, c in zip(times["patches"], times["correlations"], strict=True)),
        "bytes": memory,
        "error": error(conv, patches),
        "work": {way: asdict(routes.work_of(way, patches, device)) for way in ways},
        "chosen": routes.quickest(patches),
    }


def fitted(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Prices >= 0 that bring price · work nearest to the seconds, each taken as a share of itself."""
    kinds = ("products", "transforms", "moved", "calls")
    pairs = [(row["work"][way], row["seconds"][way]) for row in rows for way in row["seconds"]]
    work = torch.tensor([[item[kind] / 1e9 / taken for kind in kinds] for item, taken in pairs], dtype=torch.float64)
    scale = work.norm(dim=0)
    log_price = torch.zeros(len(kinds), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_price], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = (((work / scale) @ log_price.exp() + 1e-12).log()).square().mean()
        value.backward()
        return value

    for _ in range(20):
        optimizer.step(loss)
    return {kind: price.item() for kind, price in zip(kinds, log_price.exp().detach() / scale, strict=True)}


def growth(device: str, repeats: int, counts: tuple[int, ...]) -> dict[str, Any]:
    """Seconds and bytes of the correlations against the number of samples, and the slope in logarithms."""
    conv, taken, held = conv_of(128, 3, 1, 1, 1).to(device), [], []
    for count in counts:
        x = torch.randn(count, 128, 16, 16, generator=torch.Generator().manual_seed(0)).relu().to(device)
        work = by_correlations(Patches.of(conv, x))
        work()
        taken.append(min(seconds(work, device) for _ in range(repeats)))
        held.append(peak_bytes(work, device))
    return {"samples": list(counts), "seconds": taken, "bytes": held, "slope": power_law(counts, taken).exponent}


def run(options: Options) -> Document:
    """One entry a geometry, the fitted prices, and the growth with the samples."""
    began = time.perf_counter()
    cases = QUICK if options.quick else SMALL if options.device == "cpu" else LARGE
    print(HEADER)
    rows = []
    threads = torch.get_num_threads()
    try:
        # With one thread the seconds are the processor's own, which other programs do not lengthen.
        torch.set_num_threads(options.threads or (1 if options.device == "cpu" else threads))
        with torch.no_grad():
            for case in cases:
                rows.append(measure(case, options.device, options.repeats))
                print(_line(case, rows[-1]), flush=True)
            grown = growth(options.device, options.repeats, (4, 8, 16) if options.quick else (16, 32, 64, 128, 256))
        prices = fitted(rows)
        return document("gram", options, began, prices=prices, growth=grown, cases=rows)
    finally:
        torch.set_num_threads(threads)


def table(result: Document) -> str:
    """For a screen: what the measurements come to; the cases were printed as they came."""
    wrong = [row for row in result["cases"] if row["seconds"][row["chosen"]] > row["seconds"]["patches"]]
    prices = {kind: float(f"{price:.3g}") for kind, price in result["prices"].items()}
    slope = result["growth"]["slope"]
    return f"prices (ns): {prices}\nchosen where slower: {len(wrong)}; seconds grow as samples to the {slope:.3f}"


def _line(case: tuple[int, ...], row: dict[str, Any]) -> str:
    widths = (4, 5, 5, 3, 3, 3, 4)
    taken, held = row["seconds"], row["bytes"]
    return (
        "".join(f"{value:>{width}}" for value, width in zip(case, widths, strict=True))
        + f"{1e3 * taken['patches']:8.2f}ms{1e3 * taken['correlations']:7.2f}ms{row['ratio']:7.2f}"
        + (f"{1e3 * taken['pixels']:8.2f}ms" if "pixels" in taken else " " * 10)
        + f"{held['patches'] / 2**20:11.1f}{held['correlations'] / 2**20:7.1f}{row['error']['correlations']:9.0e}"
        + f"  {row['chosen']}"
    )
