"""A model at rest: run it to look at it, and leave it bit for bit as it was."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from unweave.arithmetic.small_maps import multiply_small_maps
from unweave.errors import ModelError

FETCHED_BYTES = 1 << 26
"""Bytes of weights that are put together on a GPU to be fetched at once, beside the model itself: 64 MiB."""


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile``, DataParallel or DistributedDataParallel: names and hooks are its own.

    Raises:
        ModelError: not an ``nn.Module``, a TorchScript module, which runs no hooks, or one of the first FSDP.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"The model is a {type(model).__name__}. Supported: torch.nn.Module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            "The model is a TorchScript module, whose layers cannot be hooked. Pass the module it is from."
        )
    # By name: to import it would take as long as all the rest of this package.
    if any(base.__name__ == "FullyShardedDataParallel" for base in type(model).__mro__):
        raise ModelError(
            "The model is under FullyShardedDataParallel, which keeps its layers' weights in one flat tensor. Use "
            "torch.distributed.fsdp.fully_shard(), which leaves them as they are, or pass the model without it."
        )
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        inner = model.module
    return unwrap(inner) if isinstance(inner, nn.Module) else model


@contextmanager
def by_itself() -> Iterator[None]:
    """Work as if no mode of the caller's were on; it is on again afterwards. Also a decorator.

    Autocast would round what is to be exact, and what is made in inference mode never has gradients.
    """
    with ExitStack() as stack:
        stack.enter_context(_no_autocast())
        if torch.is_inference_mode_enabled():  # to leave it where it is not on would turn gradients on
            stack.enter_context(torch.inference_mode(False))
        yield


@contextmanager
def _no_autocast() -> Iterator[None]:
    """Full precision inside, on the CPU and on a GPU, whatever an outer autocast has asked for."""
    gpu = torch.accelerator.current_accelerator()
    with ExitStack() as stack:
        for device in ("cpu",) if gpu is None else ("cpu", gpu.type):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def at_rest(model: nn.Module, gradients: bool = False, convolutions: str | None = "ieee") -> Iterator[nn.Module]:
    """Run the model in eval mode and eagerly; on the way out its flags, buffers and attributes are as before.

    Compiled code, autocast, and fused paths that skip the modules' own forward (and so their hooks) are off inside.

    Args:
        model: is put into eval mode.
        gradients: let a backward pass follow.
        convolutions: sums that are to be subtracted again need convolutions in full float32 ("ieee"), or always the
            same "tf32", which is several times as fast on a GPU. Where the model is only looked at or led somewhere,
            they may be as the user has them (None).
    """
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(gradients))
        stack.enter_context(_no_autocast())
        stack.enter_context(_exact_arithmetic(convolutions))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_restored(model))
        if convolutions == "ieee":
            multiply_small_maps(model)
        model.eval()
        yield model


@contextmanager
def only_moving(net: nn.Module, weights: Iterable[nn.Parameter]) -> Iterator[None]:
    """Ask for gradients of the movable weights and of nothing else; the flags are put back on the way out."""
    flags = [(p, p.requires_grad) for p in net.parameters()]
    movable = {id(w) for w in weights}
    try:
        for p, _ in flags:
            p.requires_grad_(id(p) in movable)
        yield
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)
            p.grad = None


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Put back whatever a forward pass may change: attributes, buffers, and weights that renormalise themselves."""
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    attributes += [(module._buffers, dict(module._buffers)) for module in model.modules()]
    changing = list(model.buffers())
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            changing.append(module.weight)
    values = [(tensor, tensor.detach().clone()) for tensor in changing]
    try:
        yield
    finally:
        for now, before in attributes:
            now.clear()
            now.update(before)
        with torch.no_grad():
            for tensor, value in values:
                with torch.inference_mode() if tensor.is_inference() else nullcontext():  # they change only there
                    tensor.copy_(value)


@contextmanager
def _exact_arithmetic(convolutions: str | None) -> Iterator[None]:
    """Full float32 products, deterministic convolutions, and no fused attention; all settings are put back."""
    fastpath, cudnn = torch.backends.mha.get_fastpath_enabled(), torch.backends.cudnn
    deterministic, benchmark = cudnn.deterministic, cudnn.benchmark
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        cudnn.deterministic, cudnn.benchmark = True, False
        with _full_precision(convolutions):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        cudnn.deterministic, cudnn.benchmark = deterministic, benchmark


@contextmanager
def _full_precision(convolutions: str | None) -> Iterator[None]:
    """No TF32 and no bfloat16 inside float32 products; convolutions as asked, or as they are.

    PyTorch has two sets of switches for this, and reading the old one raises once somebody has used the new one. So
    the new ones are always set, and the old ones, which a model's forward may read, where they can be read now.
    """
    backends: Any = torch.backends
    products = backends.cudnn.rnn, backends.cuda.matmul, backends.mkldnn.rnn, backends.mkldnn.matmul
    wanted = dict.fromkeys(products, "ieee")
    if convolutions is not None:
        wanted |= {backends.cudnn.conv: convolutions, backends.mkldnn.conv: "ieee"}
    before = {switch: switch.fp32_precision for switch in wanted}
    try:
        old = backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    except RuntimeError:
        old = None
    try:
        if old is not None:
            backends.cudnn.allow_tf32 = old[0] if convolutions is None else convolutions == "tf32"
            torch.set_float32_matmul_precision("highest")
        for switch, value in wanted.items():
            switch.fp32_precision = value
        yield
    finally:
        if old is not None:
            backends.cudnn.allow_tf32 = old[0]
            torch.set_float32_matmul_precision(old[1])
        for switch, value in before.items():
            switch.fp32_precision = value


@contextmanager
def products_as_convolutions(device: torch.device) -> Iterator[None]:
    """Inside :func:`at_rest`: float32 products on a GPU in TF32 for a while, if convolutions are done in it there."""
    backends: Any = torch.backends
    products = backends.cuda.matmul
    if device.type != "cuda" or backends.cudnn.conv.fp32_precision != "tf32":
        yield
        return
    before = products.fp32_precision
    try:
        products.allow_tf32 = True  # the old switch sets the new one as well; the other way round they would disagree
        yield
    finally:
        products.allow_tf32 = False
        products.fp32_precision = before


def check_model(model: nn.Module) -> None:
    """Refuse a model whose outputs could not be trusted.

    Raises:
        ModelError: weights that are not finite or not there yet, or batch norm without running statistics (its outputs
            depend on which samples happen to share a batch).
    """
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(value):
            raise ModelError(f"{name!r} of the model is lazy and has no values yet. Run the model once on a batch.")
        if value.is_floating_point() and not bool(torch.isfinite(value.detach()).all()):
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
    """SHA-256 over the names, shapes, dtypes and bytes of all parameters and buffers, compiled or not."""
    digest = hashlib.sha256()
    state = {name: value for name, value in sorted(model.state_dict().items()) if isinstance(value, Tensor)}
    for (name, value), content in zip(state.items(), _bytes_of_all([*state.values()]), strict=True):
        digest.update(f"{name.replace('_orig_mod.', '')}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(content)
    return digest.hexdigest()


def _bytes_of_all(tensors: list[Tensor]) -> Iterator[memoryview]:
    """The raw bytes of each tensor; small ones on a GPU come many in one copy, for each would wait for it anew."""
    parts: list[Tensor] = []
    for tensor in tensors:
        part = _whole(tensor).detach().contiguous().reshape(-1).view(torch.uint8)
        if parts and (part.device != parts[0].device or sum(map(len, parts)) + len(part) > FETCHED_BYTES):
            yield from _fetched(parts)
            parts = []
        parts.append(part)
    yield from _fetched(parts)


def _fetched(parts: list[Tensor]) -> Iterator[memoryview]:
    """The contents of byte tensors of one device, in one copy."""
    if not parts:
        return
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    content, start = whole.cpu().numpy().data, 0
    for part in parts:
        yield content[start : start + len(part)]
        start += len(part)


def _whole(value: Tensor) -> Tensor:
    """A tensor that is spread over the ranks (FSDP2) as one; every rank has to ask for it."""
    gather = getattr(value, "full_tensor", None)
    return value if gather is None else gather()


def bytes_of(tensor: Tensor) -> bytes:
    """The raw bytes of a tensor, in logical order whatever its memory format."""
    flat = tensor.detach().contiguous().cpu().reshape(-1)  # a GPU puts channels in order in no time
    return flat.view(torch.uint8).numpy().tobytes()
