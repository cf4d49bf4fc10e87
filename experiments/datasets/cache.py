"""A data set's uint8 arrays in one file, made once from whatever a person has and checked each time it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from experiments.datasets.archives import sha256
from unweave.errors import StoreError
from unweave.files import write_atomically

FORMAT = "unweave.dataset.1"


def cache_folder(given: Path | None = None) -> Path:
    """Where data sets are kept: the argument, else $UNWEAVE_DATA, else ~/.cache/unweave."""
    if given is not None:
        return Path(given)
    return Path(os.environ.get("UNWEAVE_DATA") or Path.home() / ".cache" / "unweave").expanduser()


def make_folder(folder: Path) -> Path:
    """Make it, if need be.

    Raises:
        StoreError: that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"Cannot make {folder}: {error.strerror}. Name a folder you may write to, or set UNWEAVE_DATA to one."
        ) from error
    return folder


def write(path: Path, arrays: Mapping[str, np.ndarray], source: Mapping[str, str]) -> None:
    """Keep the arrays, the source's hashes and the arrays' own; the same arrays give the same bytes."""
    content = {name: sha256(np.ascontiguousarray(array).data.cast("B")) for name, array in arrays.items()}
    make_folder(path.parent)
    described = json.dumps({"format": FORMAT, "source": source, "content": content}, sort_keys=True)
    write_atomically(path, save({name: arrays[name] for name in sorted(arrays)}, {"unweave": described}))


def read(path: Path, source: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The arrays, if they are whole and were made from the source with these hashes.

    Raises:
        StoreError: they are not.
    """
    remedy = "Delete it; it is made again from the data set."
    try:
        with safe_open(path, framework="np") as file:
            about = json.loads((file.metadata() or {})["unweave"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        known = about["format"] == FORMAT
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise StoreError(f"{path} is truncated or no cache of a data set ({error}). {remedy}") from error
    if not known or about["source"] != dict(source):
        raise StoreError(f"{path} was made from other files or by another version: {about.get('source')}. {remedy}")
    found = {name: sha256(array.data.cast("B")) for name, array in arrays.items()}
    if found != about["content"]:
        raise StoreError(f"{path} is damaged: SHA-256 {found}, expected {about['content']}. {remedy}")
    return arrays
