"""Train one of the paper's networks with the data set and its augmentation on the device."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.images import Labelled


def train(
    net: nn.Module,
    data: Labelled,
    *,
    seed: int,
    epochs: int = 100,
    lr: float = 0.01,
    lr_end: float = 0.0005,
    batch_size: int = 256,
    weight_decay: float = 1e-4,
    padding: int = 4,
    optimiser: Literal["sgd", "adam"] = "sgd",
) -> nn.Module:
    """The authors' recipe: SGD with momentum 0.9 or Adam, exponential decay an epoch, crop and mirror.

    The defaults are those of AllCNN; the other networks' are in ``experiments.recipes``. Weight decay is
    coupled. Forward and backward run in bfloat16 on a GPU (the weights stay float32).
    """
    device = data.x.device
    net = net.to(device, memory_format=torch.channels_last)
    order = torch.Generator(device).manual_seed(seed)
    steps: torch.optim.Optimizer
    if optimiser == "adam":
        steps = torch.optim.Adam(net.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=weight_decay)
    else:
        steps = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=weight_decay)
    decay = torch.optim.lr_scheduler.ExponentialLR(steps, (lr_end / lr) ** (1 / epochs))
    for _ in range(epochs):
        net.train()
        for chosen in torch.randperm(len(data), generator=order, device=device).split(batch_size):
            x = augment(data.x[chosen], padding, order)
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
