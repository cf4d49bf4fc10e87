"""What stored Grams say about single samples.

A Gram of n samples in d dimensions is a sum; how much one sample stands out in it depends on n / d. Measured for this
project with membership inference on a stored Gram: AUC 1.00 at n / d ≤ 1, about 0.57 at 10, 0.51 at 39. Nothing was
measured between 1 and 10, so all of it counts as high. "low" is no promise: the AUC also grows with d itself, and for
rows that fill all directions evenly (simulated white noise, d = 400) it is 0.84 at n / d = 10 and 0.61 at 39.

A layer with groups has a block-diagonal Gram of dimension groups · d: an embedding's tally has one dimension for each
token, and a token that occurs once is one sample's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

Level = Literal["high", "some", "low"]

HIGH_BELOW = 10.0
LOW_FROM = 39.0


class LayerCounts(Protocol):
    """What must be known of one layer."""

    @property
    def groups(self) -> int: ...
    @property
    def d(self) -> int: ...
    @property
    def rows(self) -> int: ...


class Grams(Protocol):
    """What must be known of Grams: how many samples went in, and the layers' sizes."""

    @property
    def samples(self) -> int: ...
    @property
    def layers(self) -> Mapping[str, LayerCounts]: ...


def leakage(grams: Grams) -> list[dict[str, Any]]:
    """For each layer samples, rows, dimension, samples per dimension and level: "leakage" of the report's schema."""
    found = []
    for name, layer in grams.layers.items():
        dimension = layer.groups * layer.d
        density = grams.samples / dimension
        found.append(
            {
                "layer": name,
                "rows": layer.rows,
                "samples": grams.samples,
                "dimension": dimension,
                "samples_per_dimension": density,
                "level": level(density),
            }
        )
    return found


def level(samples_per_dimension: float) -> Level:
    """How much Grams with so many samples per dimension give away."""
    if samples_per_dimension < HIGH_BELOW:
        return "high"
    return "some" if samples_per_dimension < LOW_FROM else "low"
