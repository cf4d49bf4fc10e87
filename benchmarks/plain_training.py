"""A recipe written down plainly: what somebody who follows PyTorch's own examples would write, and no worse.

A step is crops and mirrors, a forward pass, a backward pass and ``optimiser.step()``, one kernel at a time, by
PyTorch's defaults: in float32, with TF32 in a GPU's convolutions. The images are on the device already, so nothing
waits for a loader. Batches, rates and weight decay are those of :func:`experiments.training.fast.train_recipe`, which
trains the same network with compiled and captured steps in bfloat16; what is random is drawn in another order.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from experiments.data import Labelled
from experiments.training.augmentation import augment
from experiments.training.fast import rates_of
from experiments.training.recipes import Recipe


def train_plainly(recipe: Recipe, data: Labelled, seed: int) -> nn.Module:
    """A trained network in eval mode; images of an epoch that fill no batch are left out, as by the fast way."""
    device = data.x.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        net = recipe.build().to(device).train()
        draws = torch.Generator(device).manual_seed(seed)
        whole = len(data) // recipe.batch_size * recipe.batch_size
        rates = iter(rates_of(recipe, recipe.epochs * whole // recipe.batch_size))
        optimiser = _optimiser(recipe, net)
        for epoch in range(recipe.epochs):
            plain = epoch >= recipe.epochs - recipe.plain_epochs
            for chosen in torch.randperm(len(data), generator=draws, device=device)[:whole].split(recipe.batch_size):
                optimiser.param_groups[0]["lr"] = next(rates)
                optimiser.zero_grad()
                x = data.x[chosen] if plain else augment(data.x[chosen], recipe.padding, draws)
                F.cross_entropy(net(x), data.y[chosen]).backward()
                optimiser.step()
    return net.eval()


def _optimiser(recipe: Recipe, net: nn.Module) -> torch.optim.Optimizer:
    if recipe.optimiser == "adam":
        return torch.optim.Adam(net.parameters(), recipe.lr, weight_decay=recipe.weight_decay)
    decay, nesterov = recipe.weight_decay, recipe.is_nesterov
    return torch.optim.SGD(net.parameters(), recipe.lr, 0.9, weight_decay=decay, nesterov=nesterov)
