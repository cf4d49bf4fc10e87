from __future__ import annotations

import pytest
import torch
from helpers import gap, images, small_cnn
from torch import Tensor, nn

from unweave.arithmetic.small_maps import multiply_small_maps
from unweave.gradients import per_sample
from unweave.gradients.conv_products import convolutions_as_products, patches_times_weights
from unweave.gradients.per_sample import sample_gradients
from unweave.reading.rest import at_rest


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 5, 3, padding=1), (2, 3, 8, 7)),
        (nn.Conv2d(3, 5, (3, 2), stride=(2, 3), padding=(1, 0), dilation=(2, 1), bias=False), (2, 3, 9, 8)),
        (nn.Conv2d(3, 4, 3, padding=4, padding_mode="reflect"), (2, 3, 8, 8)),
        (nn.Conv2d(3, 4, 3, padding=5), (3, 4, 4)),  # one sample without its batch, taps that see no pixel
        (nn.Conv2d(3, 4, 1, padding=2, stride=2), (2, 3, 1, 1)),
        (nn.Conv1d(4, 2, 4, padding="same"), (3, 4, 6)),
        (nn.Conv3d(2, 3, 2, stride=2), (2, 2, 4, 5, 6)),
    ],
)
def test_a_product_is_what_the_convolution_is(layer: nn.Conv2d, shape: tuple[int, ...]) -> None:
    layer, x = layer.double(), torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected, found = layer(x), patches_times_weights(layer, x)
    assert found.shape == expected.shape
    assert gap(found, expected) < 1e-12
    weight = torch.randn_like(expected)
    pairs = [torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()]) for y in (expected, found)]
    for a, b in zip(*pairs, strict=True):
        assert gap(b, a) < 1e-12


def test_gradients_of_samples_are_the_same_with_products(monkeypatch: pytest.MonkeyPatch) -> None:
    net = small_cnn().eval()
    x, _ = images(4)
    v = torch.randn(4, 3, dtype=torch.float64)

    def found() -> dict[str, Tensor]:
        with at_rest(net):
            return sample_gradients(net, dict(net.named_parameters()), x, v)

    plain = found()
    asked = list[nn.Module]()

    def as_on_a_gpu(net: nn.Module, device: torch.device) -> object:
        asked.append(net)
        return convolutions_as_products(net)

    monkeypatch.setattr(per_sample, "_fit_for_vmap", as_on_a_gpu)
    products = found()
    assert asked == [net]
    for name, expected in plain.items():
        assert gap(products[name], expected) < 1e-12


def test_products_are_for_gpus() -> None:
    net = nn.Sequential(nn.Conv2d(2, 2, 3))
    for device, changed in (("cuda", True), ("cpu", False)):
        with per_sample._fit_for_vmap(net, torch.device(device)):
            assert ("forward" in vars(net[0])) is changed


def test_a_product_is_called_and_refuses_as_the_layer_does() -> None:
    net, x = nn.Sequential(nn.Conv2d(2, 2, 3)), torch.randn(1, 2, 4, 4)
    with convolutions_as_products(net):
        assert net[0](input=x).shape == (1, 2, 2, 2)
        with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
            net(torch.randn(1, 2, 2, 2))


def test_only_plain_convolutions_change_and_all_are_given_back() -> None:
    class Own(nn.Conv2d):
        pass

    net = nn.Sequential(nn.Conv2d(2, 2, 3), Own(2, 2, 3), nn.Conv2d(2, 2, 3, groups=2))
    net.extend([nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3)])
    multiply_small_maps(net)
    net[3].forward = lambda x: x  # somebody's own
    net[4]._conv_forward = lambda x, weight, bias: x
    mine = net[3].forward
    with pytest.raises(KeyError):
        _entered(net, mine)
    assert ["forward" in vars(layer) for layer in net] == [False, False, False, True, False]


def _entered(net: nn.Sequential, mine: object) -> None:
    with convolutions_as_products(net):
        assert ["forward" in vars(layer) for layer in net] == [True, False, False, True, False]
        assert net[3].forward is mine
        raise KeyError
