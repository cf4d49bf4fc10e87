"""Every benchmark by its name, and how its result is kept: bench-NAME-DEVICE.json, whole or not at all.

One that takes long leaves bench-NAME-DEVICE.unfinished.json when it is cut short; no table is made of that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks import eigen, ensemble, fit_pass, gram_kernels, growth, side_by_side, training
from benchmarks.authors import require_reference
from benchmarks.options import DEMO, NETWORKS, Document, Options
from unweave.baselines import BASELINES
from unweave.errors import ConfigError, StoreError
from unweave.files import write_atomically


@dataclass(frozen=True)
class Benchmark:
    """What it measures, in a line; how to run it; and what of its result goes on the screen."""

    about: str
    run: Callable[[Options], Document]
    table: Callable[[Document], str]


BENCHMARKS = {
    "side-by-side": Benchmark(
        "fit and requests against retraining, the plain method, the authors' code and other methods",
        side_by_side.run,
        side_by_side.table,
    ),
    "growth": Benchmark("seconds and memory against samples, classes, width, depth, image", growth.run, growth.table),
    "eigen": Benchmark("eigendecompositions and other ways to the same projector", eigen.run, eigen.table),
    "fit": Benchmark("the pass over a data set against a forward pass", fit_pass.run, fit_pass.table),
    "gram": Benchmark("the ways to a convolution's Gram", gram_kernels.run, gram_kernels.table),
    "training": Benchmark("a training by each recipe, from a few of its epochs", training.run, training.table),
    "ensemble": Benchmark(
        "the networks of an attack, fifty of each kind, by some of them", ensemble.run, ensemble.table
    ),
}


def place_of(name: str, options: Options, folder: Path) -> Path:
    """A quick run has a name of its own: it says nothing, and must not replace what does."""
    device = options.device.partition(":")[0]
    if name in ("side-by-side", "training") and options.networks and not options.quick:
        name = "-".join([name, *options.networks])  # so that networks can be run one after the other
    if name == "gram" and options.threads is not None:
        device = f"{device}-{options.threads}-threads"
    return folder / f"bench-{name}-{device}{'-quick' if options.quick else ''}.json"


def check(names: Sequence[str], options: Options) -> list[str]:
    """The names to run, all of them if none was given; whatever can be known to fail fails here, before the work.

    Raises:
        ConfigError: an unknown name or network, or an authors' checkout that cannot be run.
    """
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        raise ConfigError(f"Unknown benchmark: {', '.join(unknown)}. Supported: {', '.join(BENCHMARKS)}.")
    strange = sorted(set(options.networks) - {*NETWORKS, DEMO})
    if strange:
        raise ConfigError(f"Unknown network: {', '.join(strange)}. Supported: {', '.join((*NETWORKS, DEMO))}.")
    others = sorted(set(options.others or ()) - set(BASELINES))
    if others:
        raise ConfigError(f"Unknown baseline: {', '.join(others)}. Supported: {', '.join(BASELINES)}.")
    for name, folder in {"cifar10": options.cifar10, "tinyimagenet": options.tinyimagenet}.items():
        if folder is not None and not folder.exists():
            raise ConfigError(f"--{name} {folder} is not there. Give the images' folder or archive, or leave it out.")
    chosen = [name for name in BENCHMARKS if name in names] or list(BENCHMARKS)
    if "training" in chosen and options.device == "cpu" and set(options.networks) & set(NETWORKS):
        raise ConfigError(
            "training: a few epochs of the paper's networks take hours on a CPU. Use --device cuda, or --networks demo."
        )
    if options.reference is not None and "side-by-side" in chosen:
        require_reference(options.reference, options.device)
    return chosen


def run(names: Sequence[str], options: Options, folder: Path) -> list[Path]:
    """Run some benchmarks, print their tables, and keep each result as soon as it is there.

    Raises:
        ConfigError: see :func:`check`.
        StoreError: the folder cannot be made or written.
    """
    chosen = check(names, options)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"Cannot make {folder}: {error.strerror or error}. Choose another place.") from error
    written = []
    for name in chosen:
        print(f"== {name}: {BENCHMARKS[name].about}", flush=True)
        place = place_of(name, options, folder)
        unfinished = place.with_suffix(".unfinished.json")
        with _kept(unfinished):
            result = BENCHMARKS[name].run(replace(options, keep=partial(_write, unfinished)))
        _write(place, result)
        unfinished.unlink(missing_ok=True)
        written.append(place)
        print(BENCHMARKS[name].table(result))
        print(f"{result['seconds']:.1f} s; wrote {place}", flush=True)
    return written


@contextmanager
def _kept(unfinished: Path) -> Iterator[None]:
    """Let Ctrl-C inside say what is left of the measurement."""
    before = unfinished.stat().st_mtime_ns if unfinished.exists() else None
    try:
        yield
    except KeyboardInterrupt:
        if unfinished.exists() and unfinished.stat().st_mtime_ns != before:
            raise KeyboardInterrupt(f"what was measured until then is in {unfinished}") from None
        raise


def _write(place: Path, result: Document) -> None:
    write_atomically(place, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
