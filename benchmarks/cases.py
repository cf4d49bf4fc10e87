"""The networks and data of benchmarks: the paper's three for a GPU, the demonstration's for a CPU, and a toy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import unweave
from experiments.data import Labelled, first_of_class, load_cifar10, load_tinyimagenet
from experiments.datasets.images import MEAN, STD
from experiments.training.models import ResNet18, allcnn, smallvgg
from unweave.demo import data as demo_data
from unweave.demo import network as demo_network

CIFAR10 = "CIFAR-10"
SOME_OF_CIFAR10 = "CIFAR-10, 3,000 images"
TINYIMAGENET = "TinyImageNet"
RANDOM = "random pixels"
"""Each class a random pattern, each image its class's pattern and noise: what is timed does not depend on it, but for
the number of epochs a request takes."""


@dataclass(frozen=True)
class Case:
    """A network, its data, and two requests, the second of which follows the first."""

    name: str
    build: Callable[[], nn.Module]
    train: Labelled
    val: Labelled
    first: torch.Tensor
    """Indices into the training set of what is to be forgotten …"""
    second: torch.Tensor
    """… and of what is to be forgotten after that."""
    pixels: str
    config: unweave.ForgetConfig
    papers: unweave.ForgetConfig
    """The authors' settings, for the plain baseline."""
    epochs: int
    """Of training and retraining."""
    padding: int = 4
    training_batch: int = 512

    @cached_property
    def forget(self) -> Labelled:
        return self.train.where(self.first)

    @cached_property
    def later(self) -> Labelled:
        return self.train.where(self.second)

    @cached_property
    def retain(self) -> Labelled:
        kept = torch.ones(len(self.train), dtype=torch.bool, device=self.train.x.device)
        kept[self.first] = False
        return self.train.where(kept.nonzero().squeeze(1))


def toy_net(channels: int = 8, classes: int = 4) -> nn.Module:
    """Two convolutions and a linear layer, for images of 12 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()),
        *(nn.Conv2d(channels, 2 * channels, 3, 2, padding=1, bias=False), nn.BatchNorm2d(2 * channels), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * channels, classes)),
    )


def patterns(count: int, classes: int, side: int, device: str, *, seed: int, noise: float = 1.0) -> Labelled:
    """Random pixels [count, 3, side, side], whole bytes before normalising; every seed has the same patterns."""
    shapes = torch.randn(classes, 3, 4, 4, generator=torch.Generator().manual_seed(0)).to(device)
    shapes = F.interpolate(shapes, (side, side))
    labels = torch.arange(count, device=device) % classes
    generator = torch.Generator(device).manual_seed(seed)
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD))
    parts = []
    for own in labels.split(10_000):
        x = torch.randn(len(own), 3, side, side, generator=generator, device=device).mul_(noise).add_(shapes[own])
        parts.append(x.mul_(24).add_(128).round_().clamp_(0, 255).div_(255).sub_(mean).div_(std))
    return Labelled(torch.cat(parts), labels)


def two_requests(labels: torch.Tensor, classes: Sequence[int], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``count`` samples of each class, and the ``count`` that come after them."""
    first, second = (
        torch.cat([first_of_class(labels, c, start, start + count) for c in classes]) for start in (0, count)
    )
    return first, second


def toy(device: str) -> Case:
    """Seconds on a CPU."""
    train, val = patterns(256, 4, 12, device, seed=1, noise=3.0), patterns(128, 4, 12, device, seed=2, noise=3.0)
    papers = unweave.ForgetConfig.paper("allcnn-cifar10")
    first, second = two_requests(train.y, [0], 12)
    return Case(
        "toy", toy_net, train, val, first, second, RANDOM, unweave.ForgetConfig(), papers, 12, 1, training_batch=64
    )


def demo(device: str) -> Case:
    """The demonstration's network and images: it forgets 10 of each class, then 10 more. Minutes on a CPU."""
    train, val = (Labelled(d.x.to(device), d.y.to(device)) for d in map(demo_data.load, ("train", "val")))
    first, second = two_requests(train.y, range(10), 10)
    config, papers = unweave.ForgetConfig(), unweave.ForgetConfig.paper("allcnn-cifar10")
    build, epochs = demo_network.build, demo_network.EPOCHS
    return Case("demo", build, train, val, first, second, SOME_OF_CIFAR10, config, papers, epochs, 0, training_batch=50)


def cifar10_cases(folder: Path | None, device: str, epochs: int) -> list[Case]:
    """AllCNN that forgets 500 of class 0, SmallVGG that forgets 100 of each class; random pixels without a folder."""
    if folder is None:
        train, val, pixels = patterns(50_000, 10, 32, device, seed=1), patterns(5_000, 10, 32, device, seed=2), RANDOM
    else:
        data = load_cifar10(folder, torch.device(device))
        train, val, pixels = data.train, data.val, CIFAR10
    of_one, of_each = two_requests(train.y, [0], 500), two_requests(train.y, range(10), 100)
    config, paper = unweave.ForgetConfig(), unweave.ForgetConfig.paper
    return [
        Case("allcnn", allcnn, train, val, *of_one, pixels, config, paper("allcnn-cifar10"), epochs),
        Case("smallvgg", smallvgg, train, val, *of_each, pixels, config, paper("smallvgg-cifar10"), epochs),
    ]


def tinyimagenet_case(folder: Path | None, device: str, epochs: int) -> Case:
    """ResNet-18 that forgets the first five of 200 classes, then the next five."""
    if folder is None:
        train, val, pixels = (
            patterns(100_000, 200, 64, device, seed=1),
            patterns(10_000, 200, 64, device, seed=2),
            RANDOM,
        )
    else:
        data = load_tinyimagenet(folder, torch.device(device))
        train, val, pixels = data.train, data.val, TINYIMAGENET
    first, second = (
        torch.cat([first_of_class(train.y, c, 0, 500) for c in range(start, start + 5)]) for start in (0, 5)
    )
    papers = unweave.ForgetConfig.paper("resnet18-tinyimagenet")
    config = unweave.ForgetConfig(task="classes")
    return Case("resnet18", ResNet18, train, val, first, second, pixels, config, papers, epochs, 8)
