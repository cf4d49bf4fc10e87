"""A model at rest: run it to look at it, and leave it bit for bit as it was."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from unweave.errors import ModelError


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile``, DataParallel or DistributedDataParallel: names and hooks are its own.

    Raises:
        ModelError: not an ``nn.Module``, or a TorchScript module, which runs no hooks.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"The model is a {type(model).__name__}. Supported: torch.nn.Module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            "The model is a TorchScript module, whose layers cannot be hooked. Pass the module it is from."
        )
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        inner = model.module
    return unwrap(inner) if isinstance(inner, nn.Module) else model


@contextmanager
def at_rest(model: nn.Module, gradients: bool = False) -> Iterator[nn.Module]:
    """Run the model in eval mode, exactly and eagerly; on the way out its flags and buffers are what they were.

    Fused paths that skip the modules' own forward (and so their hooks) are off inside, as are TF32 and compiled code.
    """
    training = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(gradients))
        stack.enter_context(_exact_arithmetic())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            model.eval()
            yield model
        finally:
            for module, flag in training:
                module.training = flag
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)


@contextmanager
def _exact_arithmetic() -> Iterator[None]:
    fastpath = torch.backends.mha.get_fastpath_enabled()
    cudnn = torch.backends.cudnn
    before = (cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32)
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = False, True, False
        torch.backends.cuda.matmul.allow_tf32 = False
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32 = before


def check_model(model: nn.Module) -> None:
    """Refuse a model whose outputs could not be trusted.

    Raises:
        ModelError: weights that are not finite, or batch norm without running statistics (its outputs depend on which
            samples happen to share a batch).
    """
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(value, nn.parameter.UninitializedParameter):
            continue
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ModelError(f"{name!r} of the model holds NaN or infinite values. Load weights that are finite.")
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ModelError(
                f"{name!r} normalises with the statistics of each batch (track_running_stats=False), so the model's "
                "outputs depend on the batching. Use running statistics."
            )


def duplicate(model: nn.Module) -> nn.Module:
    """A copy that shares nothing with the original.

    Raises:
        ModelError: the model cannot be copied.
    """
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ModelError(
            f"{type(model).__name__} cannot be copied ({error}). Detach the tensors it keeps as attributes."
        ) from error


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over the names, shapes, dtypes and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
            digest.update(bytes_of(value))
    return digest.hexdigest()


def bytes_of(tensor: Tensor) -> bytes:
    """The raw bytes of a tensor, in logical order whatever its memory format."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
