"""Augmentation on the device: a random crop and a random mirror for each image."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def augment(x: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """A random crop of the zero-padded image and a random mirror, for each image its own; [N, C, H, W] → the same."""
    n, channels, height, width = x.shape
    device = x.device
    padded = F.pad(x, (padding,) * 4)
    top, left, mirrored = (draw[:, None] for draw in draw_crops(n, padding, generator))
    columns = torch.arange(width, device=device).expand(n, width)
    columns = torch.where(mirrored, width - 1 - columns, columns) + left
    rows = torch.arange(height, device=device).expand(n, height) + top
    index = rows[:, :, None] * padded.shape[3] + columns[:, None, :]
    picked = padded.flatten(2).gather(2, index.reshape(n, 1, -1).expand(n, channels, -1))
    return picked.reshape(n, channels, height, width)


def draw_crops(n: int, padding: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Top and left of each crop in the padded image, 0 … 2·padding, and whether it is mirrored; all [N]."""
    top, left = torch.randint(0, 2 * padding + 1, (2, n, 1), generator=generator, device=generator.device)
    mirrored = torch.rand(n, 1, generator=generator, device=generator.device) < 0.5
    return top.squeeze(1), left.squeeze(1), mirrored.squeeze(1)


def as_they_are(n: int, padding: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The crops that are the images themselves, not mirrored, in the form of :func:`draw_crops`; nothing is drawn."""
    middle = torch.full((n,), padding, device=generator.device)
    return middle, middle, torch.zeros(n, dtype=torch.bool, device=generator.device)
