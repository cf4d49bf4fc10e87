"""Processes that share a folder: what only one of them may do at a time."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path


def has_locks() -> bool:
    """Whether processes can tell what others are at; not on Windows."""
    return importlib.util.find_spec("fcntl") is not None


@contextlib.contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Wait until nobody else is inside with the same file. Who dies inside lets go, so nothing is left to clean up.

    On a system without such locks (Windows) nobody waits: there, let one process at a time use a folder.

    Raises:
        OSError: the file cannot be made, or its file system has no locks.
    """
    with claimed(lock, wait=True):
        yield


@contextlib.contextmanager
def claimed(lock: Path, *, wait: bool = False) -> Iterator[bool]:
    """Whether nobody else is inside with the same file, which is always so for who waits. As :func:`one_at_a_time`."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield True
        return
    with open(lock, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except BlockingIOError:
            mine = False
        yield mine
