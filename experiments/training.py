"""Augmentation on the device, and training with Adam, which is not captured."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.images import Labelled
from experiments.recipes import Recipe


def train_adam(
    net: nn.Module, data: Labelled, recipe: Recipe, seed: int, before_a_step: Callable[[], None]
) -> nn.Module:
    """The authors' recipe for ResNet-18: Adam, exponential decay an epoch, crop and mirror; a step at a time.

    Weight decay is coupled. Forward and backward run in bfloat16 on a GPU (the weights stay float32).
    """
    device = data.x.device
    order = torch.Generator(device).manual_seed(seed)
    steps = torch.optim.Adam(net.parameters(), lr=recipe.lr, betas=(0.9, 0.999), weight_decay=recipe.weight_decay)
    decay = torch.optim.lr_scheduler.ExponentialLR(steps, (recipe.lr_end / recipe.lr) ** (1 / recipe.epochs))
    for _ in range(recipe.epochs):
        for chosen in torch.randperm(len(data), generator=order, device=device).split(recipe.batch_size):
            x = augment(data.x[chosen], recipe.padding, order)
            before_a_step()
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = F.cross_entropy(net(x.contiguous(memory_format=torch.channels_last)), data.y[chosen])
            steps.zero_grad()
            loss.backward()
            steps.step()
        decay.step()
    return net.eval()


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


@torch.no_grad()
def error(net: nn.Module, data: Labelled) -> float:
    """Percent wrong, in float32."""
    wrong = sum(int((net(x).argmax(1) != y).sum()) for x, y in data.batches())
    return 100.0 * wrong / len(data)
