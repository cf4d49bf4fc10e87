"""Ctrl-C while the command line loads PyTorch, which takes a second or two. Nothing here takes long to import."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

UNCHANGED = "nothing was changed"


def is_command() -> bool:
    """Whether this process is our command: the installed script, or ``python -m unweave``."""
    if not sys.argv or sys.argv[0] != "-m":
        return bool(sys.argv) and os.path.splitext(os.path.basename(sys.argv[0]))[0] == "unweave"
    # With -m the package is imported before its __main__ is found, and until then argv[0] is "-m".
    _, _, after = " ".join(sys.orig_argv).partition(" -m ")
    return after.partition(" ")[0].partition(".")[0] == "unweave"


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C inside ends our command with one line and exit code 130; whoever else imports us is left alone.

    The package imports PyTorch before any function of it can be called, so ``main`` comes too late to catch this.
    """
    if not is_command() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    """End at once: a KeyboardInterrupt that is raised amid imports may be swallowed there, or decide the exit code."""
    os.write(2, f"unweave: interrupted; {UNCHANGED}.\n".encode())
    os._exit(130)
