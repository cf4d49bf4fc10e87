"""Taps: hooks that read what each weight sees while a model runs, and hand it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from unweave.arithmetic.patches import Patches
from unweave.errors import LayerError
from unweave.layers import Layer, plain_name, readable_kind
from unweave.reading.batches import Inputs, copies_of_one, run
from unweave.rows import Rows


class Adds(Protocol):
    """Where rows are added up, each so many times."""

    def add(self, rows: Rows, times: int) -> None: ...


def chunks_for(layer: Layer, rows: Rows) -> Iterator[Tensor]:
    """Rows as chunks [groups, n, d], checked.

    Raises:
        LayerError: they do not fit the weight.
    """
    for chunk in [rows] if isinstance(rows, Tensor) else rows:
        chunk = chunk if chunk.dim() == 3 else chunk.unsqueeze(0)
        check_shape(layer, list(chunk.shape))
        yield chunk


def check_shape(layer: Layer, shape: list[int]) -> None:
    """Refuse rows [groups, n, d] that do not fit the weight."""
    if shape[0] != layer.groups or shape[2] != layer.d:
        raise LayerError(
            f"Layer {layer.name!r} ({layer.kind.name}): rows of shape {shape}, expected "
            f"[{layer.groups}, n, {layer.d}]. Feed the model inputs as it was trained on; for a layer type of "
            "your own, correct the function it was registered with."
        )


@dataclass
class Sink:
    """Where the rows of one module go, and how many times each counts in the present batch."""

    total: Adds
    times: int = 1

    def add(self, rows: Rows) -> None:
        self.total.add(rows, self.times)


@dataclass
class RowCount:
    """Counts the rows of one module."""

    layer: Layer
    rows: int = 0

    def add(self, rows: Rows) -> None:
        if isinstance(rows, Patches):
            self.rows += rows.count
            return
        self.rows += sum(self.layer.kind.count(chunk) for chunk in chunks_for(self.layer, rows))


@contextmanager
def tapped(net: nn.Module, sinks: Mapping[str, Sink | RowCount], unstrided: bool = False) -> Iterator[None]:
    """Hook every module of a known type so that its rows reach the sinks; the hooks are gone on the way out.

    Args:
        net: the model.
        sinks: where rows go, by the ``named_modules()`` path of the module whose weight sees them.
        unstrided: read strided convolutions at every pixel.
    """
    handles = []

    def hook_for(path: str, kind: Any) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            for child, rows in kind.taps(module, args, kwargs):
                sink = sinks.get(f"{path}.{child}".strip("."))
                if sink is not None:
                    sink.add(rows())

        return hook

    try:
        for path, module in net.named_modules():
            kind = readable_kind(module)
            if kind is not None:
                used = kind.unstrided if unstrided and kind.unstrided else kind
                handles.append(module.register_forward_pre_hook(hook_for(path, used), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def constant_owners(net: nn.Module, layers: Mapping[str, Layer], inputs: Inputs) -> set[str]:
    """The modules that see the same rows however many samples a batch has, found with copies of one sample.

    Raises:
        LayerError: a module whose rows neither stay the same nor double with the samples.
    """
    few, many = _rows_with_copies(net, layers, inputs, 2), _rows_with_copies(net, layers, inputs, 4)
    for owner in few:
        if many[owner] not in (few[owner], 2 * few[owner]):
            raise LayerError(
                f"Layer {plain_name(owner)!r} sees {few[owner]} rows with two copies of a sample and {many[owner]} "
                "with four, so what one sample adds is unknown. Leave the layer out with layers=."
            )
    return {owner for owner in few if few[owner] == many[owner] > 0}


def _rows_with_copies(net: nn.Module, layers: Mapping[str, Layer], inputs: Inputs, copies: int) -> dict[str, int]:
    counts = {owner: RowCount(layer) for layer in layers.values() for owner in layer.owners}
    with tapped(net, counts):
        run(net, copies_of_one(inputs, copies))
    return {owner: count.rows for owner, count in counts.items()}
