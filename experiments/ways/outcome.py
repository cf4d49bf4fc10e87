"""What a way to forget hands back to an experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Outcome:
    """A network that was made to forget, and how that went."""

    net: nn.Module
    seconds: float | None
    """Of the request, None where it was not timed (``Work.crowded``); what was prepared before is in ``story``."""
    story: dict[str, Any]


def all_finite(net: nn.Module) -> bool:
    """Whether every weight and statistic is a number. One that is not would be said to err on no sample of class 0."""
    return all(bool(torch.isfinite(part).all()) for part in net.state_dict().values())
