"""Training with Adam: the authors' recipe for ResNet-18, a step at a time; it is not captured."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from experiments.datasets.images import Labelled
from experiments.training.augmentation import augment
from experiments.training.recipes import Recipe


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
