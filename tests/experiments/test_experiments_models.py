"""The paper's networks have its parameter counts, and augmentation is what it says."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torchvision_resnet18 import shapes

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


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items()}


def checkpoint(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Made up: every number is another, and batch norms could have these variances."""
    generator = torch.Generator().manual_seed(0)
    counted = {name: torch.tensor(7) for name, shape in shapes.items() if shape == ()}
    return {name: 1 + torch.rand(shape, generator=generator) for name, shape in shapes.items()} | counted


def test_what_is_written_down_of_torchvisions_resnet_has_its_published_number_of_parameters() -> None:
    parameters = {name: shape for name, shape in shapes(1000).items() if "running" not in name and shape}
    assert sum(map(math.prod, parameters.values())) == 11_689_512, "of ResNet18_Weights.IMAGENET1K_V1"


@pytest.mark.parametrize("classes", [200, 1000])
def test_resnet_has_torchvisions_names_and_shapes_so_that_its_checkpoints_load(classes: int) -> None:
    net, state = ResNet18(classes), checkpoint(shapes(classes))
    assert shapes_of(net.state_dict()) == shapes(classes)
    net.load_state_dict(state, strict=True)
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_resnet_with_torchvisions_weights_says_what_torchvisions_says() -> None:
    models = pytest.importorskip("torchvision.models", reason="torchvision is no requirement")
    torch.manual_seed(0)
    theirs = models.resnet18(num_classes=200).eval()
    assert shapes_of(theirs.state_dict()) == shapes(200)
    for name, value in theirs.state_dict().items():
        if "running" in name:
            value.uniform_(0.5, 1.5)  # fresh ones are 0 and 1, and may stand in one another's place
    ours = ResNet18(200).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


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
