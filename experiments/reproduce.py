"""Run experiments by name: ``unweave reproduce NAME …`` and ``python -m experiments.NAME`` both end up here.

An experiment is a module with a NAME, ``jobs(work)`` (small, in the order in which they are most useful when the run is
cut short) and ``assemble(work)`` (a document from whatever outcomes are there). Experiments share outcomes and networks
by name, so running several in one folder does nothing twice. Several processes may work in one folder at the same time;
where they share a GPU they are told so (``crowded``): they divide the jobs among them, and keep errors but no seconds.
``processes`` starts so many of them.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from experiments.documents.keeping import PARTS, earlier, with_kept
from experiments.documents.tables import TABLES
from experiments.running.alone import has_locks
from experiments.running.jobs import Done, Job, run_jobs, time_left
from experiments.running.processes import side_by_side, told_by
from experiments.running.provenance import made_by
from experiments.running.shares import shared
from experiments.running.work import Work
from experiments.settings import PAPER, QUICK, Scale
from experiments.trials import SCHEME
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

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How to run; the command line's words."""

    out: Path
    scale: Scale = PAPER
    data: Path | None = None
    download: bool = False
    """Get data sets that are neither in ``data`` nor in the cache."""
    device: str | None = None
    jobs: str = "*"
    """Only jobs whose name matches one of these patterns of the shell, which commas separate."""
    minutes: float | None = None
    """Start no job after so many."""
    together: int = 4
    """Networks of the attacks' ensembles trained at the same time."""
    workers: Literal["here", "ray"] = "here"
    """Jobs one after the other in this process, or spread over Ray's workers, which share the folder."""
    stage: str = "both"
    """Run the jobs, assemble the documents, or both."""
    crowded: bool = False
    """Other work runs on the device at the same time, as the same command in another process: no seconds are kept."""
    processes: int = 1
    """Processes to start that divide the jobs among them, each of which is crowded by the others."""
    keep: Path | None = None
    """Parts of NAME.json in this folder for which there are no outcomes here are taken over."""


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
    work, jobs = _prepared(modules, options)
    with _cut_short(work, jobs, options, say):
        if options.stage != "assemble":
            _run(work, jobs, options, say, names)
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


def _prepared(modules: Sequence[ModuleType], options: Options) -> tuple[Work, list[Job]]:
    """The work folder and all jobs of the experiments."""
    work = Work(options.out, options.scale, _device(options.device), options.data)
    work.together = options.together if options.workers == "here" else 1  # workers know nothing of each other
    work.download, work.crowded = options.download, options.crowded
    return work, _once(job for module in modules for job in module.jobs(work))


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


@contextmanager
def _cut_short(work: Work, jobs: Sequence[Job], options: Options, say: Say, *, quietly: bool = False) -> Iterator[None]:
    """Ctrl-C or a full GPU, wherever they come, end the run with a line that says what is kept of all of it.

    ``quietly``: of Ctrl-C another process tells.

    Raises:
        SystemExit: interrupted (130) or out of GPU memory (1).
    """
    try:
        yield
    except KeyboardInterrupt:
        if not quietly:
            say(f"Interrupted: {_kept(work, jobs, options)}; the same command goes on")
        raise SystemExit(130) from None
    except torch.OutOfMemoryError as error:
        say(
            f"Out of GPU memory: {str(error).splitlines()[0]} {_kept(work, jobs, options)}. Free the GPU or train "
            "fewer networks at once (--together, --processes); the same command goes on"
        )
        raise SystemExit(1) from error


def _kept(work: Work, jobs: Sequence[Job], options: Options) -> str:
    """How many of the jobs that were asked for are done, by whomever; documents are assembled from all."""
    wanted = jobs if options.stage == "assemble" else _matching(jobs, options.jobs)
    half = work.half_trained()
    networks = f" and {half} half-trained network{'s' if half > 1 else ''}" if half else ""
    return f"{sum(work.has(job.name) for job in wanted)} of {len(wanted)} jobs{networks} are kept in {work.folder}"


def _run(work: Work, jobs: Sequence[Job], options: Options, say: Say, names: Sequence[str]) -> None:
    """Run what is not done, here or by processes that are started for it, which make the jobs anew from their names.

    Raises:
        SystemExit: 1 or 2, where such a process failed and left jobs undone.
    """
    began = time.monotonic()
    wanted = _matching(jobs, options.jobs)
    _set_aside(work, wanted, say)
    for job in wanted:
        if work.has(job.name):
            _done(work, [job])  # refuses what was made with other settings, before anything is run
    left = [job for job in wanted if not work.has(job.name)]
    say(f"{len(wanted)} jobs, {len(wanted) - len(left)} of them done before")
    codes = list[int]()
    if options.processes == 1:
        _work_off(work, left, options, say)
    elif left:
        codes = side_by_side(partial(_take_part, list(names), options), min(options.processes, len(left)), say)
    still = sum(not work.has(job.name) for job in left)
    if still and any(codes):
        say(f"{sum(map(bool, codes))} of {len(codes)} processes failed: {_kept(work, jobs, options)}")
        raise SystemExit(2 if 2 in codes else 1)
    if still:
        say(f"{(time.monotonic() - began) / 60:.1f} minutes are over: {still} jobs left; the same command goes on")


def _take_part(names: Sequence[str], options: Options, number: int) -> None:
    """One process's share of the jobs; in a new process, which gets everything anew."""
    say = told_by(number)
    options = replace(options, processes=1, crowded=True, together=1)
    work, jobs = _prepared([_module(name) for name in names], options)
    left = [job for job in _matching(jobs, options.jobs) if not work.has(job.name)]
    with _cut_short(work, jobs, options, say, quietly=True):
        _work_off(work, left, options, say)


def _work_off(work: Work, left: Sequence[Job], options: Options, say: Say) -> None:
    """Run jobs until all are done, by whomever, or the time is over."""
    began = time.monotonic()
    end = math.inf if options.minutes is None else began + 60 * options.minutes
    for group in _in_turn(work, left, options, say, lambda: time.monotonic() > end):
        if time.monotonic() > end:
            break
        made = _done(work, group, options.workers)
        others = sum(work.has(one.name) for one in left) - len(group)  # done before, by whomever
        for number, (job, done) in enumerate(zip(group, made, strict=True), start=others + 1):
            rest = time_left((time.monotonic() - began) / number * (len(left) - number)) if number < len(left) else ""
            say(f"{number}/{len(left)} {job.name} {done.seconds:.1f} s{_gist(done.result)}{rest and f'  {rest}'}")


def _in_turn(
    work: Work, jobs: Sequence[Job], options: Options, say: Say, is_over: Callable[[], bool]
) -> Iterator[list[Job]]:
    """What is run next: one job, on Ray's workers several at once; beside other processes what nobody else is at."""
    if options.workers == "ray":
        yield from together(jobs)
        return
    claims = work.folder / "claims"
    for job in shared(jobs, work.has, claims, say, is_over) if options.crowded else jobs:
        yield [job]


def _matching(jobs: Sequence[Job], patterns: str) -> list[Job]:
    """The jobs that any of the patterns matches, in their order.

    Raises:
        ConfigError: one of them matches none: a slip would otherwise leave jobs out without a word.
    """
    wanted = set[str]()
    for pattern in (one.strip() for one in patterns.split(",")):
        found = {job.name for job in jobs if fnmatch.fnmatch(job.name, pattern)}
        if jobs and not found:
            raise ConfigError(f"Invalid --jobs: no job matches {pattern!r}. There are, for example: {jobs[0].name}.")
        wanted |= found
    return [job for job in jobs if job.name in wanted]


def _set_aside(work: Work, jobs: Sequence[Job], say: Say) -> None:
    """Outcomes of baselines that were tuned in another way make room for new ones."""
    old = [job.name for job in jobs if work.of_another_tuning(job.name)]
    moved = [name for name in old if work.set_aside(name)]
    if moved:
        say(f"{len(moved)} outcomes of another tuning are in {work.folder / 'set-aside'} now; their jobs run again")


def _say_what_is_left_out(work: Work, say: Say) -> None:
    old = [name for name in work.names() if work.of_another_tuning(name)]
    if old:
        folders = ", ".join(sorted({name.rpartition("/")[0].rpartition("/")[2] for name in old}))
        say(
            f"{len(old)} outcomes of another tuning are left out ({folders}). Run the same command with --stage run to "
            "make them anew, or delete those folders."
        )


def together(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that can run at the same time: those of one folder, which differ in their seeds.

    A folder comes where its first job does, but for tuning: its reference first, then the first trials of all methods,
    then the second ones, which depend on them, and so on; then the others.
    """
    groups: dict[tuple[float, str], list[Job]] = {}
    for job in jobs:
        folder, _, leaf = job.name.rpartition("/")
        stage = math.inf
        if folder.endswith(SCHEME):
            stage = -1 if leaf == "original" else int(leaf.rpartition("-")[2])
        groups.setdefault((stage, folder), []).append(job)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def _done(work: Work, jobs: Sequence[Job], workers: Literal["here", "ray"] = "here") -> list[Done]:
    """Run jobs of one folder or read what is kept of them; the folders in a job's name are folders.

    Nothing is said of them here: our own line a job says more, and counts all jobs.
    """
    folder = jobs[0].name.rpartition("/")[0]
    leaves = [replace(job, name=job.name.rpartition("/")[2]) for job in jobs]
    resources = {"num_gpus": 1.0} if work.device.type == "cuda" else {}
    made = {**made_by(work.device), **({"crowded": True} if work.crowded else {})}
    done = run_jobs(leaves, work.rows / folder, workers=workers, resources=resources, made_by=made, say=_silent)
    return list(done.values())


def _silent(text: str) -> None:
    pass


def _gist(result: dict[str, Any]) -> str:
    """A few errors, so that a run can be judged while it goes on."""
    found = result.get("errors") or result.get("accuracy") or {}
    if "skipped" in result:
        return f"  not needed: {result['skipped']}"
    if "asks for" in result:
        return f"  {result['knob']} {result['value']:g}: forgotten {result['forgotten']:.2f}, val {result['val']:.2f}"
    shown = " ".join(f"{key} {found[key]:.2f}" for key in ("retained", "forgotten", "test") if key in found)
    return (f"  {shown}" if shown else "") + ("  NOT DONE" if result.get("ok") is False else "")


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
        scale = replace(scale, fewer_models=min(arguments.models, scale.fewer_models))
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
