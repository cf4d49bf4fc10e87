"""Small data sets in the forms that people have the real ones in."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
PER_BATCH = 20


def cifar() -> dict[str, np.ndarray]:
    """As CIFAR-10, with 20 images a batch: two of each class."""
    rng = np.random.default_rng(0)
    labels = np.concatenate([rng.permutation(np.arange(PER_BATCH, dtype=np.uint8) % 10) for _ in BATCHES])
    pixels = rng.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    cut = 5 * PER_BATCH
    return {
        "train pixels": pixels[:cut],
        "train labels": labels[:cut],
        "test pixels": pixels[cut:],
        "test labels": labels[cut:],
    }


def _each_batch(arrays: dict[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    pixels = np.concatenate([arrays["train pixels"], arrays["test pixels"]]).reshape(6, PER_BATCH, 32, 32, 3)
    labels = np.concatenate([arrays["train labels"], arrays["test labels"]]).reshape(6, PER_BATCH)
    return {name: (pixels[i], labels[i]) for i, name in enumerate(BATCHES)}


def python2_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """{"data": uint8 [N, 3072], "labels": list}, written opcode by opcode as Python 2 wrote the official files."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    kind = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    shape = number(rows.shape[0]) + number(rows.shape[1]) + b"\x86"
    array = empty + b"(" + number(1) + shape + kind + b"\x89" + text(rows.tobytes()) + b"tb"
    listed = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def pickles(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {f"cifar-10-batches-py/{name}": python2_pickle(*batch) for name, batch in _each_batch(arrays).items()}


def sheets(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    files = {}
    for name, (pixels, _) in _each_batch(arrays).items():
        content = io.BytesIO()
        Image.fromarray(pixels.reshape(-1, 1024, 3)).save(content, "PNG")
        files[f"package/{name}.png"] = content.getvalue()
    for part in ("train", "test"):
        files[f"package/{part}_lables.json"] = json.dumps(arrays[f"{part} labels"].tolist()).encode()
    return files


def tiny() -> dict[str, bytes]:
    """As tiny-imagenet-200, with two classes of 12 training images; the first of each class is grey."""
    rng = np.random.default_rng(1)
    files = {}

    def jpeg(grey: bool) -> bytes:
        content = io.BytesIO()
        pixels = rng.integers(0, 256, (64, 64) if grey else (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(content, "JPEG", quality=95)
        return content.getvalue()

    for wnid in ("n02", "n01"):
        files |= {f"tiny-imagenet-200/train/{wnid}/images/{wnid}_{i}.JPEG": jpeg(i == 0) for i in range(12)}
        files[f"tiny-imagenet-200/train/{wnid}/{wnid}_boxes.txt"] = b"not an image"
    files |= {f"tiny-imagenet-200/val/images/val_{i}.JPEG": jpeg(False) for i in range(12)}
    rows = [f"val_{i}.JPEG\t{'n02' if i % 3 == 0 else 'n01'}\t0\t0\t9\t9\n" for i in reversed(range(12))]
    files["tiny-imagenet-200/val/val_annotations.txt"] = "".join(rows).encode()
    files["tiny-imagenet-200/test/images/test_0.JPEG"] = jpeg(False)
    return files


def in_class_folders(files: dict[str, bytes]) -> dict[str, bytes]:
    """The validation images of TinyImageNet laid into a folder for each class, without the list of classes."""
    moved = {}
    for name, content in files.items():
        if "/val/images/" in name:
            i = int(name.split("_")[1].removesuffix(".JPEG"))
            moved[name.replace("/val/images/", f"/val/{'n02' if i % 3 == 0 else 'n01'}/images/")] = content
        elif "annotations" not in name:
            moved[name] = content
    return moved


def as_folder(files: dict[str, bytes], where: Path) -> Path:
    for name, content in files.items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return where / next(iter(files)).split("/")[0]


def as_tar(files: dict[str, bytes], where: Path) -> Path:
    """Compressed where the name says so."""
    with tarfile.open(where, "w:gz" if where.suffix in (".gz", ".tgz") else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return where


def as_zip(files: dict[str, bytes], where: Path) -> Path:
    with zipfile.ZipFile(where, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return where
