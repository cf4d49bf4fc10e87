"""Small relatives of the paper's networks, for ``--quick``: the same kinds of layers and names, seconds on a CPU."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from experiments.training.models import BasicBlock


def quick_allcnn(classes: int = 10) -> nn.Module:
    """Convolutions alone, one of them strided, with batch norm."""
    stages: list[nn.Module] = []
    for channels_in, channels, stride in ((3, 12, 2), (12, 24, 2), (24, 24, 1)):
        conv = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        stages.append(nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(channels), relu=nn.ReLU())))
    head = (nn.AvgPool2d(4), nn.Flatten(), nn.Linear(96, classes))
    return nn.Sequential(OrderedDict(features=nn.Sequential(*stages), head=nn.Sequential(*head)))


def quick_smallvgg(classes: int = 10) -> nn.Module:
    """Convolutions and linear layers with biases, pooling and dropout."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.BatchNorm2d(12)),
            conv2=nn.Sequential(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(24)),
            flatten=nn.Sequential(nn.Flatten(), nn.Dropout(0.2)),
            linear1=nn.Sequential(nn.Linear(384, 64), nn.ReLU(), nn.BatchNorm1d(64)),
            linear2=nn.Linear(64, classes),
        )
    )


class QuickResNet(nn.Module):
    """A stem, four residual blocks and a classifier, under the names of ResNet-18's blocks."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        for i, (channels_in, channels) in enumerate(((8, 8), (8, 12), (12, 16), (16, 24)), start=1):
            self.add_module(f"layer{i}", nn.Sequential(BasicBlock(channels_in, channels, 1 if i == 1 else 2)))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        for i in range(1, 5):
            x = self.get_submodule(f"layer{i}")(x)
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits
