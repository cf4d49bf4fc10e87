"""What a result was made by, written beside every number."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

import torch

import unweave


def provenance() -> dict[str, object]:
    """Commit, versions, hardware and date of this run."""
    commit = commit_of(Path(__file__).parent)
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        # A checkout without its history (a copy on another machine) is told its commit by the environment.
        "commit": os.environ.get("UNWEAVE_COMMIT") or commit,
        "unweave": unweave.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def commit_of(folder: Path) -> str:
    """The commit a checkout is at; "unknown" for a folder without its history."""
    words = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
