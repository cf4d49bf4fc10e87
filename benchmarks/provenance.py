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
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        # A checkout without its history (a copy on another machine) is told its commit by the environment.
        "commit": os.environ.get("UNWEAVE_COMMIT") or commit or "unknown",
        "unweave": unweave.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }
