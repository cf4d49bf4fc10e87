"""What an outcome was made by: asked once a process, kept with every outcome."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import torch


@functools.cache
def made_by(device: torch.device) -> dict[str, object]:
    """Commit, versions, hardware and date; ``benchmarks/provenance.py`` is a script's file and no package's."""
    path = Path(__file__).resolve().parent.parent / "benchmarks" / "provenance.py"
    spec = importlib.util.spec_from_file_location("provenance", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, object] = module.provenance()
    return {**found, "device": str(device)}
