"""The command line on several processes: ``torchrun --nproc-per-node N -m unweave fit``.

Every rank runs the command on its share of the data. Rank 0 alone writes and prints; the others are silent but for
their own errors.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unweave.errors import ConfigError

COMMANDS = ("fit", "forget")
"""What several processes can do together."""


def under_torchrun() -> bool:
    """Whether a launcher has started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ and "MASTER_ADDR" in os.environ


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return not under_torchrun() or os.environ["RANK"] == "0"


@contextmanager
def joined(command: str) -> Iterator[None]:
    """Be one of the ranks inside; nothing without a launcher.

    Raises:
        ConfigError: a command that runs on one process.
        SystemExit: the launcher ends this rank, because another one failed; files are cleaned up on the way.
    """
    if not under_torchrun():
        yield
        return
    if command not in COMMANDS:
        raise ConfigError(f"'unweave {command}' runs on one process. On several run: {', '.join(COMMANDS)}.")
    import torch
    import torch.distributed as dist

    signal.signal(signal.SIGTERM, _ended)
    gpu = torch.cuda.is_available() and torch.cuda.device_count() > int(os.environ.get("LOCAL_RANK", "0"))
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
    with open(os.devnull, "w") as nowhere:
        silent: Any = contextlib.nullcontext() if is_first() else contextlib.redirect_stdout(nowhere)
        with silent:
            yield
    dist.destroy_process_group()


def on_rank() -> str:
    """Where a message comes from, in words; nothing on one process."""
    return f" on rank {os.environ['RANK']}" if under_torchrun() else ""


def _ended(*_: object) -> None:
    print(
        f"unweave: error{on_rank()}: ended by the launcher, because another rank failed or somebody cancelled the job. "
        "Nothing was written.",
        file=sys.stderr,
    )
    raise SystemExit(143)
