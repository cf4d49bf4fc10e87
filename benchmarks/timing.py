"""Seconds by the wall clock, with the device's work waited for, an end for what takes too long, and how they add up."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch


def wait(device: str) -> None:
    """Until the device has done what it was given; the CPU always has."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def timed(
    work: Callable[[], Any], device: str, repeats: int, warm: int = 1, limit: float | None = None
) -> tuple[Any, list[float]]:
    """The last outcome, and the seconds of every repeat after the first ``warm`` ones, which load kernels.

    Raises:
        OverTimeError: one of them had not ended after ``limit`` seconds.
    """
    made, taken = None, []
    for _ in range(warm + repeats):
        wait(device)
        began = time.perf_counter()
        with at_most(limit):
            made = work()
            wait(device)
        taken.append(time.perf_counter() - began)
    return made, taken[warm:]


class OverTimeError(TimeoutError):
    """What was being timed had not ended when its time was over."""


@contextmanager
def at_most(seconds: float | None) -> Iterator[None]:
    """End what runs inside after so many seconds, by an alarm of the process; None: let it run.

    The alarm rings between two lines of Python: what a GPU was given before is still done.

    Raises:
        OverTimeError: it had not ended.
    """

    def ring(*_: object) -> NoReturn:
        raise OverTimeError(f"cut off after {seconds:g} s")

    if seconds is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def summed_up(taken: Sequence[float]) -> dict[str, Any]:
    """Median, least and most, and the seconds themselves."""
    return {"median": statistics.median(taken), "min": min(taken), "max": max(taken), "seconds": list(taken)}
