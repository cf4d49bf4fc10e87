"""Processes of our own that share the jobs of one folder (see ``shares``), started, stopped and waited for as one.

Each begins anew ("spawn"): a GPU's state does not survive a fork. A Ctrl-C, of which a terminal tells every process, is
for who started them: they ignore it and are told by SIGTERM, once, which is a KeyboardInterrupt there. They end with
who started them, by whatever way that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

import torch

from unweave.cli.main import code_of
from unweave.errors import ConfigError, UnweaveError

Part = Callable[[int], None]
"""What the process of a number, from 1 on, does."""
Say = Callable[[str], None]
GRACE = 60.0
"""Seconds for a process to keep what it has, once who started it is gone."""


def side_by_side(part: Part, count: int, say: Say) -> list[int]:
    """Run a function, which pickle must be able to name, in so many processes; the exit code of each, in order.

    The threads of this one are divided among them. A process says on its stderr why it failed; of one that was killed
    and could not, we say so. The code is 130 where the function was interrupted, and a command's where it raised an
    error of ours.

    Raises:
        ConfigError: they cannot be started.
        KeyboardInterrupt: here; it is passed on, and raised again when all have ended. A second one kills them.
    """
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // count)
    processes = [context.Process(target=_begin, args=(part, number, threads)) for number in range(1, count + 1)]
    try:
        for process in processes:
            process.start()
        _wait_for(processes, say)
    except BaseException as error:
        _end([process for process in processes if process.pid is not None])
        if isinstance(error, OSError):
            raise ConfigError(f"Cannot start {count} processes ({error}). Give fewer --processes.") from error
        raise
    return [process.exitcode or 0 for process in processes]


def _wait_for(processes: Sequence[SpawnProcess], say: Say) -> None:
    running: dict[Any, tuple[int, SpawnProcess]] = {p.sentinel: (i, p) for i, p in enumerate(processes, start=1)}
    while running:
        for sentinel in wait(list(running)):
            number, process = running.pop(sentinel)
            process.join()
            if (process.exitcode or 0) < 0:
                say(f"process {number} was ended by signal {-(process.exitcode or 0)}; the others take up its jobs")


def _end(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            process.join()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _begin(part: Part, number: int, threads: int) -> None:
    """In the new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupted_once)
    try:
        threading.Thread(target=_end_with_who_started_us, daemon=True).start()
        torch.set_num_threads(threads)
        part(number)
    except UnweaveError as error:
        print(f"process {number}: error: {error}", file=sys.stderr, flush=True)
        sys.exit(code_of(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupted_once(number: int, frame: FrameType | None) -> None:
    """What an interruption lets a process keep is not cut short by another: it may be told by several."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_who_started_us() -> None:
    starter = multiprocessing.parent_process()
    assert starter is not None
    wait([starter.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)  # a thread that ends with the process
    os._exit(1)


def told_by(number: int) -> Say:
    """A way to say things that names the process."""
    return lambda text: print(f"[{number}] {text}", flush=True)
