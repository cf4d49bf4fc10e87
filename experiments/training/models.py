"""The paper's three networks, as its code builds them, and a small one to try an experiment with."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn


def allcnn(classes: int = 10, width: int = 96) -> nn.Module:
    """AllCNN: eight convolutions without bias, each with batch norm and ReLU; 1,620,010 parameters for 10 classes."""
    wide = 2 * width
    plan = [(width, 3, 1), (width, 3, 1), (wide, 3, 2), *[(wide, 3, 1)] * 2, (wide, 3, 2), (wide, 3, 1), (wide, 1, 1)]
    stages: list[nn.Module] = []
    channels_in = 3
    for channels, kernel, stride in plan:
        conv = nn.Conv2d(channels_in, channels, kernel, stride, padding=kernel // 2, bias=False)
        stages.append(nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(channels), relu=nn.ReLU())))
        channels_in = channels
    head = (nn.AvgPool2d(8), nn.Flatten(), nn.Linear(wide, classes))
    return nn.Sequential(OrderedDict(features=nn.Sequential(*stages), head=nn.Sequential(*head)))


def smallvgg(classes: int = 10) -> nn.Module:
    """SmallVGG: three convolutions and two linear layers with biases; 5,681,674 parameters for 10 classes."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(3, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(128)),
            conv2=nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(256)),
            conv3=nn.Sequential(nn.Conv2d(256, 512, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(512), nn.MaxPool2d(2)),
            flatten=nn.Sequential(nn.Flatten(), nn.Dropout(0.5)),
            linear1=nn.Sequential(nn.Linear(8192, 512), nn.ReLU(), nn.BatchNorm1d(512)),
            linear2=nn.Linear(512, classes),
        )
    )


def quicknet(classes: int = 10) -> nn.Module:
    """A network for a look at an experiment on a CPU: it learns 1,000 images of 32 pixels by heart in two seconds."""
    stages: list[nn.Module] = []
    for channels_in, channels in ((3, 16), (16, 32), (32, 64)):
        conv = nn.Conv2d(channels_in, channels, 3, 2, padding=1, bias=False)
        stages.append(nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(channels), relu=nn.ReLU())))
    hidden = (nn.Flatten(), nn.Dropout(0.1), nn.Linear(1024, 128), nn.BatchNorm1d(128), nn.ReLU())
    head = nn.Sequential(*hidden, nn.Linear(128, classes))
    return nn.Sequential(OrderedDict(features=nn.Sequential(*stages), head=head))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut; parameter names as torchvision's."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != channels:
            shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(self.bn2(self.conv2(y)) + shortcut)
        return out


class ResNet18(nn.Module):
    """ResNet-18 with the ImageNet stem; parameter names as torchvision's; 11,279,112 parameters for 200 classes."""

    def __init__(self, classes: int = 200) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels_in = 64
        for i, channels in enumerate((64, 128, 256, 512), start=1):
            stride = 1 if i == 1 else 2
            blocks = (BasicBlock(channels_in, channels, stride), BasicBlock(channels, channels, 1))
            self.add_module(f"layer{i}", nn.Sequential(*blocks))
            channels_in = channels
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for i in range(1, 5):
            x = self.get_submodule(f"layer{i}")(x)
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits
