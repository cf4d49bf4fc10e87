"""A GPU that is full is told from everything else that a library may complain of, and is nobody's model's fault."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unweave.errors import ModelError
from unweave.gradients.per_sample import sample_gradients
from unweave.memory import is_gpu_full
from unweave.reading.batches import run

FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB."),
]
OTHERS = [
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ValueError("CUBLAS_STATUS_ALLOC_FAILED"),
]


class Failing(nn.Linear):
    """A model whose forward pass raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__(3, 2)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize("error", FULL, ids=str)
def test_a_full_gpu_is_known_whoever_found_out(error: Exception) -> None:
    assert is_gpu_full(error)
    net = Failing(error)
    with pytest.raises(type(error)) as raised:
        run(net, torch.ones(4, 3))
    assert raised.value is error
    with pytest.raises(type(error)) as raised:
        sample_gradients(net, dict(net.named_parameters()), torch.ones(4, 3), torch.ones(4, 2))
    assert raised.value is error


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_nothing_else_is_taken_for_it(error: Exception) -> None:
    assert not is_gpu_full(error)
    if isinstance(error, RuntimeError):
        with pytest.raises(ModelError, match="The model failed on inputs"):
            run(Failing(error), torch.ones(4, 3))
