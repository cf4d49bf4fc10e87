"""What a benchmark is told, and the document it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance

Document = dict[str, Any]
NETWORKS = ("allcnn", "smallvgg", "resnet18")
DEMO = "demo"
"""The network of the demonstration, or one like it: small enough for a CPU."""


@dataclass(frozen=True)
class Options:
    """The same for every benchmark; each takes what it needs."""

    device: str = "cpu"
    quick: bool = False
    """Small enough for two CPU cores and a few seconds; the numbers say nothing."""
    repeats: int = 5
    slow_repeats: int = 5
    """Of what takes long: retraining, the plain version, the authors' code, other methods; groups of ensemble."""
    limit: float | None = None
    """Seconds that the plain request and each other method may take before they are cut off."""
    reference_limit: float | None = None
    """Seconds that the authors' script may take, and their pass by itself."""
    networks: tuple[str, ...] = ()
    """Of side-by-side and training; empty: those that the device is made for."""
    others: tuple[str, ...] | None = None
    """Of the baselines; None: all of them."""
    epochs: int = 30
    """Of side-by-side: of training and retraining with the fast trainer."""
    threads: int | None = None
    """Of gram on a CPU; None: one, whose seconds are the processor's own, which other programs do not lengthen."""
    reference: Path | None = None
    """A checkout of the authors' repository."""
    cifar10: Path | None = None
    tinyimagenet: Path | None = None
    seed: int = 0
    keep: Callable[[Document], None] = field(default=lambda unfinished: None, compare=False)
    """Called with what there is so far, by benchmarks that take long: a run that is cut short leaves something."""

    def wanted(self) -> tuple[str, ...]:
        """The networks that were named, or else the paper's on a GPU and the demonstration's on a CPU."""
        return self.networks or ((DEMO,) if self.device == "cpu" else NETWORKS)

    def as_dict(self) -> dict[str, Any]:
        """Plain values without the machine's paths: only whether they were given."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "keep"}
        plain |= {name: getattr(self, name) is not None for name in ("reference", "cifar10", "tinyimagenet")}
        return plain | {"networks": list(self.networks), "others": None if self.others is None else list(self.others)}


def document(name: str, options: Options, began: float, **content: Any) -> Document:
    """A result with what it was made by; ``began`` is ``time.perf_counter()`` at the start."""
    return {
        "benchmark": name,
        "made_by": provenance(),
        "settings": options.as_dict(),
        "seconds": time.perf_counter() - began,
        **content,
    }
