"""Dropout with a generator of its own, so that networks that are trained in turns draw what each would draw alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn


@contextmanager
def dropout_drawn_from(generator: torch.Generator, net: nn.Module) -> Iterator[None]:
    """The network's dropout draws from this generator in place of the process's, so that networks may take turns."""
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Dropout)]
    for layer in layers:
        layer.forward = partial(_dropped, layer, generator=generator)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _dropped(layer: nn.Dropout, x: Tensor, *, generator: torch.Generator) -> Tensor:
    """Each number is zero with probability p, and divided by 1 − p otherwise; in eval mode all stay as they are."""
    if not layer.training or layer.p == 0:
        return x
    return x * torch.empty_like(x).bernoulli_(1 - layer.p, generator=generator).div_(1 - layer.p)
