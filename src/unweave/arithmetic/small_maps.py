"""Convolutions of small maps on a GPU, in full float32, as products of their patches.

cuDNN's kernels for full float32 seem to work on tiles of one map and lose most of their speed where maps are smaller
than a tile. A product does not care where one map ends: with it the pass of ResNet-18 over 100,000 images of 64 pixels,
whose last maps are 2×2, takes 1.2 s in place of 3.3 on an H200. With TF32 there are other kernels, but sums that are to
be subtracted need full float32.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn

from unweave.arithmetic.patches import Patches

FEW_PIXELS = 16
"""Outputs of a map, at most: with more of them cuDNN is about as quick."""


def multiply_small_maps(model: nn.Module) -> None:
    """Let a model's convolutions run small maps on a GPU as products, until somebody resets its modules' attributes.

    Not those that have a way of their own, by their class or on the module itself.
    """
    for module in model.modules():
        own = "_conv_forward" in vars(module)
        if isinstance(module, nn.Conv2d) and not own and type(module)._conv_forward is nn.Conv2d._conv_forward:
            module._conv_forward = functools.partial(_convolve, module)  # type: ignore[method-assign]


def runs_small_maps_as_products(module: nn.Module) -> bool:
    """Whether this is what was changed in how a module convolves."""
    return getattr(vars(module).get("_conv_forward"), "func", None) is _convolve


def _convolve(module: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # Not where gradients follow: patches overlap, and a GPU would add up theirs in any order.
    single = x.is_cuda and x.dtype == weight.dtype == torch.float32 and not torch.is_grad_enabled()
    if single and is_small(module, x):
        return as_product(module, x, weight, bias)
    out: Tensor = nn.Conv2d._conv_forward(module, x, weight, bias)
    return out


def is_small(module: nn.Conv2d, x: Tensor) -> bool:
    """Whether an input's maps are so small that a product is quicker. (With a stride cuDNN takes other kernels.)"""
    plain = module.groups == 1 and module.stride == (1, 1) and module.padding_mode == "zeros"
    if not plain or module.kernel_size == (1, 1) or x.dim() != 4 or len(x) == 0:
        return False
    outputs = Patches.of(module, x).outputs
    return min(outputs) > 0 and math.prod(outputs) <= FEW_PIXELS


def as_product(module: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The outputs of a convolution without groups, its patches multiplied a bounded chunk at a time."""
    patches = Patches.of(module, x)
    rows = torch.cat([chunk[0] @ weight.flatten(1).T for chunk in patches])
    rows = rows if bias is None else rows.add_(bias)
    out: Tensor = rows.unflatten(0, (len(x), *patches.outputs)).movedim(-1, 1)  # channels last in memory …
    last = any(t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in (x, weight))
    return out if last else out.contiguous()  # … which only those expect who began it
