"""Dropout whose masks are drawn before a step, from a generator of its own.

So networks that are trained in turns draw what each would draw alone, and nothing random is left inside the step, which
can be compiled as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from unweave.reading.rest import at_rest


class Drawn(nn.Module):
    """In place of a dropout layer: multiplies with what was drawn."""

    mask: Tensor

    def __init__(self, layer: nn.Dropout, x: Tensor) -> None:
        """For inputs like ``x``, or fewer of them."""
        super().__init__()
        self.keep = 1 - layer.p
        self.register_buffer("mask", torch.empty_like(x), persistent=False)
        self.train(layer.training)

    def draw(self, generator: torch.Generator) -> None:
        """Each number is zero with probability p, and 1 / (1 − p) otherwise."""
        self.mask.bernoulli_(self.keep, generator=generator).div_(self.keep)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask[: len(x)] if self.training else x


@contextmanager
def dropout_drawn_from(generator: torch.Generator, net: nn.Module, x: Tensor) -> Iterator[Callable[[], None]]:
    """Inside, the network drops what the function that is handed out drew last; call it before every step.

    Args:
        generator: what is random comes from it.
        net: its dropout layers are replaced, and put back at the end.
        x: a batch as large as any that will come. The network looks at it once, in eval mode.
    """
    found = [(path, layer) for path, layer in net.named_modules() if isinstance(layer, nn.Dropout) and layer.p > 0]
    inputs = _inputs_of([layer for _, layer in found], net, x) if found else []
    drawn = [Drawn(layer, seen) for (_, layer), seen in zip(found, inputs, strict=True)]

    def draw() -> None:
        for layer in drawn:
            layer.draw(generator)

    for (path, _), new in zip(found, drawn, strict=True):
        net.set_submodule(path, new)
    try:
        yield draw
    finally:
        for (path, layer), new in zip(found, drawn, strict=True):
            net.set_submodule(path, layer.train(new.training))


def _inputs_of(layers: list[nn.Dropout], net: nn.Module, x: Tensor) -> list[Tensor]:
    """What each layer is given, on a GPU in the precision of training; nothing in the network changes."""
    seen = dict[nn.Module, Tensor]()
    with at_rest(net), ExitStack() as stack:
        for layer in layers:
            hook = layer.register_forward_pre_hook(partial(_note, seen))
            stack.callback(hook.remove)
        stack.enter_context(torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda))
        net(x)
    return [seen[layer] for layer in layers]


def _note(seen: dict[nn.Module, Tensor], layer: nn.Module, given: tuple[Tensor, ...]) -> None:
    seen[layer] = given[0]
