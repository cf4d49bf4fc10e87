"""The ways a request may be walked, and which of them is kept: one way, but for wrong labels mostly two.

How many core directions of the last linear layer wrong labels may rescale depends on what they did to it, and nobody
can tell beforehand. On the demonstration's network, where a tenth of the labels is wrong, rescaling all of them ruins
clean samples; on a SmallVGG half of whose labels are wrong, half of them bring back less than all. So with a validation
set both are walked, and the one with the lower validation error is kept; without one, the careful one is walked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from unweave.config import ForgetConfig
from unweave.fit import Progress
from unweave.loop import Ending
from unweave.result import Look

HALF, WHOLE = 0.5, 1.0
"""Of the core of the last linear layer."""


@dataclass(frozen=True)
class Way:
    """Settings of which nothing is open, and how many directions of the last linear layer they rescale."""

    config: ForgetConfig
    width: int = 0


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
    def rank(self) -> tuple[bool, float]:
        """The lower, the better: a target that was reached, then its validation error, or how little is forgotten."""
        val_error = math.inf if self.final.val_error is None else self.final.val_error
        return not self.ending.ok, val_error if self.ending.ok else -self.final.forget_error


def rescaled(config: ForgetConfig, share: float, core: int) -> int:
    """So many of the ``core`` directions of the last linear layer are rescaled with that share of them."""
    return min(config.trust, int(share * core))


def ways_of(config: ForgetConfig, core: int, *, watched: bool) -> list[Way]:
    """The ways to try, the careful one first.

    Args:
        config: resolved.
        core: directions in the core of the last linear layer; 0 where there is none that moves.
        watched: whether there are held-out samples to judge by.
    """
    if config.task != "poison":
        return [Way(config)]
    shares = [HALF, WHOLE] if config.trust_share is None else [config.trust_share]
    ways = [Way(replace(config, trust_share=share), rescaled(config, share, core)) for share in shares]
    return ways if watched and len({way.width for way in ways}) > 1 else ways[:1]


def better_of(ways: Sequence[Way], walk: Callable[[ForgetConfig], Walked]) -> Walked:
    """Walk the ways one after the other and keep the best; where there are several, its words say what became of each.

    Several are those of a request that looks at held-out samples, see :func:`ways_of`.
    """
    best = walk(ways[0].config)
    if len(ways) == 1 or best.unmoved:
        return best
    told = [_outcome(ways[0], best)]
    for way in ways[1:]:
        other = walk(way.config)
        told.append(_outcome(way, other))
        best = min(best, other, key=lambda one: one.rank)
    words = f"{best.ending.words} Core directions of the last layer that were rescaled: {' or '.join(told)}"
    return replace(best, ending=replace(best.ending, words=f"{words}; the better was kept."))


def counted_on(progress: Progress) -> Progress:
    """Progress of several walks as that of one: epochs count on where the walk before ended."""
    before = last = 0

    def tell(what: str, done: int, most: int | None) -> None:
        nonlocal before, last
        before, last = before + last if done <= last else before, done
        progress(what, before + done, None if most is None else before + most)

    return tell


def _outcome(way: Way, walked: Walked) -> str:
    reached = "" if walked.ending.ok else ", not done"
    return f"{way.width} (validation error {walked.final.val_error:.2f} %{reached})"
