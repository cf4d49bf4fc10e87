"""What every baseline promises: one signature, one kind of answer, and a plain statement of what data it needs.

A method is called as :func:`unweave.forget` is, with the data it needs in place of the Grams::

    result = scrub(model, forget_loader, retain_loader, val=val_loader, config=ScrubConfig(epochs=5))

The model passed in is left untouched. Loaders yield ``(inputs, labels)`` and are iterated once an epoch, so one that
shuffles or augments does so anew each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from unweave.errors import UnknownNameError

NEEDS = ("forget", "retain", "training", "val", "true labels", "first weights", "importances", "checkpoints", "trainer")
"""What a method may need at the time of a request; "importances" and "checkpoints" were kept at training time."""


@dataclass(frozen=True)
class BaselineResult:
    """The outcome of a baseline: the fields of :class:`unweave.ForgetResult` that make sense for any method."""

    model: nn.Module
    """A new model in eval mode; the one passed in is untouched."""
    history: list[dict[str, float]]
    """One entry an epoch or step, with what the method knows: losses, errors in percent, learning rate, seconds."""
    stopped: str
    """Why it stopped, in plain words."""
    ok: bool
    """False where the method had to give up: values that are not finite, a target not reached."""
    config: Any
    """The settings that were used."""
    seconds: float
    extras: dict[str, Any] = field(default_factory=dict)
    """What only this method has to say."""


@dataclass(frozen=True)
class Method:
    """One baseline: how it is called, and what it asks for."""

    name: str
    title: str
    """As it is written in a table."""
    run: Callable[..., BaselineResult]
    config: type
    """Its settings, a frozen dataclass whose defaults are those of the method's authors for CIFAR-10."""
    needs: frozenset[str]
    """With its default settings; :meth:`needs_with` says what it needs with others."""
    source: str
    """Authors, venue, year."""
    also: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Setting that is off by default → what the method needs beside that where it is on."""

    def __post_init__(self) -> None:
        unknown = (self.needs | set(self.also.values())) - set(NEEDS)
        if unknown:
            raise ValueError(f"{self.name} needs {sorted(unknown)}. Known: {', '.join(NEEDS)}.")

    def needs_with(self, config: Any) -> frozenset[str]:
        """What it needs with these settings, one of ``self.config``."""
        return self.needs | {need for setting, need in self.also.items() if getattr(config, setting)}


class Methods(dict[str, Method]):
    """Methods by name; a dict whose error for an unknown name says which there are."""

    def __missing__(self, name: object) -> Method:
        """``[name]`` for a name that is not there: raises UnknownNameError, which is a KeyError too."""
        raise UnknownNameError(f"Unknown baseline: {name!r}. Supported: {', '.join(self)}.")
