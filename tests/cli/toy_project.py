"""What the tests of the command line share: a tiny network, its data, and what a command left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

CLASSES = ("ant", "bee", "cat", "dog")
POISONED = 8
"""The first so many training samples have the label of the next class."""

NET = """
from torch import nn

def build(width=64):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.ReLU(), nn.Linear(width, 4))
"""

TOML = """
[model]
factory = "toy_net:build"
weights = "model.safetensors"
device = "cpu"

[data]
train = "train.npz"
val = "val.npz"
batch_size = 64
"""


def build(width: int = 64) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.ReLU(), nn.Linear(width, 4))


@dataclass(frozen=True)
class Toy:
    """uint8 images [N, 8, 8, 3], labels, and the weights trained on them."""

    x: np.ndarray
    y: np.ndarray
    val_x: np.ndarray
    val_y: np.ndarray
    weights: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, Any]:
        return json.loads(self.out)


Cli = Callable[..., Outcome]


def files(folder: Path) -> set[str]:
    """Every file below a folder, hidden ones too, but for compiled modules."""
    found = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return {name for name in found if "__pycache__" not in name}
