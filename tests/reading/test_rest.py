"""A model at rest, in no mode but its own; and its fingerprint: the bytes of each tensor, however they are fetched."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import pytest
import torch
from torch import nn

from unweave.reading import rest
from unweave.reading.rest import at_rest, by_itself, bytes_of, fingerprint, products_as_convolutions


class Mixed(nn.Module):
    """Tensors of many types and shapes: none, one and many numbers, and in no order of memory."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.norm = nn.BatchNorm2d(3)  # with num_batches_tracked, an int64 without axes
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.narrow = nn.Parameter(torch.randn(5, 2, generator=draw).to(torch.bfloat16).T)
        for name, value in {
            "seen": torch.tensor([True, False, True]),
            "empty": torch.empty(0, 3),
            "single": torch.tensor(2.5, dtype=torch.float64),
            "words": torch.arange(7, dtype=torch.uint8),
        }.items():
            self.register_buffer(name, value)


def one_by_one(model: nn.Module) -> str:
    """The oracle: name, shape, type and bytes of each tensor in turn."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode() + bytes_of(value))
    return digest.hexdigest()


@pytest.mark.parametrize("at_once", [0, 1, 30, 1 << 26])
def test_how_many_bytes_are_fetched_at_once_makes_no_difference(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "FETCHED_BYTES", at_once)
    model = Mixed()
    assert fingerprint(model) == one_by_one(model)


def test_a_model_without_tensors_has_a_fingerprint() -> None:
    assert fingerprint(nn.ReLU()) == hashlib.sha256().hexdigest()


def test_spread_tensors_are_gathered_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model spread over GPUs because one cannot hold it must not be gathered whole on one of them."""
    order: list[str] = []
    monkeypatch.setattr(rest, "FETCHED_BYTES", 100)
    monkeypatch.setattr(rest, "_whole", lambda value: order.append("gathered") or value)
    for _ in rest._bytes_of_all([torch.zeros(25) for _ in range(3)]):
        order.append("read")
    assert order == ["gathered", "gathered", "read", "gathered", "read", "read"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_is_the_same() -> None:
    here = Mixed()
    there = copy.deepcopy(here).cuda()
    assert fingerprint(there) == fingerprint(here)
    there.seen = there.seen.cpu()  # on two devices
    assert fingerprint(there) == fingerprint(here)


@pytest.mark.parametrize(
    "device, convolutions, few", [("cuda", "tf32", True), ("cuda", "ieee", False), ("cpu", "tf32", False)]
)
def test_products_are_done_as_convolutions_for_a_while(device: str, convolutions: str, few: bool) -> None:
    products: Any = torch.backends.cuda.matmul
    with at_rest(nn.Linear(2, 2), gradients=True, convolutions=convolutions):
        with products_as_convolutions(torch.device(device)):
            assert products.fp32_precision == ("tf32" if few else "ieee")
            assert products.allow_tf32 == few, "some of PyTorch's own code reads the old switch, which may raise"
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        assert products.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "highest"


# --------------------------------------------------------------------------------------- whatever mode the caller is in


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("body", [by_itself, lambda: at_rest(nn.Linear(2, 2))])
def test_autocast_is_off_inside_and_as_before_outside(body: Any, device: str) -> None:
    net, x = nn.Linear(2, 2).to(device), torch.ones(1, 2, device=device)
    with torch.autocast(device, torch.bfloat16):
        with body():
            assert net(x).dtype == torch.float32
            with torch.autocast(device, torch.bfloat16):
                assert net(x).dtype == torch.bfloat16, "what a model asks for itself it gets"
        assert net(x).dtype == torch.bfloat16


@pytest.mark.parametrize("before", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_inference_mode_is_left_for_a_while(before: Any) -> None:
    with before():
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        with by_itself():
            assert not torch.is_inference_mode_enabled()
            assert torch.is_grad_enabled() == (before is not torch.no_grad)
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == modes


def test_buffers_of_inference_mode_are_put_back_like_others() -> None:
    with torch.inference_mode():
        net = nn.Sequential(nn.BatchNorm1d(2))
    before = net[0].running_mean
    with at_rest(net):
        net[0].running_mean = torch.ones(2)
        with torch.inference_mode():
            before.add_(1)
    assert net[0].running_mean is before
    assert before.tolist() == [0, 0]
