"""Large tensors between a GPU and main memory, at the speed of the link between them.

A plain copy goes through a small buffer of the driver's, by one thread of the host, which also has to find every page
of new memory; the link could do many times as much. Here two pinned buffers take turns: while the GPU fills or empties
one, all threads of the host see to the other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

STAGE_BYTES = 1 << 25
"""Of each of the two buffers; smaller tensors are copied plainly."""

Wait = Callable[[], object]


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device, itself if it is there."""
    device = torch.device(device)
    kinds = tensor.device.type, device.type
    if tensor.nbytes <= STAGE_BYTES or sorted(kinds) != ["cpu", "cuda"]:
        return tensor.to(device)
    there = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    gpu = tensor.device if kinds[0] == "cuda" else device
    with torch.cuda.device(gpu):
        stage = _fetch if kinds[0] == "cuda" else _send
        stage(tensor.contiguous().view(-1), there.view(-1), _buffers(tensor.dtype), _mark)
    return there


def _buffers(dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty(STAGE_BYTES // dtype.itemsize, dtype=dtype, pin_memory=True) for _ in range(2)]


def _mark() -> Wait:
    """How to wait for what the current stream was given so far, and for nothing later."""
    event = torch.cuda.Event()
    event.record()
    return event.synchronize


def _fetch(source: Tensor, there: Tensor, buffers: list[Tensor], mark: Callable[[], Wait]) -> None:
    """From a GPU: chunk i is on its way while the host puts chunk i − 1 in its place."""
    filled: list[tuple[Wait, Tensor, Tensor]] = []
    size = len(buffers[0])
    for i, (chunk, place) in enumerate(zip(source.split(size), there.split(size), strict=True)):
        if len(filled) == len(buffers):
            _put(*filled.pop(0))
        buffer = buffers[i % len(buffers)][: len(chunk)]
        buffer.copy_(chunk, non_blocking=True)
        filled.append((mark(), buffer, place))
    for one in filled:
        _put(*one)


def _put(wait: Wait, buffer: Tensor, place: Tensor) -> None:
    wait()
    place.copy_(buffer)


def _send(source: Tensor, there: Tensor, buffers: list[Tensor], mark: Callable[[], Wait]) -> None:
    """To a GPU: a buffer is filled anew once its last chunk has left."""
    left: list[Wait] = []
    size = len(buffers[0])
    for i, (chunk, place) in enumerate(zip(source.split(size), there.split(size), strict=True)):
        if len(left) == len(buffers):
            left.pop(0)()
        buffer = buffers[i % len(buffers)][: len(chunk)]
        buffer.copy_(chunk)
        place.copy_(buffer, non_blocking=True)
        left.append(mark())
    for wait in left:  # the buffers are given back after this, and must not be on their way then
        wait()
