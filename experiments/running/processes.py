"""Processes of our own that share the jobs of one folder (see ``shares``), started, stopped and waited for as one.

Each begins anew ("spawn"): a GPU's state does not survive a fork. They end with who started them, by whatever way that
ends, and are interrupted once: what an interruption lets them keep is not cut short by a second one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from types import FrameType

import torch

from unweave.errors import UnweaveError

Part = Callable[[int], None]
"""What the process of a number, from 1 on, does."""


def side_by_side(part: Part, count: int) -> list[int]:
    """Run a function, which pickle must be able to name, in so many processes; the exit code of each, in order.

    The processors are divided among them. What a process says of its failure is on its stderr.

    Raises:
        KeyboardInterrupt: here; it is passed on, and raised again when all have ended.
    """
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // count)
    processes = [context.Process(target=_begin, args=(part, number, threads)) for number in range(1, count + 1)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    except KeyboardInterrupt:
        for process in processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGINT)
        for process in processes:
            if process.pid is not None:
                process.join()
        raise
    return [process.exitcode or 0 for process in processes]


def _begin(part: Part, number: int, threads: int) -> None:
    """In the new process. A KeyboardInterrupt that the part lets through ends it with the shell's code for that."""
    signal.signal(signal.SIGINT, _interrupted_once)
    threading.Thread(target=_end_with_who_started_us, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        part(number)
    except UnweaveError as error:
        sys.exit(f"process {number}: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupted_once(number: int, frame: FrameType | None) -> None:
    """A terminal tells every process of a Ctrl-C, and who started us passes it on: it may come twice."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_who_started_us() -> None:
    starter = multiprocessing.parent_process()
    assert starter is not None
    wait([starter.sentinel])
    os.kill(os.getpid(), signal.SIGINT)


def told_by(number: int) -> Callable[[str], None]:
    """A way to say things that names the process."""
    return lambda text: print(f"[{number}] {text}", flush=True)
