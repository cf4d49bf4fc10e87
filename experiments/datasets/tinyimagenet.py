"""TinyImageNet as uint8 arrays, from the folder ``tiny-imagenet-200`` or an archive of it.

Classes are numbered by sorted WordNet id, training images are sorted by path and validation images by name, as an image
folder sorts them. Pixels depend on the JPEG decoder, so the files' bytes are hashed, one after the other in that order.
"""

from __future__ import annotations

import io
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from experiments.datasets.archives import check, members, require, sha256
from unweave.errors import StoreError

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
ARCHIVE = "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"
"""SHA-256 of the file there."""
REMEDY = (
    "Name the data set with --data (unweave bench: --tinyimagenet, Python: source=): the folder tiny-imagenet-200 or a "
    f"tar or zip of it; or let unweave reproduce --download (Python: download=True) get {URL}."
)

SHA256 = {
    "train files": "8fc2447ce99b257629fda5314600cd07cc331d8fbe5d86fbaf8b3afa1fed8d74",
    "train labels": "ea210d0631a1703a399d3ce6b0385a74205edbc55b873e2ad7d7fff6dd1bd8e3",
    "test files": "cdd607f09d3090fccf5259f1972ed1a55afa677e31d2850c594c3cc21a9c5b5f",
    "test labels": "2f3900265fe0ee27943e3ee0923556e842d643e593b1d0cbf0371b48a12036c1",
}
"""Of the JPEG files' bytes and of uint8 labels [N]; "test" is the official validation set, as the paper uses it."""

ANNOTATIONS = "val/val_annotations.txt"
WANTED = re.compile(r"(?:^|/)((?:train|val)/(?:[^/]+/){1,2}[^/]+\.JPEG|val/val_annotations\.txt)$")
SIZE = 64
CHUNK = 500
"""Images a thread decodes before it asks for more."""


def read(source: Path, expected: dict[str, str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Pixels [N, 64, 64, 3] and labels [N] of both parts, and the hashes named in :data:`SHA256`.

    Raises:
        StoreError: files are missing, damaged or not those of TinyImageNet.
    """
    found = members(source, WANTED)
    train = {name: content for name, content in found.items() if name.startswith("train/")}
    if not train:
        raise StoreError(f"{source} lacks train/<class>/images/*.JPEG. {REMEDY}")
    classes = {wnid: i for i, wnid in enumerate(sorted({name.split("/")[1] for name in train}))}
    val = _validation(found, source)
    if unknown := sorted({wnid for wnid, _ in val.values()} - set(classes)):
        raise StoreError(f"{source} has validation images of {unknown[0]}, but no train/{unknown[0]}. {REMEDY}")
    labels = {
        "train labels": np.array([classes[name.split("/")[1]] for name in train], dtype=np.uint8),
        "test labels": np.array([classes[wnid] for wnid, _ in val.values()], dtype=np.uint8),
    }
    images = {"train": list(train.values()), "test": [content for _, content in val.values()]}
    hashes = {f"{part} files": sha256(*contents) for part, contents in images.items()}
    hashes |= {name: sha256(array.tobytes()) for name, array in labels.items()}
    check(hashes, expected, source, REMEDY)
    pixels = {f"{part} pixels": decode(contents, source) for part, contents in images.items()}
    return {**pixels, **labels}, hashes


def _validation(found: dict[str, bytes], source: Path) -> dict[str, tuple[str, bytes]]:
    """Class and content of each validation image by its name: as published, or already laid into class folders."""
    paths = sorted((name for name in found if name.startswith("val/") and name != ANNOTATIONS), key=_file_name)
    if not paths:
        raise StoreError(f"{source} lacks val/images/*.JPEG. {REMEDY}")
    if all(path.split("/")[1] != "images" for path in paths):
        return {_file_name(path): (path.split("/")[1], found[path]) for path in paths}
    require(found, [ANNOTATIONS], source, REMEDY)
    rows = [line.split("\t") for line in found[ANNOTATIONS].decode("utf-8", "replace").splitlines()]
    classes = {row[0]: row[1] for row in rows if len(row) > 1}
    require(classes, [_file_name(path) for path in paths], source / ANNOTATIONS, REMEDY)
    return {_file_name(path): (classes[_file_name(path)], found[path]) for path in paths}


def _file_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def decode(contents: list[bytes], source: Path) -> np.ndarray:
    """JPEG files → uint8 [N, 64, 64, 3], grey ones with three equal channels; a thread for each processor.

    Raises:
        StoreError: a file is damaged or of another size.
    """
    pixels = np.empty((len(contents), SIZE, SIZE, 3), dtype=np.uint8)

    def some(start: int) -> None:
        for i in range(start, min(start + CHUNK, len(contents))):
            try:
                with Image.open(io.BytesIO(contents[i])) as image:
                    pixels[i] = np.asarray(image.convert("RGB"))
            except (OSError, ValueError) as error:
                raise StoreError(
                    f"Image {i} in {source} is truncated or damaged ({error}). Expected: a JPEG of {SIZE} × {SIZE} "
                    f"pixels. {REMEDY}"
                ) from error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(some, range(0, len(contents), CHUNK)))
    return pixels
