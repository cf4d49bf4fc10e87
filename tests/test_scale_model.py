"""The networks of docs/scale.md are the ones they are said to be, and a plan for many GPUs adds up."""

from __future__ import annotations

import pytest
import torch

from benchmarks import scale_check, scale_model, scale_nets


@pytest.mark.parametrize(
    "build, parameters",
    [
        (scale_nets.resnet50, 25_557_032),
        (scale_nets.VisionTransformer, 304_326_632),
        (scale_nets.Decoder, 6_738_415_616),
    ],
)
def test_a_network_has_the_number_of_parameters_it_should(build, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in build().parameters()) == parameters


def test_a_plan_divides_the_pass_and_nothing_else() -> None:
    net = scale_model.cost_of(
        "ResNet-50", scale_nets.resnet50, torch.empty(8, 3, 224, 224, device="meta"), precision="float32"
    )
    assert net.forward_flop == pytest.approx(8.18e9, rel=0.01)
    assert sum(layer.gram_bytes for layer in net.layers) == net.gram_bytes
    assert 0.5 < net.triangle_bytes / net.gram_bytes < 0.54
    one, many = scale_model.plan(net, 1_281_167, 1), scale_model.plan(net, 1_281_167, 256)
    assert one.grams / many.grams == pytest.approx(256, rel=1e-3)
    assert one.reduction == one.sent == 0 < many.reduction
    assert one.eigh > many.eigh == pytest.approx(scale_model.EIGH[4608])


def test_the_check_times_the_pass_and_the_fetching_apart() -> None:
    def build() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(300, 200), torch.nn.ReLU(), torch.nn.Linear(200, 64)
        )

    found = scale_check.fit_seconds(build, torch.randn(64, 3, 10, 10), 2)
    assert set(found) == {"fit s", "forward s", "two batches s", "fetching s"}
