"""GramSum: one layer's Gram as it grows, from rows or from patches, whichever its module shows."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from unweave.arithmetic.patches import Axis, Patches
from unweave.arithmetic.pixels import PixelSums
from unweave.arithmetic.products import add_gram, mirrored, row_elements
from unweave.arithmetic.routes import quickest
from unweave.arithmetic.structured import PatchSums
from unweave.errors import ModelError
from unweave.fitting.taps import check_shape, chunks_for
from unweave.grams import LayerInfo
from unweave.layers import Layer
from unweave.rows import Rows


class GramSum:
    """Adds up one layer's Gram [groups, d, d] in float64, where the rows are.

    What comes as rows goes into ``gram``, which is made when the first rows come; what comes as patches there too, or
    where that is quicker into ``maps``, by the way and the geometry.
    """

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.rows = 0
        self.device = layer.parameter.device
        self.gram: Tensor | None = None
        self.maps: dict[tuple[str, tuple[Axis, ...]], PatchSums | PixelSums] = {}
        self._ways: dict[tuple[torch.Size, tuple[Axis, ...]], str] = {}

    def add(self, rows: Rows, times: int = 1) -> None:
        if isinstance(rows, Patches) and (sums := self._sums_for(rows)) is not None:
            check_shape(self.layer, [rows.groups, rows.count, rows.d])
            self.rows += times * rows.count
            sums.add(rows, times)
            return
        self.gram = self._zeros() if self.gram is None else self.gram
        elements = row_elements(self.device)
        for chunk in chunks_for(self.layer, rows):
            self.rows += times * self.layer.kind.count(chunk)
            for part in chunk.split(max(1, elements // (self.layer.groups * self.layer.d)), dim=1):
                add_gram(self.gram, part.to(self.device), times)

    def _sums_for(self, patches: Patches) -> PatchSums | PixelSums | None:
        """Where the maps of these patches are summed; None where the patches themselves are."""
        shape, (groups, channels, *sizes) = (patches.maps.shape, patches.axes), patches.maps.shape[1:]
        if shape not in self._ways:  # most batches have the shape of the one before
            self._ways[shape] = quickest(patches)
        way = self._ways[shape]
        if way == "patches":
            return None
        key = way, patches.axes
        if key not in self.maps:
            self.maps[key] = (
                PixelSums(patches.axes, tuple(sizes), groups, channels, self.device)
                if way == "pixels"
                else PatchSums(patches.axes, groups, channels, self.device)
            )
        sums = self.maps[key]
        # Pixels of one size only: with a Gram for each, the sizes that happen to come would say how much is held.
        return sums if isinstance(sums, PatchSums) or sums.sizes == tuple(sizes) else None

    def _zeros(self) -> Tensor:
        layer = self.layer
        return torch.zeros(layer.groups, layer.d, layer.d, dtype=torch.float64, device=self.device)

    def result(self) -> Tensor:
        """The Gram, symmetric to the last bit.

        Raises:
            ModelError: it is not finite.
        """
        parts = [sums.gram() for sums in self.maps.values()]
        parts = parts if self.gram is None else [self.gram, *parts]
        gram = functools.reduce(torch.add, parts, self._zeros() if not parts else parts.pop(0))
        if not bool(torch.isfinite(gram).all()):
            raise ModelError(
                f"Layer {self.layer.name!r} was given NaN or infinite values, though inputs and logits are finite. "
                "Correct the model, or leave the layer out with layers=."
            )
        return mirrored(gram)

    def close(self) -> Tensor:
        """The Gram, and begin anew."""
        gram = self.result()
        self.rows, self.gram, self.maps = 0, None, {}
        return gram

    def info(self) -> LayerInfo:
        layer = self.layer
        return LayerInfo(layer.kind.name, layer.kind.layout, layer.groups, layer.d, layer.weight_shape, self.rows)
