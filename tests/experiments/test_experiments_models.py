"""The paper's networks have its parameter counts, and augmentation is what it says."""

from __future__ import annotations

import pytest
import torch

from experiments.training.augmentation import augment
from experiments.training.models import ResNet18, allcnn, smallvgg


@pytest.mark.parametrize(
    ("build", "parameters", "size"), [(allcnn, 1_620_010, 32), (smallvgg, 5_681_674, 32), (ResNet18, 11_279_112, 64)]
)
def test_the_network_has_the_papers_number_of_parameters_and_runs(build, parameters: int, size: int) -> None:
    net = build().eval()
    assert sum(p.numel() for p in net.parameters()) == parameters
    with torch.no_grad():
        assert net(torch.randn(2, 3, size, size)).shape[0] == 2


def test_resnet_has_torchvisions_parameter_names() -> None:
    names = set(ResNet18().state_dict())
    assert {
        "conv1.weight",
        "bn1.running_mean",
        "layer2.0.downsample.1.bias",
        "layer4.1.conv2.weight",
        "fc.bias",
    } <= names
    assert len(names) == 122


def test_augmentation_shifts_and_mirrors_each_image_by_itself() -> None:
    x = torch.arange(1.0, 65.0).reshape(1, 1, 8, 8).expand(400, 1, 8, 8)
    generator = torch.Generator().manual_seed(0)
    padded = torch.nn.functional.pad(x[0], (2,) * 4)
    crops = {
        padded[:, t : t + 8, left : left + 8].contiguous().numpy().tobytes() for t in range(5) for left in range(5)
    }
    crops |= {
        padded[:, t : t + 8, left : left + 8].flip(2).contiguous().numpy().tobytes()
        for t in range(5)
        for left in range(5)
    }
    seen = {image.contiguous().numpy().tobytes() for image in augment(x, 2, generator)}
    assert seen <= crops
    assert len(seen) > 45, "nearly all of the 50 crops should turn up in 400 draws"
