"""Several gloo processes on this machine, to hand work to: one process group, one thread each."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds until a job counts as hung."""


@dataclass(frozen=True)
class Failed:
    """An error that work has raised on a rank."""

    kind: str
    words: str


@dataclass(frozen=True)
class Gone:
    """A rank that has ended without an answer."""


class Job:
    """So many ranks that wait for work."""

    def __init__(self, count: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        meeting = str(folder / "meeting")
        self.ends, self.processes = [], []
        for rank in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, count, meeting), daemon=True)
            process.start()
            there.close()
            self.ends.append(here)
            self.processes.append(process)

    def run(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Do the same on every rank; returns what each has returned, Failed, or Gone."""
        for end in self.ends:
            end.send((work, arguments))
        return [_answer(end) for end in self.ends]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _answer(end: Any) -> Any:
    try:
        if not end.poll(PATIENCE):
            return Failed("Hung", f"no answer in {PATIENCE} s")
        return end.recv()
    except (EOFError, ConnectionResetError):
        return Gone()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute as a rank does: with more threads, sums of floats may come out otherwise in the last bit."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _serve(end: Any, rank: int, count: int, meeting: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count)
    while True:
        work, arguments = end.recv()
        try:
            answer = work(*arguments)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            answer = Failed(type(error).__name__, str(error))
        end.send(answer)


@contextmanager
def job_of(count: int, folder: Path) -> Iterator[Job]:
    job = Job(count, folder)
    try:
        yield job
    finally:
        job.end()
