"""Who is in which shard and slice, and what a deletion makes void: the bookkeeping of SISA, without any training.

Slices of a shard are cumulative: the checkpoint of slice r has seen slices 0 … r. Taking a sample out of slice r so
voids the checkpoints r, r + 1, … of its shard and no other.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from unweave.errors import DataError, StoreError
from unweave.files import write_atomically

FORMAT = "unweave.sisa"
VERSION = 1


@dataclass(frozen=True)
class Slice:
    """The samples that a slice adds, and the file of its checkpoint (None where the shard has no sample yet)."""

    ids: tuple[int, ...]
    file: str | None = None


@dataclass(frozen=True)
class Shards:
    """All shards, each a tuple of slices, and how often some of it was trained."""

    shards: tuple[tuple[Slice, ...], ...]
    generation: int = 0

    @staticmethod
    def deal(ids: Iterable[int], shards: int, slices: int, seed: int) -> Shards:
        """Deal samples out at random, as evenly as possible.

        Raises:
            DataError: an id twice, ids that are not integers, or fewer samples than slices.
        """
        known = checked_ids(ids)
        if len(known) < shards * slices:
            raise DataError(f"{len(known)} samples for {shards} shards of {slices} slices. Use fewer of them.")
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).tolist()
        mixed = torch.tensor([known[i] for i in order])
        return Shards(
            tuple(
                tuple(Slice(tuple(part.tolist())) for part in shard.tensor_split(slices))
                for shard in mixed.tensor_split(shards)
            )
        )

    def seen(self, shard: int, upto: int) -> list[int]:
        """The samples of slices 0 … upto."""
        return [i for part in self.shards[shard][: upto + 1] for i in part.ids]

    @property
    def files(self) -> set[str]:
        """The checkpoints that count."""
        return {part.file for shard in self.shards for part in shard if part.file is not None}

    def __len__(self) -> int:
        return sum(len(part.ids) for shard in self.shards for part in shard)

    def without(self, ids: Iterable[int]) -> tuple[Shards, dict[int, int]]:
        """The same without some samples, and for each shard that had any of them the first slice that is void.

        Raises:
            DataError: an id that is not there (or not any more), twice, or none at all.
        """
        gone = set(checked_ids(ids))
        unknown = gone - {i for shard in self.shards for part in shard for i in part.ids}
        if unknown:
            shown = ", ".join(map(str, sorted(unknown)[:5]))
            raise DataError(
                f"{len(unknown)} of these ids are in no shard: {shown}. Pass ids that were fitted and stay."
            )
        void = {
            number: next(r for r, part in enumerate(shard) if gone & set(part.ids))
            for number, shard in enumerate(self.shards)
            if any(gone & set(part.ids) for part in shard)
        }
        left = tuple(
            tuple(replace(part, ids=tuple(i for i in part.ids if i not in gone)) for part in shard)
            for shard in self.shards
        )
        return replace(self, shards=left), void

    def save(self, path: Path, config: dict[str, Any]) -> None:
        """Write to a JSON file, atomically."""
        shards = [[{"ids": list(part.ids), "file": part.file} for part in shard] for shard in self.shards]
        content = {"format": FORMAT, "version": VERSION, "config": config, "generation": self.generation}
        write_atomically(path, json.dumps(content | {"shards": shards}).encode())

    @staticmethod
    def load(path: str | PathLike[str]) -> tuple[Shards, dict[str, Any]]:
        """Shards and configuration from what :meth:`save` wrote.

        Raises:
            StoreError: missing, damaged, or something else.
        """
        try:
            content = json.loads(Path(path).read_text("utf-8"))
            if (content["format"], content["version"]) != (FORMAT, VERSION):
                raise ValueError(f"{content['format']} version {content['version']}")
            shards = tuple(
                tuple(Slice(tuple(map(int, part["ids"])), part["file"]) for part in shard)
                for shard in content["shards"]
            )
            return Shards(shards, int(content["generation"])), dict(content["config"])
        except OSError as error:
            raise StoreError(
                f"Cannot read {path}: {error.strerror or error}. Pass a folder that fit() wrote."
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path} is damaged or something else ({error}). Restore it or fit again.") from error


def checked_ids(ids: Iterable[int]) -> list[int]:
    """Ids as a list of ints.

    Raises:
        DataError: none, one that is no integer, or one that is there twice.
    """
    try:
        listed = [int(torch.as_tensor(i).item()) if isinstance(i, torch.Tensor) else i for i in ids]
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"The ids cannot be read ({error}). Supported: integers, one a sample.") from error
    for i in listed:
        if isinstance(i, bool) or not hasattr(i, "__index__"):
            raise DataError(f"Invalid id: {i!r}. Supported: integers, one a sample.")
    plain = [i.__index__() for i in listed]
    if not plain:
        raise DataError("No ids. Pass at least one sample.")
    ((most, times),) = Counter(plain).most_common(1)
    if times > 1:
        raise DataError(f"Id {most} is there {times} times. Pass every sample once.")
    return plain


def slice_epochs(slices: int, epochs: int) -> list[int]:
    """Epochs of each slice, ⌊2e (r + 1) / (R + 1)⌋ − ⌊2e r / (R + 1)⌋: as much work as e epochs on the whole shard.

    Slice r trains on (r + 1)/R of the shard, and Σ (r + 1)/R · 2e/(R + 1) = e.
    """
    upto = [2 * epochs * r // (slices + 1) for r in range(slices + 1)]
    return [after - before for before, after in itertools.pairwise(upto)]
