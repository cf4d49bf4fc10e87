"""Run experiments by name: ``unweave reproduce NAME …`` and ``python -m experiments.NAME`` both end up here.

An experiment is a module with a NAME, ``jobs(work)`` (small, in the order in which they are most useful when the run is
cut short) and ``assemble(work)`` (a document from whatever outcomes are there). Experiments share outcomes and networks
by name, so running several in one folder does nothing twice. Several processes may work in one folder at the same time;
where they share a GPU they are told so (``crowded``): they divide the jobs among them, and keep errors but no seconds.
``processes`` starts so many of them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from experiments.documents.keeping import PARTS, earlier, with_kept
from experiments.documents.tables import TABLES
from experiments.running.alone import has_locks
from experiments.running.jobs import Job
from experiments.running.turns import Options, Say, cut_short, run
from experiments.running.work import Work
from experiments.settings import PAPER, QUICK
from unweave.cli.reproduce import STAGES, add_options
from unweave.errors import ConfigError, StoreError
from unweave.files import write_atomically

EXPERIMENTS = {
    "table1": "experiments.table1",
    "table3": "experiments.table3",
    "class-smallvgg": "experiments.class_smallvgg",
    "table4": "experiments.table4",
    "gamma": "experiments.gamma",
    "layers": "experiments.layers",
    "epochs": "experiments.epochs",
    "attacks": "experiments.attacks",
    "incremental-long": "experiments.incremental_long",
    "table2": "experiments.table2",
    "table4-tiny": "experiments.table4_tiny",
}
"""By the name of the result, in the order in which ``all`` runs them."""


def reproduce(names: Iterable[str], options: Options, say: Say = print) -> dict[str, dict[str, Any]]:
    """Run and assemble some experiments; OUT/NAME.json for each.

    Raises:
        ConfigError: an unknown experiment, stage or device, processes that cannot be, or nothing to keep. DataError:
        the data is not there or not right. StoreError, MismatchError: what is to be kept is no document, or does not
        fit the new one; StoreError also where documents alone are asked for and there is nothing to assemble one from:
        the others are written.
        SystemExit: interrupted (130), out of GPU memory or a process failed (1, 2); what is kept has been said.
    """
    names = _resolved(names)
    modules = [_module(name) for name in names]
    _check(options)
    before = _earlier(modules, options, say)  # first: a wrong folder should not come out after hours of jobs
    work, jobs = _prepared(names, options)
    with cut_short(work, jobs, options, say):
        if options.stage != "assemble":
            run(work, jobs, options, say, partial(_prepared, names))
        return {} if options.stage == "run" else _documents(work, modules, before, options, say)


def _check(options: Options) -> None:
    """What can be told before anything is read.

    Raises:
        ConfigError: an unknown stage, or a number of processes that cannot be.
    """
    if options.stage not in STAGES:
        raise ConfigError(f"Invalid stage: {options.stage!r}. Supported: {', '.join(STAGES)}.")
    if options.processes < 1:
        raise ConfigError(f"Invalid --processes: {options.processes}. Supported: 1 or more.")
    if options.processes > 1 and options.workers != "here":
        raise ConfigError(f"Invalid --processes: {options.processes} beside --workers ray. Supported: one of both.")
    if options.processes > 1 and not has_locks():
        raise ConfigError(f"Invalid --processes: {options.processes}. Supported on this system, without locks: 1.")


def _prepared(names: Sequence[str], options: Options) -> tuple[Work, list[Job]]:
    """The work folder and all jobs of the experiments."""
    work = Work(options.out, options.scale, _device(options.device), options.data)
    work.together = options.together if options.workers == "here" else 1  # workers know nothing of each other
    work.download, work.crowded = options.download, options.crowded
    return work, _once(job for name in names for job in _module(name).jobs(work))


def _resolved(names: Iterable[str]) -> list[str]:
    wanted = [one for name in names for one in (list(EXPERIMENTS) if name == "all" else [name])]
    unknown = sorted({name for name in wanted if name not in EXPERIMENTS})
    if unknown or not wanted:
        found = ", ".join(unknown) or "none"
        raise ConfigError(f"Invalid experiment: {found}. Supported: all, {', '.join(EXPERIMENTS)}.")
    return list(dict.fromkeys(wanted))


def _module(name: str) -> ModuleType:
    return importlib.import_module(EXPERIMENTS[name])


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ConfigError(f"Invalid device: {name!r}. Supported: cpu, cuda, cuda:0 …") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"Invalid device: {name!r}. There is no GPU here that PyTorch can use. Supported: cpu.")
    return device


def _once(jobs: Iterable[Job]) -> list[Job]:
    """Each name once, where it comes first."""
    found: dict[str, Job] = {}
    for job in jobs:
        found.setdefault(job.name, job)
    return list(found.values())


def _say_what_is_left_out(work: Work, say: Say) -> None:
    old = [name for name in work.names() if work.of_another_tuning(name)]
    if old:
        folders = ", ".join(sorted({name.rpartition("/")[0].rpartition("/")[2] for name in old}))
        say(
            f"{len(old)} outcomes of another tuning are left out ({folders}). Run the same command with --stage run to "
            "make them anew, or delete those folders."
        )


def _earlier(modules: Sequence[ModuleType], options: Options, say: Say) -> dict[str, dict[str, Any]]:
    """The documents that parts may be taken over from, by name."""
    found = dict[str, dict[str, Any]]()
    if options.keep is None:
        return found
    if options.stage == "run":
        say("--keep does nothing with --stage run: parts are taken over when documents are assembled")
        return found
    for module in modules:
        if module.NAME in PARTS:
            found[module.NAME] = earlier(options.keep, module.NAME, options.scale.name)
        else:
            say(f"{module.NAME} has no parts: --keep takes nothing over for it")
    return found


def _documents(
    work: Work, modules: Sequence[ModuleType], before: dict[str, dict[str, Any]], options: Options, say: Say
) -> dict[str, dict[str, Any]]:
    """Assemble all for which there are outcomes.

    Raises:
        StoreError: there are none for some, and nothing else was to be done; the others are written.
    """
    _say_what_is_left_out(work, say)
    documents = {module.NAME: _assemble(work, module, before.get(module.NAME), say) for module in modules}
    empty = [name for name, document in documents.items() if not document["made_by"]]
    if empty and options.stage == "assemble":
        also = " --keep adds to the outcomes that are here, and needs at least one." if options.keep else ""
        raise StoreError(
            f"There are no outcomes of {', '.join(empty)} in {work.folder}, so there is nothing to assemble. Run the "
            "same command without --stage assemble, or name the folder that has them with --out (--quick has its own)."
            f"{also}"
        )
    for name in empty:  # no error: a run that was cut short by --minutes or --jobs did what it was asked for
        say(f"{name}: nothing was run yet, so there is no document")
    return documents


def _assemble(work: Work, module: ModuleType, before: dict[str, Any] | None, say: Say) -> dict[str, Any]:
    """Write a document and show it; where there are no outcomes, nothing is written."""
    document: dict[str, Any] = module.assemble(work)
    if not document["made_by"]:
        return document
    if before is not None:
        document = with_kept(document, before)
        say(f"{module.NAME}: taken over by --keep: {'; '.join(document.get('kept', ['nothing']))}")
    path = work.folder / f"{module.NAME}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())
    text = TABLES[module.NAME](document)
    write_atomically(path.with_suffix(".md"), f"# {module.NAME}\n\n{text}\n".encode())
    say(f"\n{text.replace('<br><sub>', ' (').replace('</sub>', ')')}\n")
    if work.scale.name != PAPER.name:
        say("A quick run shows that everything works; its numbers say nothing.")
    say(f"{path}, and the table in {path.with_suffix('.md').name}")
    return document


# --------------------------------------------------------------------------------------------- the command line


def options_of(arguments: argparse.Namespace) -> Options:
    """What the command line asks for."""
    scale = QUICK if arguments.quick else PAPER
    changes = {"seeds": arguments.seeds, "models": arguments.models, "trials": arguments.trials}
    bad = [f"--{name} {value}" for name, value in changes.items() if value is not None and value < 1]
    if bad:
        raise ConfigError(f"Invalid {', '.join(bad)}. Supported: a number from 1.")
    scale = replace(scale, **{name: value for name, value in changes.items() if value is not None})
    if arguments.models is not None:
        scale = replace(scale, fewer_models=arguments.models)
    words = (
        "data",
        "download",
        "device",
        "jobs",
        "minutes",
        "stage",
        "together",
        "workers",
        "crowded",
        "processes",
        "keep",
    )
    chosen = {key: getattr(arguments, key) for key in words}
    out = arguments.out or Path("reproduction-quick" if arguments.quick else "reproduction")
    return Options(out, scale, **chosen)


def main(name: str, words: Sequence[str] | None = None) -> None:
    """``python -m experiments.NAME``."""
    module = _module(name)
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=module.__doc__, formatter_class=formatter)
    add_options(parser)
    reproduce([name], options_of(parser.parse_args(words)), lambda text: print(text, flush=True))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
