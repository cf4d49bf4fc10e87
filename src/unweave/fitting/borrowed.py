"""Who else uses a weight: a use outside its own layer sees rows that nobody counts.

``F.linear(h, self.embedding.weight)``, a head tied by hand, runs no module's forward and so no hook. One forward pass
under a torch-function mode sees every call that is given a weight, and whether a layer that owns it is running.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unweave.errors import LayerError
from unweave.layers import Layer, readable_kind

SHAPE_ONLY = {"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"}
"""Functions that look at a tensor's shape and dtype, not at its values."""
SHAPE_OF_OTHER = {"to", "type_as", "expand_as", "view_as", "reshape_as"}
"""The same for every argument but the first."""


class _Uses(TorchFunctionMode):
    """Notes the layers whose weight is used while none of its owners runs."""

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        super().__init__()
        self.names = {id(layer.parameter): name for name, layer in layers.items()}
        self.running: Counter[str] = Counter()
        self.strangers: dict[str, str] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        called = getattr(func, "__name__", str(func))
        if called not in SHAPE_ONLY and any(isinstance(part, Tensor) for part in _parts([result])):
            values = args[:1] if called in SHAPE_OF_OTHER else [*args, *(kwargs or {}).values()]
            for tensor in _parts(values):
                name = self.names.get(id(tensor))
                if name is not None and not self.running[name]:
                    self.strangers[name] = called
        return result


def _parts(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _parts(value)
        else:
            yield value


@contextmanager
def owners_only(net: nn.Module, layers: Mapping[str, Layer]) -> Iterator[None]:
    """Run the model inside; on the way out, refuse weights that something else than their layers used.

    Raises:
        LayerError: such a weight, with the function it was given to.
    """
    uses = _Uses(layers)
    handles = []
    try:
        for path, module in net.named_modules():
            if readable_kind(module) is not None:
                own = [n for n, layer in layers.items() if any(_within(owner, path) for owner in layer.owners)]
                handles.append(module.register_forward_pre_hook(_count(uses.running, own, +1)))
                handles.append(module.register_forward_hook(_count(uses.running, own, -1), always_call=True))
        with uses:
            yield
    finally:
        for handle in handles:
            handle.remove()
    for name, called in uses.strangers.items():
        raise LayerError(
            f"Layer {name!r}: its weight is also given to {called}() outside the layer, so what that use sees is "
            "unknown. Use the layer itself there, or leave it out with layers=, which freezes it."
        )


def _within(owner: str, path: str) -> bool:
    """Whether a weight's owner is a module or a part of it (attention uses its out_proj without calling it)."""
    return owner == path or owner.startswith(f"{path}.")


def _count(running: Counter[str], names: list[str], by: int) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        for name in names:
            running[name] += by

    return hook
