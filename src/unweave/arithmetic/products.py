"""G += rᵀ r for rows r, without the half that symmetry tells.

No BLAS call that PyTorch offers makes use of the symmetry, so the Gram is summed by block rows from the diagonal on:
with B of them (B + 1) / 2B of the products are left, 5/8 for four.

Which arithmetic does it is a matter of the device, see :func:`arithmetic_for`. Whatever it is, the Gram is float64.
"""

from __future__ import annotations

import functools
import os

import torch
from torch import Tensor

from unweave.arithmetic.split import add_split_gram
from unweave.errors import ConfigError

BLOCKS = 4
"""Block rows of a Gram: with more of them the products become too narrow to be quick."""

WIDE = 256
"""The least d that is worth cutting into block rows."""

ROW_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 25}
"""How many numbers of rows are summed at once, by device: 32 MiB and 256 MiB in float64. A GPU needs large products."""

FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""Compute capabilities of NVIDIA's GPUs that do float64 at half the rate of float32: P100, V100, A100, H100 and H200,
B200. All others do it at 1/32 or 1/64, the B300 (10.3) among them."""

SMALL_PRODUCTS = (7, 5)
"""The least capability with tensor cores for 8-bit products."""

SPLIT_WIDE = 256
"""The least d for which cutting rows into digits takes less time than it saves, see :mod:`unweave.arithmetic.split`."""

ARITHMETIC = "UNWEAVE_ARITHMETIC"
"""The environment variable that chooses: "float64" (the default), "split", or "auto" for what suits the GPU."""


def arithmetic_for(device: torch.device) -> str:
    """How Grams are summed on a device: "float64", or "split" into digits of eight bits. The two agree to 1e-12.

    float64 unless the environment says otherwise: "split" was made for GPUs whose float64 is slow, but none was at
    hand to measure it on. With "auto" it is taken on NVIDIA's GPUs of that kind.

    Raises:
        ConfigError: the environment variable ``UNWEAVE_ARITHMETIC`` holds something else.
    """
    wanted = os.environ.get(ARITHMETIC) or "float64"
    if wanted not in ("float64", "split", "auto"):
        raise ConfigError(f"Invalid {ARITHMETIC}: {wanted!r}. Supported: 'float64', 'split', 'auto', or leave it out.")
    if wanted != "auto":
        return wanted
    return arithmetic_of(_capability(device)) if device.type == "cuda" and torch.version.hip is None else "float64"


def arithmetic_of(capability: tuple[int, int]) -> str:
    """The arithmetic for NVIDIA's GPUs of a compute capability."""
    return "float64" if capability in FAST_FLOAT64 or capability < SMALL_PRODUCTS else "split"


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def row_elements(device: torch.device) -> int:
    """How many numbers of rows are summed at once on a device."""
    return ROW_ELEMENTS.get(device.type, ROW_ELEMENTS["cpu"])


def block_of(d: int) -> int:
    """How wide a block row of a Gram [d, d] is."""
    return d if d < WIDE else -(-d // BLOCKS)


def add_gram(gram: Tensor, rows: Tensor, times: int = 1) -> None:
    """Add ``times`` rowsᵀ rows to a Gram, float64 [groups, d, d], from rows [groups, n, d] of any floating-point type.

    On and above the diagonal: what is below is for :func:`mirrored` to put right.
    """
    if gram.shape[-1] >= SPLIT_WIDE and arithmetic_for(rows.device) == "split":
        add_split_gram(gram, rows, times)
        return
    rows = rows.to(torch.float64)
    width = block_of(gram.shape[-1])
    for start in range(0, gram.shape[-1], width):
        block = gram[:, start : start + width, start:]
        block.baddbmm_(rows[:, :, start : start + width].mT, rows[:, :, start:], alpha=times)


def mirror_(gram: Tensor, strip: int = 1024) -> None:
    """As :func:`mirrored`, in place and a strip at a time; what is added afterwards is mirrored by the next call."""
    for start in range(0, gram.shape[-1], strip):
        end = start + strip
        corner = gram[:, start:end, start:end]
        corner.copy_(mirrored(corner))
        gram[:, end:, start:end] = gram[:, start:end, end:].mT


def mirrored(gram: Tensor) -> Tensor:
    """The Gram of which this holds the part on and above the diagonal: symmetric to the last bit."""
    return gram.triu() + gram.triu(1).mT
