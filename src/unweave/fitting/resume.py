"""A pass that can go on after a crash: every so many batches a rank adds what it has to a file of its own.

The sums of a stretch of batches (a *shard*) are closed, added to the rank's total and written, with the number of
batches done. A restart reads the total, skips those batches and goes on. Shards end at fixed batches, so a pass that
was interrupted adds up the same numbers in the same order as one that was not: the result is the same to the last bit.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from unweave.distributed import rank, ranks
from unweave.errors import ConfigError, MismatchError, StoreError
from unweave.grams import LayerGrams
from unweave.store import load_with_notes, save_grams

REMEDY = "Resume with what the pass began with, or name an empty folder to begin anew."


class Kept:
    """A rank's total so far and its file ``fit-RANK-of-RANKS.safetensors``."""

    def __init__(self, folder: str | PathLike[str], every: int, first: str) -> None:
        """Read what is there.

        Args:
            folder: made if it is not there.
            every: batches in a shard.
            first: the digest of the rank's first batch ("": it has none).

        Raises:
            ConfigError: ``every`` below 1.
            StoreError: the folder cannot be made, or a file in it is damaged.
            MismatchError: sums of other data, of shards of another length, or of another number of ranks.
        """
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ConfigError(f"Invalid save_every: {every!r}. Supported: a number of batches from 1.")
        self.every, self.first = every, first
        self.total: LayerGrams | None = None
        self.batches = 0
        self.path = _made(folder) / f"fit-{rank()}-of-{ranks()}.safetensors"
        others = sorted(p.name for p in self.path.parent.glob("fit-*-of-*.safetensors"))
        strangers = [name for name in others if not name.endswith(f"-of-{ranks()}.safetensors")]
        if strangers:
            raise MismatchError(f"{folder} holds {strangers[0]}, but the ranks are {ranks()} now. {REMEDY}")
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        self.total, notes = load_with_notes(self.path)
        causes = {"first batch": " (other samples, another order of them, or another batch size, --batch-size)"}
        for what, here in (("first batch", self.first), ("save_every", str(self.every))):
            if notes.get(what) != here:
                raise MismatchError(
                    f"{self.path} was made with another {what}: {notes.get(what)} there, {here} here"
                    f"{causes.get(what, '')}. {REMEDY}"
                )
        self.batches = int(notes["batches"])

    def require_same_origin(self, empty: LayerGrams) -> None:
        """Refuse a total that cannot go on with what these (empty) Grams are of.

        Raises:
            MismatchError: of another model, layers, transform or stride.
        """
        if self.total is not None:
            try:
                self.total.require_same_origin(empty, "resume")
            except MismatchError as error:
                raise MismatchError(f"{self.path}: {error} {REMEDY}") from error

    def add(self, shard: LayerGrams, batches: int) -> None:
        """Close a shard after so many batches of the share, and write the total."""
        shard = shard.to("cpu")
        if shard.samples:
            self.total = shard if self.total is None else self.total + shard
            self.batches = batches
            notes = {"batches": str(batches), "first batch": self.first, "save_every": str(self.every)}
            save_grams(self.total, self.path, notes=notes)

    def finished(self, last: LayerGrams) -> LayerGrams:
        """The total once the share is through, with its last, shorter shard.

        That is not written: a pass that dies now, waiting for other ranks, begins again at the shard before. (Were it
        on record, a resumed pass over a share that has grown would add up other shards than one that never stopped.)
        """
        last = last.to("cpu")
        if self.total is None:
            return last
        return self.total + last if last.samples else self.total

    def remove(self) -> None:
        """The sums are in other hands now."""
        self.path.unlink(missing_ok=True)


def _made(folder: str | PathLike[str]) -> Path:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"Cannot make {folder}: {error.strerror or error}. Choose another place.") from error
    return Path(folder)
