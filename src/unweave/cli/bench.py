"""``unweave bench``: measure speed, memory and growth on this machine, from a checkout."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from pathlib import Path
from typing import Any

HELP = "Measure fit and requests on this machine: speed, memory, growth (needs a checkout)."

EXAMPLE = """\
examples:
  unweave bench --quick                                 see that everything runs: seconds, numbers that say nothing
  unweave bench side-by-side --device cuda --cifar10 data/cifar10
  unweave bench side-by-side --device cuda --networks allcnn --cifar10 data/cifar10 --reference pgu/
  unweave bench growth eigen --device cuda

names: side-by-side, growth, eigen, fit, gram, training, ensemble; none: all of them. Each prints a table and writes
bench-results/bench-NAME-DEVICE.json with the hardware, the versions, the commit and the settings; a quick run writes
bench-NAME-DEVICE-quick.json. Without a folder of images side-by-side's and ensemble's pixels are random, which the
result says; training's always are.
The results that docs/speed.md shows are in results/ of the checkout: --out results there replaces them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to argparse."""
    parser.epilog = EXAMPLE
    parser.add_argument("names", metavar="NAME", nargs="*", help="what to measure (default: everything)")
    parser.add_argument("--quick", action="store_true", help="tiny problems: a test that it runs, no measurement")
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is one; with --quick: cpu)")
    parser.add_argument("--reference", metavar="PATH", type=Path, help="a checkout of the authors' repository")
    parser.add_argument("--cifar10", metavar="PATH", type=Path, help="the images, as experiments/data.py reads them")
    parser.add_argument("--tinyimagenet", metavar="PATH", type=Path, help="the official tiny-imagenet-200, or its tar")
    parser.add_argument(
        "--networks",
        nargs="+",
        default=(),
        metavar="NET",
        help="of side-by-side, training: allcnn, smallvgg, resnet18, demo (default: the first three; on a CPU, demo)",
    )
    parser.add_argument("--others", nargs="*", metavar="METHOD", help="which baselines to time (default: all of them)")
    parser.add_argument("--epochs", type=int, default=30, help="of side-by-side's trainings (default: %(default)s)")
    parser.add_argument("--repeats", type=int, help="of everything (default: 5; with --quick: 1)")
    parser.add_argument("--slow-repeats", type=int, help="of what takes long (default: as --repeats)")
    parser.add_argument(
        "--limit",
        metavar="SECONDS",
        type=float,
        help="of side-by-side: end the plain request, the authors' script or pass, or another method after so long",
    )
    parser.add_argument(
        "--reference-limit", metavar="SECONDS", type=float, help="of the authors' code alone (default: as --limit)"
    )
    parser.add_argument("--threads", type=int, help="of gram on a CPU (default: 1, timed by the processor's own clock)")
    parser.add_argument("--seed", type=int, default=0, help="of networks and data (default: %(default)s)")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("bench-results"),
        help="folder to write to (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure; 0 once every result is written.

    Raises:
        ConfigError: no checkout, an unknown name, or something that a benchmark needs is missing.
        StoreError: a result cannot be written.
    """
    for name in ("repeats", "slow_repeats", "epochs", "threads"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            arguments.parser.error(f"--{name.replace('_', '-')} must be 1 or more")
    for name in ("limit", "reference_limit"):
        if (value := getattr(arguments, name)) is not None and not 0 < value < math.inf:
            arguments.parser.error(f"--{name.replace('_', '-')} must be a number of seconds above 0")
    root = checkout()
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    suite: Any = importlib.import_module("benchmarks.suite")
    suite.run(arguments.names, _options(arguments), arguments.out)
    return 0


def checkout() -> Path:
    """The root of the checkout this package is installed from, or else the current folder if it is one.

    Raises:
        ConfigError: neither is.
    """
    import unweave
    from unweave.errors import ConfigError

    for root in (Path(unweave.__file__).resolve().parents[2], Path.cwd()):
        if (root / "benchmarks" / "suite.py").is_file() and (root / "experiments").is_dir():
            return root
    raise ConfigError(
        "unweave bench runs from a checkout: the benchmarks are not part of the installed package. Clone the "
        "repository, change to its folder, and run it there."
    )


def _options(arguments: argparse.Namespace) -> Any:
    import torch

    from unweave.errors import ConfigError

    there = torch.cuda.is_available()
    device = arguments.device or ("cuda" if there and not arguments.quick else "cpu")
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"Invalid --device: {device!r}. Supported: cpu, cuda.")
    if device != "cpu" and not there:
        raise ConfigError(f"--device {device}: PyTorch sees no GPU here. Use --device cpu.")
    repeats = arguments.repeats or (1 if arguments.quick else 5)
    options: Any = importlib.import_module("benchmarks.options")
    return options.Options(
        device=device,
        quick=arguments.quick,
        repeats=repeats,
        slow_repeats=arguments.slow_repeats or repeats,
        limit=arguments.limit,
        reference_limit=arguments.limit if arguments.reference_limit is None else arguments.reference_limit,
        networks=tuple(arguments.networks),
        others=None if arguments.others is None else tuple(arguments.others),
        epochs=arguments.epochs,
        threads=arguments.threads,
        reference=arguments.reference,
        cifar10=arguments.cifar10,
        tinyimagenet=arguments.tinyimagenet,
        seed=arguments.seed,
    )
