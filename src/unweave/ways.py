"""The ways a request may be walked, and which of them is kept: one way, but for wrong labels two.

How much of the last linear layer a few wrong labels may rescale is a question of what they did to it. Where a tenth of
the labels is wrong and known by heart, the layer is right about everything else, and rescaling all of its core ruins
clean samples. Where half of the labels are wrong, the layer itself has learnt them, and rescaling half of its core
brings little back. Only held-out samples can tell, so both are walked and the one with the lower validation error is
kept; without a validation set, the careful one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from torch import nn

from unweave.config import ForgetConfig
from unweave.loop import Ending
from unweave.result import Look

HALF, WHOLE = 0.5, 1.0
"""Of the core of the last linear layer."""


@dataclass(frozen=True)
class Walked:
    """A way, walked to its end."""

    config: ForgetConfig
    net: nn.Module
    history: list[Look]
    ending: Ending
    final: Look

    @property
    def unmoved(self) -> bool:
        """Whether there was nothing to do, so that no other way would do anything."""
        return self.ending.ok and len(self.history) == 1

    @property
    def val_error(self) -> float:
        """Of the end; infinite where nobody looked."""
        return math.inf if self.final.val_error is None else self.final.val_error


def ways_of(config: ForgetConfig, *, watched: bool) -> list[ForgetConfig]:
    """The settings to try, the careful ones first; ``watched``: there are held-out samples to judge them by."""
    if config.task != "poison" or config.trust_share is not None:
        return [config]
    shares = (HALF, WHOLE) if watched and config.trust else (HALF,)
    return [replace(config, trust_share=share) for share in shares]


def better_of(ways: Iterable[ForgetConfig], walk: Callable[[ForgetConfig], Walked]) -> Walked:
    """Walk every way and keep one: that reached its target before one that did not, then the lower validation error.

    Where several were walked, its words say what became of each.
    """
    every = list[Walked]()
    for way in ways:
        every.append(walk(way))
        if every[-1].unmoved:
            break
    kept = min(every, key=lambda one: (not one.ending.ok, one.val_error))
    if len(every) == 1:
        return kept
    tried = " and ".join(f"{one.config.trust_share:.0%} ({_outcome(one)})" for one in every)
    words = f"{kept.ending.words} Shares of the last layer's core that were rescaled: {tried}; the better was kept."
    return replace(kept, ending=replace(kept.ending, words=words))


def _outcome(one: Walked) -> str:
    reached = "" if one.ending.ok else ", not done"
    return f"validation error {one.val_error:.2f} %{reached}"
