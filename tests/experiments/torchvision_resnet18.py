"""The state dict of torchvision's ``resnet18(num_classes=classes)``: names and shapes, for where torchvision is not.

Written down from its published structure: a stem, four layers of two blocks, a classifier; the first block of layers 2
to 4 has a shortcut of its own. A batch norm stands in a line for its five entries.
"""

from __future__ import annotations

STEM = """
conv1.weight 64 3 7 7
bn1 64
"""
LAYERS = """
layer1.0.conv1.weight 64 64 3 3
layer1.0.bn1 64
layer1.0.conv2.weight 64 64 3 3
layer1.0.bn2 64
layer1.1.conv1.weight 64 64 3 3
layer1.1.bn1 64
layer1.1.conv2.weight 64 64 3 3
layer1.1.bn2 64
layer2.0.conv1.weight 128 64 3 3
layer2.0.bn1 128
layer2.0.conv2.weight 128 128 3 3
layer2.0.bn2 128
layer2.0.downsample.0.weight 128 64 1 1
layer2.0.downsample.1 128
layer2.1.conv1.weight 128 128 3 3
layer2.1.bn1 128
layer2.1.conv2.weight 128 128 3 3
layer2.1.bn2 128
layer3.0.conv1.weight 256 128 3 3
layer3.0.bn1 256
layer3.0.conv2.weight 256 256 3 3
layer3.0.bn2 256
layer3.0.downsample.0.weight 256 128 1 1
layer3.0.downsample.1 256
layer3.1.conv1.weight 256 256 3 3
layer3.1.bn1 256
layer3.1.conv2.weight 256 256 3 3
layer3.1.bn2 256
layer4.0.conv1.weight 512 256 3 3
layer4.0.bn1 512
layer4.0.conv2.weight 512 512 3 3
layer4.0.bn2 512
layer4.0.downsample.0.weight 512 256 1 1
layer4.0.downsample.1 512
layer4.1.conv1.weight 512 512 3 3
layer4.1.bn1 512
layer4.1.conv2.weight 512 512 3 3
layer4.1.bn2 512
"""
NORM = ("weight", "bias", "running_mean", "running_var")


def shapes(classes: int) -> dict[str, tuple[int, ...]]:
    """Name → shape of all 122 entries."""
    found = dict[str, tuple[int, ...]]()
    for line in (STEM + LAYERS).split("\n"):
        name, _, numbers = line.partition(" ")
        size = tuple(map(int, numbers.split()))
        if len(size) == 1:
            found |= {f"{name}.{part}": size for part in NORM} | {f"{name}.num_batches_tracked": ()}
        elif name:
            found[name] = size
    return found | {"fc.weight": (classes, 512), "fc.bias": (classes,)}
