"""The ids of a request: a file with one a line, or a ``.npy`` of integers, as positions in a source.

An id is a position (0, 1, …), or for image folders also a file name relative to the folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unweave.cli.configfile import nearest
from unweave.cli.sources import Source
from unweave.errors import DataError

COMMENT = re.compile(r"(^|\s)#.*")
MEANT = "Supported: one id per line ('#' begins a comment), or a .npy of integers."


@dataclass(frozen=True)
class Entry:
    """One id as it stands in the file, and where."""

    text: str
    where: str


def read_ids(path: Path, source: Source) -> list[int]:
    """The positions in the source of the ids in a file, in the order of the file.

    Raises:
        DataError: a file that is missing, unreadable or empty; an id that is out of range, unknown, or there twice.
    """
    entries = _from_npy(path) if path.suffix == ".npy" else _from_text(path, source.names or ())
    if not entries:
        raise DataError(f"{path} holds no ids. {MEANT}")
    places = {name: position for position, name in enumerate(source.names or ())}
    first: dict[int, Entry] = {}
    for entry in entries:
        position = _position(entry, source, places)
        if position in first:
            earlier = first[position]
            raise DataError(
                f"{path}: {entry.where} ({entry.text}) is the sample that {earlier.where} ({earlier.text}) named "
                "before. Name every sample once."
            )
        first[position] = entry
    return list(first)


def _from_npy(path: Path) -> list[Entry]:
    try:
        ids = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"Cannot read the ids in {path}: {error}. {MEANT}") from error
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise DataError(f"{path} holds {ids.dtype} of shape {list(ids.shape)}. Supported: integers of shape [n].")
    return [Entry(str(value), f"element {i}") for i, value in enumerate(ids.tolist())]


def _from_text(path: Path, names: Sequence[str]) -> list[Entry]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"Cannot read the ids in {path}: {error.strerror}. {MEANT}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"Cannot read the ids in {path}: no text in UTF-8. {MEANT}") from error
    known = set(names)
    entries = []
    for number, line in enumerate(lines, start=1):
        # A file name may hold a '#' itself; a line that is a name as it stands has no comment.
        text = line.strip() if line.strip() in known else COMMENT.sub("", line).strip()
        if text:
            entries.append(Entry(text, f"line {number}"))
    return entries


def _position(entry: Entry, source: Source, places: dict[str, int]) -> int:
    if entry.text in places:
        return places[entry.text]
    try:
        position = int(entry.text)
    except ValueError:
        raise _unknown(entry, source) from None
    if position < 0 or (source.size is not None and position >= source.size):
        raise DataError(
            f"Id {position} ({entry.where}) is out of range: {source.what} has the samples 0 to "
            f"{'…' if source.size is None else source.size - 1}."
        )
    return position


def _unknown(entry: Entry, source: Source) -> DataError:
    if source.names is None:
        return DataError(f"Invalid id {entry.text!r} ({entry.where}). Supported for {source.what}: integers from 0.")
    hint = nearest(entry.text, source.names, shown=5)
    return DataError(f"Unknown file name {entry.text!r} ({entry.where}) in {source.what}.{hint}")
