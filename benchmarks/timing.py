"""Seconds by the wall clock, with the device's work waited for, and how they are summed up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch


def wait(device: str) -> None:
    """Until the device has done what it was given; the CPU always has."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], Any], device: str, repeats: int, warm: int = 1) -> tuple[Any, list[float]]:
    """The last outcome, and the seconds of every repeat after the first ``warm`` ones, which load kernels."""
    made, taken = None, []
    for _ in range(warm + repeats):
        wait(device)
        began = time.perf_counter()
        made = work()
        wait(device)
        taken.append(time.perf_counter() - began)
    return made, taken[warm:]


def summed_up(taken: Sequence[float]) -> dict[str, Any]:
    """Median, least and most, and the seconds themselves."""
    return {"median": statistics.median(taken), "min": min(taken), "max": max(taken), "seconds": list(taken)}
