"""What changes of a layer cost, in one currency for all layers, so that a step can be shared out among them.

A change Δ [m, d] of a layer moves the margin of a sample by ⟨g, Δ⟩, with g [m, d] its gradient. Where the layer meets
one row r of a sample, g = b rᵀ, b [m] being the slopes of the margin by the layer's outputs. If those do not hang on
the row, and no output matters more than others, a retained margin moves by

    E ⟨g, Δ⟩² = tr(E[b bᵀ] Δ E[r rᵀ] Δᵀ) = c tr(Δ G Δᵀ)          c = E‖g‖² / (m tr G)

on average: K-FAC's account of a layer with a number for one of its factors. With this c the mean of ⟨g, Δ⟩² over all Δ
of a length is right, also where a layer meets many rows of a sample. G is that of the retained rows; the gradients are
those of margins of the forget set, for retained samples are not at hand.

Soft protection is what is left of a step where a change costs tr(Δ G Δᵀ) + μ ‖Δ‖², each group of a layer with a μ of
its own (:mod:`unweave.protection`). So c μ is the price of ‖Δ‖². Hard protection has none: its changes cost nothing
that G tells of, and asking the same of every layer's square did better there than c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from unweave.gradients.jacobian import Gradients
from unweave.gradients.outer import Met
from unweave.gradients.per_sample import at_most
from unweave.reading.samples import Samples
from unweave.space import CoreSpace, LayerSpace

MEASURED = 64
"""Samples whose gradients are measured, at most."""


def prices(space: CoreSpace, squares: Mapping[str, float]) -> dict[str, Tensor]:
    """c μ of the layers, float64 [groups] on the CPU.

    What has none, as groups that are protected altogether or not at all, or layers that no margin hangs on, gets what
    is usual: the geometric mean over layers of the geometric mean of their groups; where nothing has one, 1.

    Args:
        space: of the retained rows.
        squares: E‖g‖² for each layer.
    """
    found = {name: _slope(space.layers[name], square) * _mu(space.layers[name]) for name, square in squares.items()}
    logs = torch.stack([_mean_of_finite(price.log()) for price in found.values()])
    usual = _mean_of_finite(logs).exp().nan_to_num(1.0)
    return {name: price.where(price.log().isfinite(), usual) for name, price in found.items()}


def _mean_of_finite(values: Tensor) -> Tensor:
    """NaN where none is."""
    return values[values.isfinite()].mean()


def _slope(layer: LayerSpace, square: float) -> float:
    """c, or NaN."""
    info = layer.info
    trace, m = float(layer.sigma.double().square().sum()), math.prod(info.weight_shape) // (info.groups * info.d)
    return square / (m * trace) if trace > 0 else float("nan")


def _mu(layer: LayerSpace) -> Tensor:
    """μ of a layer's groups, [groups]; NaN where no direction is between free and protected."""
    left, lam = layer.left, layer.sigma.cpu().double().square()
    inside = ((left > 1e-6) & (left < 1 - 1e-6)).double()
    nearest = ((left - 0.5).abs() + 2 * (1 - inside)).argmin(1, keepdim=True)  # where μ = λ w / (1 − w) is surest
    return (lam * left / (1 - left)).gather(1, nearest).squeeze(1).where(inside.any(1), torch.nan)


def mean_squares(
    gradients: Gradients,
    once: Mapping[str, Met],
    weights: Mapping[str, Tensor],
    samples: Samples,
    v: Tensor,
    size: int,
    max_bytes: int,
) -> dict[str, float]:
    """E‖g‖² for each weight, over at most :data:`MEASURED` samples, as far apart as can be.

    Args:
        gradients: of single samples.
        once: what is known already of weights that meet each sample once.
        weights: all of them, by name.
        samples: n of them.
        v: cotangents [n, C].
        size: samples that may be run together.
        max_bytes: for gradients that are held at once; one sample's are in any case.
    """
    chosen, where = samples.apart(MEASURED)
    others = {name: weight for name, weight in weights.items() if name not in once}
    total = torch.zeros(len(others), dtype=torch.float64, device=v.device)
    if others:
        size = max(1, min(size, max_bytes // (8 * sum(weight.numel() for weight in others.values()))))
        for inputs, _, positions in at_most(chosen, size):
            found = gradients(others, inputs, v[where[positions]])
            total += torch.stack([_squares(found[name]).sum() for name in others])
    known = {name: float(met.squares()[where].mean()) for name, met in once.items()}
    return known | dict(zip(others, (total / len(chosen)).tolist(), strict=True))


def _squares(gradients: Tensor) -> Tensor:
    """‖g_i‖² of gradients [n, …], float64 [n]."""
    lengths: Tensor = torch.linalg.vector_norm(gradients.flatten(1), dim=1, dtype=torch.float64)
    return lengths.square()
