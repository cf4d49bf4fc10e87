"""``unweave reproduce``: the paper's tables and figures again, from the experiments of a source checkout."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

import unweave
from unweave.errors import ConfigError

HELP = "Run the paper's experiments again and write each as a JSON document (from a source checkout)."

EXAMPLE = """\
example:
  unweave reproduce all --quick                   every experiment, small, on the images that come with the package
  unweave reproduce table1 --data cifar10/        table 1 at the paper's size; a GPU is advised
  unweave reproduce table1 --download             the same with the images from where they are published
  unweave reproduce table1 --data cifar10/ --minutes 9     start no job after nine minutes; the same command goes on
  unweave reproduce table1 --data cifar10/ --processes 5   five processes divide the jobs, and share the GPU
  unweave reproduce table1 --stage assemble       the document from what is there

experiments: table1 table2 table3 table4 table4-tiny class-smallvgg incremental-long gamma layers epochs attacks, all.
Networks and outcomes are kept in --out as they are done: an interrupted run goes on where it was. Several processes may
share --out and a GPU (--processes, or the same command several times with --crowded): each takes jobs that nobody else
is at, and no seconds are kept, for what is timed needs the GPU for itself."""

STAGES = ("both", "run", "assemble")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to argparse."""
    parser.epilog = EXAMPLE
    parser.add_argument("names", nargs="+", metavar="NAME", help="experiments, or all")
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What ``unweave reproduce`` and ``python -m experiments.NAME`` have in common."""
    parser.add_argument("--out", type=Path, help="work folder (default: reproduction, or reproduction-quick)")
    parser.add_argument("--data", type=Path, help="the data set, or a folder with cifar10/ and tinyimagenet/ in it")
    parser.add_argument("--download", action="store_true", help="get data sets that are not there")
    parser.add_argument("--quick", action="store_true", help="small networks and images that come with the package")
    parser.add_argument("--seeds", type=int, help="of each table (the paper: 5)")
    parser.add_argument(
        "--models",
        type=int,
        help="full and retrained networks each, for the attacks (default: 50 AllCNNs, as the paper, 12 of the others)",
    )
    parser.add_argument("--trials", type=int, help="of every baseline's tuning, at most (default: 6)")
    parser.add_argument("--together", type=int, default=4, help="networks of an ensemble trained at once (default: 4)")
    parser.add_argument("--workers", choices=("here", "ray"), default="here", help="run jobs here, or on Ray's workers")
    parser.add_argument("--device", help="cpu, cuda … (default: cuda where there is one)")
    parser.add_argument(
        "--jobs", default="*", metavar="PATTERNS", help="only jobs whose name matches one, as '*/match/*,*/pgu/*'"
    )
    parser.add_argument(
        "--crowded",
        action="store_true",
        help="other work runs on this GPU, as this command once more: jobs are divided, seconds are not kept",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="start so many processes, as N times this command with --crowded --together 1 (default: 1)",
    )
    parser.add_argument("--minutes", type=float, help="start no job after so many minutes")
    parser.add_argument("--stage", choices=STAGES, default="both", help="run jobs, assemble documents, or both")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="parts of NAME.json in FOLDER for which there are no outcomes here are taken over",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the experiments; 0 when their documents are written.

    Raises:
        UnweaveError: no checkout here, an unknown name, or data that is not there or not right.
        SystemExit: interrupted (130), out of GPU memory or a process failed (1, 2); what is kept has been said.
    """
    experiments = _experiments()
    options = experiments.options_of(arguments)
    experiments.reproduce(arguments.names, options, lambda text: print(text, flush=True))
    return 0


def _experiments() -> ModuleType:
    """The experiments are not part of the installed package: look where the package's source is, then here."""
    for root in (Path(unweave.__file__).resolve().parents[2], Path.cwd()):
        if (root / "experiments" / "reproduce.py").is_file():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return importlib.import_module("experiments.reproduce")
    raise ConfigError(
        "The experiments come with the source, not with the installed package. Clone the repository, install it with "
        "pip install --editable '.[audit]', and run this again there."
    )
