"""A GPU that is full, by whichever of its libraries found out.

PyTorch's own allocator raises :class:`torch.OutOfMemoryError`. A library that asks the driver by itself (cuBLAS and
cuDNN when a handle or a workspace is made, cuSOLVER, Triton) fails with a plain ``RuntimeError`` that only its text
tells from others.
"""

from __future__ import annotations

import re

import torch

FULL = re.compile(
    r"_STATUS_ALLOC_FAILED\b|_DEVICE_ALLOCATION_FAILED\b|\bCUDA(?: driver)? error: out of memory\b"
    r"|\bTriton Error \[CUDA\]: out of memory\b|\bCUDA out of memory\b"
)
"""``CUDNN_STATUS_INTERNAL_ERROR`` and ``CUBLAS_STATUS_NOT_INITIALIZED`` are not in it: they have other causes too."""


def is_gpu_full(error: BaseException) -> bool:
    """Whether an error says that there is no memory left on a GPU."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and FULL.search(str(error)) is not None
    )
