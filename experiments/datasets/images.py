"""Labelled images on a device: what every experiment trains on, forgets and is judged by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

MEAN, STD = (0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023)
"""The authors' normalisation, for both data sets."""

AT_ONCE = 10_000
"""Images normalised at a time: TinyImageNet as float32 is 4.9 GB, and the steps in between need not be as large."""


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
    """The training set, and the held-out images in the paper's two halves; TinyImageNet has the same form."""

    train: Labelled
    val: Labelled
    test: Labelled
    classes: int = 10


def labelled(pixels: np.ndarray, labels: np.ndarray, device: torch.device) -> Labelled:
    """Normalise and move: uint8 pixels [N, H, W, 3] and labels [N] → float32 [N, 3, H, W] and int64 [N]."""
    n, height, width, channels = pixels.shape
    x = torch.empty(n, channels, height, width, device=device)
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))
    for start in range(0, n, AT_ONCE):
        part = torch.tensor(pixels[start : start + AT_ONCE], device=device).permute(0, 3, 1, 2).float() / 255
        x[start : start + AT_ONCE] = (part - mean) / std
    return Labelled(x, torch.from_numpy(labels.astype(np.int64)).to(device))


@torch.no_grad()
def error(net: nn.Module, data: Labelled) -> float:
    """Percent wrong, in float32."""
    wrong = sum(int((net(x).argmax(1) != y).sum()) for x, y in data.batches())
    return 100.0 * wrong / len(data)
