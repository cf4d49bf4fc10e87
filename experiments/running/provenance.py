"""What an outcome was made by: asked once a process, kept with every outcome."""

from __future__ import annotations

import functools

import torch

from benchmarks.provenance import provenance


@functools.cache
def made_by(device: torch.device) -> dict[str, object]:
    """Commit, versions, hardware and date."""
    return {**provenance(), "device": str(device)}
