"""Named jobs whose results are kept as soon as they are there: started again, a list of jobs goes on where it was.

A job's result is FOLDER/NAME.json, its arrays are FOLDER/NAME.npz. The arrays are written first, each file whole or not
at all, so that a job is either done or not begun: an interruption loses what was running and nothing else.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from experiments.running.alone import one_at_a_time
from unweave.errors import ConfigError, MismatchError, StoreError
from unweave.files import write_atomically

Outcome = Mapping[str, Any] | tuple[Mapping[str, Any], Mapping[str, np.ndarray]]
"""What a job makes: a result that JSON can hold, and arrays if there are any."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._,=+-]*")


@dataclass(frozen=True)
class Job:
    """A piece of work with a name of its own. ``settings`` is all that its result depends on, as JSON."""

    name: str
    work: Callable[[], Outcome]
    settings: Mapping[str, Any] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    """Jobs whose results it reads: they are done before it."""


@dataclass(frozen=True)
class Done:
    """A job's result as it was kept."""

    result: dict[str, Any]
    seconds: float
    made_by: dict[str, Any]
    path: Path

    def arrays(self) -> dict[str, np.ndarray]:
        """The job's arrays, read now; none if it made none."""
        stored = self.path.with_name(f"{self.path.stem}.npz")
        if not stored.exists():
            return {}
        with np.load(stored, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


def on_stderr(text: str) -> None:
    """Progress goes where results do not."""
    print(text, file=sys.stderr, flush=True)


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    *,
    workers: Literal["here", "ray"] = "here",
    resources: Mapping[str, float] | None = None,
    made_by: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = on_stderr,
) -> dict[str, Done]:
    """Do the jobs that are not done, keep each as soon as it is, and return all in their order.

    ``workers="ray"`` spreads them over Ray's workers (``pip install 'unweave[ray]'``); ``resources`` are then what one
    job needs, as ``{"num_gpus": 0.25}``. ``made_by`` is kept beside each result, since a run that goes on
    may have another commit or machine. What a job raises ends the run, with a note that names the job; that and an
    interruption are the caller's to tell of, who knows what these jobs are a part of.

    Raises:
        ConfigError: a name is no file name or is given twice; or Ray is asked for and not installed.
        MismatchError: a job is kept that was done with other settings. Nothing has been run then.
        StoreError: what is kept cannot be read, or a result cannot be kept.
    """
    _check_names(jobs)
    if workers not in ("here", "ray"):
        raise ConfigError(f"Invalid workers: {workers!r}. Supported: 'here', 'ray'.")
    _make(folder)
    done = {job.name: kept for job in jobs if (kept := _kept(job, folder)) is not None}
    open_jobs = [job for job in jobs if job.name not in done]
    if done and open_jobs:
        say(f"{len(done)} of {len(jobs)} jobs are done already in {folder}")
    outcomes = _with_ray(open_jobs, resources or {}) if workers == "ray" else _here(open_jobs)
    began = time.perf_counter()
    for i, (job, outcome, seconds) in enumerate(outcomes, start=1):
        # Another process may have done the same job in the meantime: what was kept first stays.
        with one_at_a_time(folder.parent / f".{folder.name}.lock"):
            done[job.name] = _kept(job, folder) or _keep(job, outcome, seconds, folder, made_by or {})
        say(_progress(len(done), len(jobs), job, seconds, (time.perf_counter() - began) / i))
    return {job.name: done[job.name] for job in jobs}


def _here(jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome, float]]:
    for job in jobs:
        began = time.perf_counter()
        try:
            outcome = job.work()
        except Exception as error:
            error.add_note(f"in job {job.name}; the jobs before it are kept")
            raise
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        yield job, outcome, time.perf_counter() - began


@contextmanager
def ray_running() -> Iterator[None]:
    """Ray for the jobs inside: where it is not running yet, it is started for them, and ended after them.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError("Invalid workers: 'ray' is not installed. Remedy: pip install 'unweave[ray]'.") from error
    ours = not ray.is_initialized()
    if ours:
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        if ours:
            ray.shutdown()


def _with_ray(jobs: Sequence[Job], resources: Mapping[str, float]) -> Iterator[tuple[Job, Outcome, float]]:
    """As they finish, in any order."""
    with ray_running():
        import ray
        from ray import cloudpickle

        task = ray.remote(_as_here()).options(max_retries=0, **resources)
        running = {task.remote(cloudpickle.dumps(partial(_timed, job.work))): job for job in jobs}
        try:
            while running:
                (ready,), _ = ray.wait(list(running), num_returns=1)
                job = running.pop(ready)
                try:
                    outcome, seconds = ray.get(ready)
                except ray.exceptions.RayTaskError as error:
                    cause = error.cause if isinstance(error.cause, Exception) else error
                    cause.add_note(f"in job {job.name}; the jobs that were done are kept")
                    raise cause from error
                yield job, outcome, seconds
        finally:
            for left in running:
                ray.cancel(left, force=True)


def _as_here() -> Callable[[bytes], tuple[Outcome, float]]:
    """Does pickled work in a worker, which knows neither what can be imported here nor where relative paths start.

    A function of a module goes to a worker by its name, and would have to be imported before it can say where from; one
    that is made in another function goes there whole.
    """
    folder, path = os.getcwd(), list(sys.path)

    def done(work: bytes) -> tuple[Outcome, float]:
        os.chdir(folder)
        sys.path.extend(one for one in path if one not in sys.path)
        made: tuple[Outcome, float] = pickle.loads(work)()
        return made

    return done


def _timed(work: Callable[[], Outcome]) -> tuple[Outcome, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def _check_names(jobs: Sequence[Job]) -> None:
    seen = set[str]()
    for job in jobs:
        if not NAME.fullmatch(job.name):
            raise ConfigError(f"Invalid job name: {job.name!r}. Supported: a file name without folders.")
        if job.name in seen:
            raise ConfigError(f"Invalid job name: {job.name!r} is given twice. Supported: each name once.")
        seen.add(job.name)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"Cannot make {folder}: {error.strerror}. Name a folder you may write to.") from error


def digest(settings: Mapping[str, Any]) -> str:
    """SHA-256 of the settings as JSON with sorted keys."""
    return hashlib.sha256(_json(settings, "the settings").encode()).hexdigest()


def _kept(job: Job, folder: Path) -> Done | None:
    path = folder / f"{job.name}.json"
    try:
        document = json.loads(path.read_text("utf-8"))
        settings, found = document["settings"], document["digest"]
        done = Done(document["result"], float(document["seconds"]), document["made_by"], path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is not a kept job ({error!r}). Move it away; the job is then done again.") from error
    if found != digest(job.settings):
        raise MismatchError(
            f"{path} was made with other settings ({_difference(settings, job.settings)}). "
            "Choose another folder, or delete the file to do the job again."
        )
    return done


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    new = json.loads(_json(new, "the settings"))
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    return ", ".join(f"{key}: {old.get(key)!r} then, {new.get(key)!r} now" for key in keys) or "another digest"


def _keep(job: Job, outcome: Outcome, seconds: float, folder: Path, made_by: Mapping[str, Any]) -> Done:
    result, arrays = outcome if isinstance(outcome, tuple) else (outcome, {})
    path = folder / f"{job.name}.json"
    about = {"made_by": made_by, "settings": job.settings, "digest": digest(job.settings), "seconds": seconds}
    document = {**about, "result": result}
    text = _json(document, f"the result of job {job.name}", indent=1)
    if arrays:
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **arrays)
        write_atomically(folder / f"{job.name}.npz", content.getvalue())
    write_atomically(path, (text + "\n").encode())
    kept = json.loads(text)
    return Done(kept["result"], seconds, kept["made_by"], path)


def _json(value: Any, what: str, indent: int | None = None) -> str:
    """Numbers of NumPy and PyTorch become plain ones; settings that differ in the order of keys only are the same."""

    def plain(part: Any) -> Any:
        if isinstance(part, np.ndarray | np.generic | torch.Tensor):
            return part.tolist()
        if isinstance(part, Path):
            return str(part)
        raise ConfigError(f"Invalid {what}: {type(part).__name__} is not JSON. Supported: numbers, text, lists, dicts.")

    return json.dumps(value, sort_keys=indent is None, indent=indent, default=plain)


def _progress(done: int, total: int, job: Job, seconds: float, pace: float) -> str:
    rest = "all done" if done == total else time_left(pace * (total - done))
    return f"[{done}/{total}] {job.name}: {seconds:.1f} s, {rest}"


def time_left(seconds: float) -> str:
    """In words."""
    return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"
