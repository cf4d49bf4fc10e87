"""What a way to forget hands back to an experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Outcome:
    """A network that was made to forget, and how that went."""

    net: nn.Module
    seconds: float | None
    """Of the request, None where it was not timed (``Work.crowded``); what was prepared before is in ``story``."""
    story: dict[str, Any]
