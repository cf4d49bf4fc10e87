"""fit(): stream a data set through a model once and add up what each weight sees.

Most weights see rows of each sample. Some see the same rows whatever the samples are, once a batch: the embedding of
positions 0, 1, 2 … is the classic. Such rows are added once for every sample of the batch, as if each had brought them
along; else the sums would depend on the batching, and subtracting a few batches would leave nothing of them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unweave.batches import Doubts, Inputs, Loader, checked, device_of, logits_of, map_tensors, run
from unweave.borrowed import owners_only
from unweave.errors import ConfigError, DataError, LayerError, ModelError
from unweave.grams import LayerGrams, LayerInfo, Origin
from unweave.layers import Layer, find_layers, plain_name, readable_kind
from unweave.outcomes import ClassProfile, Outcomes, observe, read
from unweave.patches import Axis, Patches
from unweave.products import add_gram, mirrored
from unweave.rest import at_rest, check_model, fingerprint, unwrap
from unweave.routes import is_structured
from unweave.rows import Rows
from unweave.structured import PatchSums

Progress = Callable[[str, int, int | None], None]
"""Called with (stage, done, total or None if unknown) as work goes on."""

ROW_ELEMENTS = 1 << 22
"""How many float64 numbers of rows are held at once: 32 MiB."""

DOUBTFUL_BATCHES = 64
"""How many batches on a GPU may pass before their values are known to be sound."""


def fit(
    model: nn.Module,
    loader: Loader,
    val: Loader | None = None,
    layers: Sequence[str] | int | None = None,
    *,
    transform: str = "",
    stride: str = "layer",
    progress: Progress | None = None,
) -> LayerGrams:
    """Add up G = Σ r rᵀ per layer over a data set, in one pass, and leave the model as it was.

    Do this once, after training, while the training set is still there. Feed the samples *without random
    augmentation*: a later request subtracts the very same rows, so both must see the same inputs.

    Args:
        model: maps a batch to logits [N, C].
        loader: yields ``(inputs, labels)``.
        val: held-out samples. Their error, loss and quantiles of margin and entropy are kept per class (aggregates
            only), so that a later request needs no validation set.
        layers: names to restrict to, or an int for the last k; None for every layer of a known type.
        transform: a label for the preprocessing; Grams with different labels refuse to mix.
        stride: "one" reads strided convolutions at every pixel, as the paper's code does; "layer" is right.
        progress: called as ``progress("fit", batches_done, batches_or_None)``.

    Raises:
        DataError: a loader or batch that cannot be used, or fewer than two samples.
        ModelError: outputs that are not logits, or weights that are not finite.
        LayerError: a layer that cannot be handled, or that did not run on the first batch.
    """
    net = unwrap(model)
    grams, outcomes = stream(net, loader, "training", layers, transform, stride, progress)
    if len(outcomes) < 2:
        raise DataError("The training loader holds one sample. A training set has at least two.")
    held_out = None
    if val is not None:
        held_out = profile(net, val)
    return LayerGrams({name: grams.grouped(name).cpu() for name in grams}, grams.layers, grams.origin, held_out)


def profile(net: nn.Module, val: Loader) -> ClassProfile:
    """What is kept of held-out samples: aggregates per class of the network's outputs on them."""
    device = device_of(net)
    doubts = Doubts(later=device.type != "cpu")
    with at_rest(net, exact=False):
        return ClassProfile.of(observe(net, checked(val, "validation", device, doubts), doubts))


def stream(
    net: nn.Module,
    loader: Loader,
    what: str,
    layers: Sequence[str] | int | None,
    transform: str,
    stride: str,
    progress: Progress | None = None,
) -> tuple[LayerGrams, Outcomes]:
    """One pass over a loader: the Grams without profiles, on the model's device, and the outcome of every sample."""
    if stride not in ("layer", "one"):
        raise ConfigError(f"Invalid stride: {stride!r}. Supported: 'layer', 'one'.")
    found = find_layers(net, layers)
    check_model(net)
    _check_memory(found)
    sums = {name: GramSum(layer) for name, layer in found.items()}
    sinks = {owner: Sink(sums[layer.name]) for layer in found.values() for owner in layer.owners}
    outcomes: list[Outcomes] = []
    total = _length(loader)
    device = device_of(net)
    doubts = Doubts(later=device.type != "cpu")
    with at_rest(net), ExitStack() as hooks:
        for done, (inputs, labels) in enumerate(checked(loader, what, device, doubts), start=1):
            if done == 1:
                with owners_only(net, found):
                    constant = _constant_owners(net, found, inputs)
                hooks.enter_context(tapped(net, sinks, unstrided=stride == "one"))
            for owner in constant:
                sinks[owner].times = len(labels)
            logits = logits_of(net, inputs, labels, doubts)
            # A label that is still in doubt must not be looked up on a GPU, which would not survive it.
            outcomes.append(read(logits, labels.clamp(0, logits.shape[1] - 1)))
            if done == 1:
                _check_fired(sums, found)
            if done % DOUBTFUL_BATCHES == 0:
                doubts.settle()
            if progress is not None:
                progress("fit", done, total)
        doubts.settle()
    joined = Outcomes.concat(outcomes)
    made_from = fingerprint(net)
    origin = Origin(made_from, _dtype_of(net), len(joined), transform, stride, key=made_from)
    infos = {name: sums[name].info() for name in sums}
    del sinks  # so that each sum is freed as soon as its Gram is made of it
    return LayerGrams({name: sums.pop(name).result() for name in list(sums)}, infos, origin), joined


def _length(loader: Loader) -> int | None:
    """How many batches there are; None where nobody knows (a DataLoader over a stream has a len that raises)."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:
        return None


class GramSum:
    """Adds up one layer's Gram [groups, d, d] in float64, where the rows are.

    What comes as rows goes into ``gram``, which is made when the first rows come; what comes as patches into ``gram``
    or ``patches``, whichever is quicker.
    """

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.rows = 0
        self.device = layer.parameter.device
        self.gram: Tensor | None = None
        self.patches: dict[tuple[Axis, ...], PatchSums] = {}

    def add(self, rows: Rows, times: int = 1) -> None:
        if isinstance(rows, Patches) and is_structured(rows):
            self._add_patches(rows, times)
            return
        self.gram = self._zeros() if self.gram is None else self.gram
        for chunk in _chunks_for(self.layer, rows):
            self.rows += times * self.layer.kind.count(chunk)
            for part in chunk.split(max(1, ROW_ELEMENTS // (self.layer.groups * self.layer.d)), dim=1):
                add_gram(self.gram, part.to(self.device, torch.float64), times)

    def _add_patches(self, patches: Patches, times: int) -> None:
        _check_shape(self.layer, [patches.groups, patches.count, patches.d])
        self.rows += times * patches.count
        if patches.axes not in self.patches:
            channels = patches.maps.shape[2]
            self.patches[patches.axes] = PatchSums(patches.axes, patches.groups, channels, self.device)
        self.patches[patches.axes].add(patches, times)

    def _zeros(self) -> Tensor:
        layer = self.layer
        return torch.zeros(layer.groups, layer.d, layer.d, dtype=torch.float64, device=self.device)

    def result(self) -> Tensor:
        """The Gram, symmetric to the last bit.

        Raises:
            ModelError: it is not finite.
        """
        parts = [sums.gram() for sums in self.patches.values()]
        parts = parts if self.gram is None else [self.gram, *parts]
        gram = functools.reduce(torch.add, parts, self._zeros() if not parts else parts.pop(0))
        if not bool(torch.isfinite(gram).all()):
            raise ModelError(
                f"Layer {self.layer.name!r} was given NaN or infinite values, though inputs and logits are finite. "
                "Correct the model, or leave the layer out with layers=."
            )
        return mirrored(gram)

    def info(self) -> LayerInfo:
        layer = self.layer
        return LayerInfo(layer.kind.name, layer.kind.layout, layer.groups, layer.d, layer.weight_shape, self.rows)


def _chunks_for(layer: Layer, rows: Rows) -> Iterator[Tensor]:
    """Rows as chunks [groups, n, d], checked.

    Raises:
        LayerError: they do not fit the weight.
    """
    for chunk in [rows] if isinstance(rows, Tensor) else rows:
        chunk = chunk if chunk.dim() == 3 else chunk.unsqueeze(0)
        _check_shape(layer, list(chunk.shape))
        yield chunk


def _check_shape(layer: Layer, shape: list[int]) -> None:
    if shape[0] != layer.groups or shape[2] != layer.d:
        raise LayerError(
            f"Layer {layer.name!r} ({layer.kind.name}): rows of shape {shape}, expected "
            f"[{layer.groups}, n, {layer.d}]. Correct the function it was registered with."
        )


@dataclass
class Sink:
    """Where the rows of one module go, and how many times each counts in the present batch."""

    total: GramSum
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
        self.rows += sum(self.layer.kind.count(chunk) for chunk in _chunks_for(self.layer, rows))


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


def _constant_owners(net: nn.Module, layers: Mapping[str, Layer], inputs: Inputs) -> set[str]:
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
        run(net, map_tensors(inputs, lambda t: t[:1].repeat(copies, *[1] * (t.dim() - 1))))
    return {owner: count.rows for owner, count in counts.items()}


def _check_fired(sums: dict[str, GramSum], layers: dict[str, Layer]) -> None:
    silent = [name for name, total in sums.items() if total.rows == 0]
    if silent:
        kinds = ", ".join(f"{name!r} ({layers[name].kind.name})" for name in silent)
        raise LayerError(
            f"Not run in the first batch: {kinds}. Either the layer is unused, or its forward is bypassed; what it "
            "sees is unknown, so it must not move. Leave it out: pass layers= with the other names."
        )


def _check_memory(layers: dict[str, Layer]) -> None:
    """Refuse before the pass what could not be held; the Grams end up in the machine's memory, wherever they grow."""
    sizes = {name: 8 * layer.groups * layer.d**2 for name, layer in layers.items()}
    if not hasattr(os, "sysconf"):  # not a POSIX system: nobody to ask
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sum(sizes.values()) > memory:
        widest = max(sizes, key=lambda name: sizes[name])
        raise LayerError(
            f"The Grams would take {sum(sizes.values()) / 2**30:.1f} GiB of the machine's {memory / 2**30:.1f} GiB; "
            f"the largest is {widest!r} with d = {layers[widest].d}. Leave wide layers out with layers=."
        )


def _dtype_of(net: nn.Module) -> str:
    """The least precise floating-point type among the parameters: it sets how exactly two passes agree."""
    dtypes = {p.dtype for p in net.parameters() if p.is_floating_point()}
    return str(max(dtypes, key=lambda t: torch.finfo(t).eps)).removeprefix("torch.")
