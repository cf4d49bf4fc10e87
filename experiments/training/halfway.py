"""Trainings that were interrupted go on where they were: a file with all that the next step depends on.

A network's weights and statistics, what its optimiser remembers, how many steps it took, and where its dropout's
generator is. Which images are in which batch follows from the seed. Kept once in a while, and on a GPU also when the
user interrupts; a network that goes on from there is the one that an uninterrupted training makes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from unweave.files import write_atomically

FORMAT = {"format": "2"}
"""Of the tensors' names: a file of another one is not gone on from."""
EVERY = 60.0
"""Seconds between two times: what a crash costs at most, and longer than the networks whose time is shown take."""


@dataclass(frozen=True)
class Halfway:
    """Where the progress of one network is kept. ``about`` is all that it depends on beside the file's own place."""

    path: Path
    about: Mapping[str, str]

    def there(self) -> bool:
        """Whether there is progress of a training with the same settings."""
        try:
            with safe_open(self.path, "pt") as stored:
                return dict(stored.metadata()) == {**self.about, **FORMAT}
        except (OSError, SafetensorError):  # not there, or not whole: to begin anew is no loss
            return False

    def state(self) -> dict[str, Tensor] | None:
        """The tensors of then, on the CPU; None where there are none, or of other settings."""
        return load_file(self.path) if self.there() else None

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Write it, whole or not at all."""
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, save(tensors, {**self.about, **FORMAT}))

    def drop(self) -> None:
        """The network is finished."""
        self.path.unlink(missing_ok=True)


class Resumable(Protocol):
    """A training that can tell and be told where it is."""

    def state(self) -> dict[str, Tensor]: ...

    def go_on_from(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass
class Diary:
    """Trainings that run at the same time, and where each keeps its progress, or none of them does."""

    runs: Sequence[Resumable]
    pages: Sequence[Halfway]
    written: float = field(default_factory=time.monotonic)

    def read(self) -> None:
        """Let each go on from where it was, if it was begun."""
        for run, page in zip(self.runs, self.pages, strict=False):
            if (state := page.state()) is not None:
                run.go_on_from(state)

    def write(self) -> None:
        """Keep where each is."""
        for run, page in zip(self.runs, self.pages, strict=False):
            page.keep(run.state())
        self.written = time.monotonic()

    def write_if_due(self) -> None:
        """The same, if the last time is long enough ago."""
        if self.pages and time.monotonic() - self.written > EVERY:
            self.write()
