"""A convolution of small maps is the same as a product of its patches, in the memory format it would have had."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from helpers import gap
from hypothesis import given
from test_layers import convolutions, normal
from torch import Tensor, nn

from unweave.arithmetic import small_maps
from unweave.arithmetic.small_maps import as_product, is_small
from unweave.reading.rest import at_rest

FORMATS = [torch.contiguous_format, torch.channels_last]


@given(case=convolutions().filter(lambda case: isinstance(case[0], nn.Conv2d) and case[0].groups == 1))
def test_a_product_gives_the_outputs_of_any_convolution(case: tuple[nn.Conv2d, Tensor]) -> None:
    conv, x = case
    conv, x = conv.double(), (x if x.dim() == 4 else x[None]).double()
    assert gap(as_product(conv, x, conv.weight, conv.bias), conv(x)) < 1e-12


@pytest.mark.parametrize("of_weight", FORMATS)
@pytest.mark.parametrize("of_input", FORMATS)
def test_outputs_lie_in_memory_as_they_would_have(
    of_weight: torch.memory_format, of_input: torch.memory_format
) -> None:
    conv = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=of_weight)  # type: ignore[call-overload]
    x = normal(2, 3, 4, 4).float().contiguous(memory_format=of_input)
    assert as_product(conv, x, conv.weight, conv.bias).stride() == conv(x).stride()


@pytest.mark.parametrize("side, small", [(2, True), (4, True), (5, False)])
def test_maps_of_sixteen_pixels_are_small(side: int, small: bool) -> None:
    assert is_small(nn.Conv2d(3, 4, 3, padding=1), torch.empty(2, 3, side, side)) == small


@pytest.mark.parametrize(
    "other",
    [
        nn.Conv2d(4, 4, 3, padding=1, stride=2),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 1),
    ],
)
def test_other_convolutions_stay_as_they_are(other: nn.Conv2d) -> None:
    assert not is_small(other, torch.empty(2, 4, 2, 2))


def test_a_model_at_rest_is_told_and_afterwards_is_as_it_was() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1))
    before = dict(vars(net[0]))
    for convolutions_in, told in (("ieee", True), ("tf32", False), (None, False)):
        with at_rest(net, convolutions=convolutions_in):
            assert ("_conv_forward" in vars(net[0])) == told
        assert vars(net[0]) == before


def test_a_convolution_with_a_forward_of_its_own_keeps_it() -> None:
    class Own(nn.Conv2d):
        def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return super()._conv_forward(x, 2 * weight, bias)

    with at_rest(Own(3, 4, 3)) as net:
        assert "_conv_forward" not in vars(net)


def test_a_module_with_a_forward_of_its_own_keeps_it() -> None:
    net, x = nn.Conv2d(3, 4, 3, padding=1), normal(2, 3, 2, 2).float()
    own = lambda x, weight, bias: nn.functional.conv2d(x, 2 * weight, bias, padding=1)  # noqa: E731
    net._conv_forward = own  # type: ignore[method-assign]
    expected = net(x)
    with at_rest(net):
        assert net._conv_forward is own
        assert torch.equal(net(x), expected)


@pytest.mark.parametrize("side", [1, 2])
def test_maps_below_the_kernel_are_left_to_pytorch_which_says_so(side: int) -> None:
    assert not is_small(nn.Conv2d(3, 2, 3), torch.empty(2, 3, side, side))


def test_nothing_is_different_on_a_cpu() -> None:
    net, x = nn.Conv2d(3, 4, 3, padding=1), normal(2, 3, 2, 2).float()
    with mock.patch.object(small_maps, "as_product", side_effect=AssertionError), at_rest(net):
        assert torch.equal(net(x), nn.functional.conv2d(x, net.weight, net.bias, padding=1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="for GPUs")
@pytest.mark.parametrize("layout", FORMATS)
def test_a_gpu_multiplies(layout: torch.memory_format) -> None:
    net = nn.Conv2d(64, 32, 3, padding=1).cuda().to(memory_format=layout)  # type: ignore[call-overload]
    x = normal(9, 64, 4, 4).float().cuda().contiguous(memory_format=layout)
    expected = nn.functional.conv2d(x.double(), net.weight.double(), net.bias.double(), padding=1)
    with mock.patch.object(small_maps, "as_product", side_effect=as_product) as used, at_rest(net):
        assert gap(net(x), expected) < 1e-6
    assert used.called
    with mock.patch.object(small_maps, "as_product", side_effect=AssertionError), at_rest(net, gradients=True):
        net(x).sum().backward()
