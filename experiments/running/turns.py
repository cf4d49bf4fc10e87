"""A list of jobs worked off: here one by one, on Ray's workers, beside other processes, or by processes of its own."""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from experiments.running.jobs import Done, Job, ray_running, run_jobs, time_left
from experiments.running.processes import side_by_side, told_by
from experiments.running.provenance import made_by
from experiments.running.shares import shared
from experiments.running.work import Work
from experiments.settings import PAPER, Scale
from experiments.trials import SCHEME
from unweave.errors import ConfigError
from unweave.memory import is_gpu_full

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


Anew = Callable[[Options], tuple[Work, list[Job]]]
"""Makes the work folder and all jobs of some options; pickle must be able to name it."""


def run(work: Work, jobs: Sequence[Job], options: Options, say: Say, anew: Anew) -> None:
    """Run what is not done, here or by processes that are started for it, each of which gets everything anew.

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
        codes = side_by_side(partial(_take_part, anew, options), min(options.processes, len(left)), say)
    still = sum(not work.has(job.name) for job in left)
    if still and any(codes):
        say(f"{sum(map(bool, codes))} of {len(codes)} processes failed: {_kept(work, jobs, options)}")
        raise SystemExit(2 if 2 in codes else 1)
    if still:
        say(f"{(time.monotonic() - began) / 60:.1f} minutes are over: {still} jobs left; the same command goes on")


def _take_part(anew: Anew, options: Options, number: int) -> None:
    """One process's share of the jobs; in a new process."""
    say = told_by(number)
    options = replace(options, processes=1, crowded=True, together=1)
    work, jobs = anew(options)
    left = [job for job in _matching(jobs, options.jobs) if not work.has(job.name)]
    with cut_short(work, jobs, options, say, quietly=True):
        _work_off(work, left, options, say)


def _work_off(work: Work, left: Sequence[Job], options: Options, say: Say) -> None:
    """Run jobs until all are done, by whomever, or the time is over."""
    began = time.monotonic()
    end = math.inf if options.minutes is None else began + 60 * options.minutes
    with ray_running() if options.workers == "ray" and left else nullcontext():  # once, not for every group
        for group in _in_turn(work, left, options, say, lambda: time.monotonic() > end):
            if time.monotonic() > end:
                break
            made = _done(work, group, options.workers)
            others = sum(work.has(one.name) for one in left) - len(group)  # done before, by whomever
            for number, (job, done) in enumerate(zip(group, made, strict=True), start=others + 1):
                pace = (time.monotonic() - began) / number
                rest = time_left(pace * (len(left) - number)) if number < len(left) else ""
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


@contextmanager
def cut_short(work: Work, jobs: Sequence[Job], options: Options, say: Say, *, quietly: bool = False) -> Iterator[None]:
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
    except RuntimeError as error:
        if not is_gpu_full(error):
            raise
        told = str(error).splitlines()[0].rstrip(".")
        say(
            f"Out of GPU memory: {told}. {_kept(work, jobs, options)}. Free the GPU or train "
            "fewer networks at once (--together, --processes); the same command goes on"
        )
        raise SystemExit(1) from error


def _kept(work: Work, jobs: Sequence[Job], options: Options) -> str:
    """How many of the jobs that were asked for are done, by whomever; documents are assembled from all."""
    wanted = jobs if options.stage == "assemble" else _matching(jobs, options.jobs)
    half = work.half_trained()
    networks = f" and {half} half-trained network{'s' if half > 1 else ''}" if half else ""
    return f"{sum(work.has(job.name) for job in wanted)} of {len(wanted)} jobs{networks} are kept in {work.folder}"


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
