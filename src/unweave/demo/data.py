"""5,000 real images from CIFAR-10, shipped with the package without loss: 300 + 100 + 100 of each class.

Taken in the order of the official files: the first 300 training images of each class, the first 100 test images of
each class for validation, the next 100 for testing. A sheet holds 50 images a row, sorted by class.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unweave.errors import StoreError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = 0.4734, 0.2516
"""Of all pixels; one number each is enough for a demonstration."""

SHEETS = {
    "train": (
        ("cifar10-train-0-4.webp", "cifar10-train-5-9.webp"),
        "7ca750a99fcc989418dd1d850c643a91d0dff7df3a2136b0bde4abcb4c55a723",
    ),
    "val": (("cifar10-val.webp",), "7c38c61aa8c7f1716d28cda247fd6f77a8db4bc051de264382e94804d47bce91"),
    "test": (("cifar10-test.webp",), "e6183a19cd0105b0abb482bf922cb99c5cd2821377460ef53604c93ad67d03df"),
}
"""For each split its sheets, and the SHA-256 of its pixels as uint8 [N, 32, 32, 3]."""


@dataclass
class Images:
    """Normalised images [N, 3, 32, 32] and labels [N]."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def where(self, chosen: Tensor) -> Images:
        """Some of them, copied, so that they do not keep the others in memory."""
        return Images(self.x[chosen].clone(), self.y[chosen].clone())

    def batches(self, size: int = 250) -> list[tuple[Tensor, Tensor]]:
        """As a loader: a list of ``(images, labels)``."""
        return list(zip(self.x.split(size), self.y.split(size), strict=True))


def pixels(split: str) -> np.ndarray:
    """The raw pixels of a split, uint8 [N, 32, 32, 3], checked against the known hash.

    Raises:
        StoreError: the packaged file is damaged.
    """
    names, expected = SHEETS[split]
    parts = []
    for name in names:
        with Image.open(Path(__file__).parent / name) as sheet:
            grid = np.asarray(sheet.convert("RGB"))
        rows = grid.shape[0] // 32
        parts.append(grid.reshape(rows, 32, 50, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3))
    images = np.concatenate(parts)
    if hashlib.sha256(images.tobytes()).hexdigest() != expected:
        raise StoreError(f"The demonstration's images ({', '.join(names)}) are damaged. Install the package again.")
    return images


def load(split: str) -> Images:
    """A split, ready for the network."""
    raw = torch.from_numpy(pixels(split)).permute(0, 3, 1, 2).float()
    labels = torch.arange(len(CLASSES)).repeat_interleave(len(raw) // len(CLASSES))
    return Images(((raw / 255 - MEAN) / STD).contiguous(), labels)
