"""How much of a step a direction keeps: nothing or all of it (the paper), or the less the more retained rows use it.

With the retained rows R, G = RᵀR = U diag(λ) Uᵀ and σ = √λ, a gradient g, seen as a matrix [m, d], becomes::

    g U diag(w) Uᵀ          w [d], between 0 (the direction is protected) and 1 (it is free)

hard
    w = 0 for the first k directions, 1 for the others: the paper's projection, g − (g M) Mᵀ. All free directions are
    equally free, though the retained rows use some of them far more than others.

soft
    A step Δ moves the layer's outputs on the retained rows by R Δᵀ. The step that lowers the loss most for its length
    and for what the retained rows feel of it is::

        argmin over Δ of  ⟨g, Δ⟩ + ½ ‖Δ‖² + 1/(2μ) ‖R Δᵀ‖²   =   −g (I + G/μ)⁻¹       so  w = μ / (λ + μ)

    (Steps are weighed by it twice, see :mod:`unweave.walking.descent`; that did better than once wherever it was
    tried.)

    1 − w = λ / (λ + μ) is the protected share of a direction, and γ is what it is for hard: the protected share of the
    energy, Σ (1 − w) σ = γ Σ σ, which has exactly one solution μ. For γ = 1 it is μ = 0: the exact null space is free
    and nothing else, as for hard.

auto
    Hard, and soft in a layer whose retained rows use its directions nearly alike. What the faintest of them hold, those
    with the last tenth of Σ σ, is the share

        Σ p_i λ_i / Σ λ          of the rows' squared lengths, ‖R‖² = tr G

    p_i: the part of σ_i in that tenth, 1 beyond the direction it begins in, 0 before it, and for the first in any case.
    σ of images and of what layers make of them falls steeply, and a tenth of Σ σ is a hundredth of that or less. Where
    it does not, as in a first layer that sees standardised columns of a table, a tenth of Σ σ is a tenth of the rows
    themselves: two free directions of twenty would be used nearly as much as the other eighteen, and of eight, or with
    a larger γ, none would be free at all. That is asked of a layer, not of γ: the share is the same whatever γ is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PROTECTIONS = ("auto", "hard", "soft")

FAINT, MUCH = 0.1, 0.02
"""With "auto" a layer is protected softly where the directions that hold the last tenth of Σ σ hold more than this
share of the retained rows."""

HALVINGS = 64
"""Of the bracket of log μ, which is some tens wide: to the last digit."""


def hard(rank: Tensor, d: int) -> Tensor:
    """w, float64 [groups, d], for ranks k [groups]: 0 for the first k directions, 1 for the others."""
    return (torch.arange(d)[None] >= rank.cpu()[:, None]).double()


def uses_all_alike(sigma: Tensor) -> bool:
    """Whether the retained rows use a layer's directions so nearly alike that "auto" protects it softly."""
    return faint_share(sigma) > MUCH


def faint_share(sigma: Tensor) -> float:
    """What the last tenth of Σ σ holds of Σ λ, over all groups of a layer; σ [groups, d] descending.

    The direction in which that tenth begins counts by its part, so that d directions that are used alike have 0.1
    whatever d is. 0 where there are no rows, and where a group has one direction, which is protected or is not.
    """
    sigma = sigma.double()
    so_far = sigma.cumsum(1)
    part = (so_far - (1 - FAINT) * so_far[:, -1:]).clamp(min=0).minimum(sigma)  # of σ, in the last tenth
    part[:, 0] = 0  # the one that is used most is not faint, though it may hold nine tenths alone
    whole = float(sigma.square().sum())
    return float((part * sigma).sum()) / whole if whole > 0 else 0.0


def soft(sigma: Tensor, gamma: float, power: int, present: Tensor) -> Tensor:
    """w, float64 [groups, d], for σ [groups, d] in descending order.

    Args:
        sigma: on any device; the answer is on the CPU, where a search is quick.
        gamma: the protected share of the energy, in (0, 1].
        power: of σ that is the energy.
        present: [groups], how many directions the retained rows have for certain; all that γ = 1 goes by. Below 1 the
            faintest ones are free anyway.
    """
    if gamma == 1 or sigma.shape[1] == 1:  # a group of one direction, as an embedding's id, is protected or is not
        return hard(present, sigma.shape[1])
    return torch.from_numpy(_soft(sigma.cpu().numpy(), gamma, power))


def _soft(sigma: np.ndarray, gamma: float, power: int) -> np.ndarray:
    """w [groups, d], by halving a bracket of log μ.

    The bracket: where μ ≤ λ (1 − γ) / γ, a direction of λ is protected by γ at least, and where μ ≥ that, at most.
    """
    used = sigma > 0
    lam, energy = np.where(used, sigma, 1.0) ** 2, np.where(used, sigma, 0.0) ** power
    whole = np.maximum(energy.sum(1), np.finfo(np.float64).tiny)
    ends = np.where(used, lam, np.inf).min(1), np.where(used, lam, 0.0).max(1)
    usable = used.any(1)
    low, high = (np.log(np.where(usable, end, 1.0)) + np.log1p(-gamma) - np.log(gamma) for end in ends)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        protected = (energy * (lam / (lam + np.exp(middle)[:, None]))).sum(1) / whole
        low, high = np.where(protected > gamma, middle, low), np.where(protected > gamma, high, middle)
    mu = np.exp((low + high) / 2)[:, None]
    return np.where(used, mu / (lam + mu), 1.0)
