"""Ways to the core space of a Gram, and how far each is from the exact one. Shapes: G [d, d], U [d, d], M [d, k].

P = M Mᵀ is what a request needs. The exact way is a full eigendecomposition. The others start from the eigenvectors
U = [M, N] of before a small subtraction, or from k alone:

    B = Uᵀ G U = [[A, Cᵀ], [C, D]]          A [k, k] in the core, D [d−k, d−k] in the rest

A graph subspace [I; X] is invariant under B if C + D X − X A − X Cᵀ X = 0; then the new core is the span of M + N X.
Dropping everything but the diagonals of A and D gives the first step of perturbation theory, X_ij = C_ij / (a_j − d_i);
putting that X into what was dropped and solving again is one more step. Where a_j ≈ d_i, at the cut, this need not
converge: the error says so.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rank_for(eigenvalues: Tensor, gamma: float) -> int:
    """The smallest k whose leading σ = √λ hold a share γ of all; eigenvalues in any order."""
    sigma = eigenvalues.clamp_min(0).sqrt().sort(descending=True).values
    return int((sigma.cumsum(0) < gamma * sigma.sum()).sum()) + 1


def leading(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [d] and eigenvectors [d, d], largest first."""
    values, vectors = torch.linalg.eigh(gram)
    return values.flip(0), vectors.flip(1)


def distance(basis: Tensor, exact: Tensor) -> float:
    """‖P − P_exact‖₂, the sine of the largest angle: 0 the same space, 1 a direction lost. Bases [d, k] orthonormal."""
    outside = basis - exact @ (exact.mT @ basis)
    return float(torch.linalg.eigvalsh(outside.mT @ outside)[-1].clamp_min(0).sqrt())


def subspace_iteration(gram: Tensor, start: Tensor, steps: int) -> Tensor:
    """M ← the Q of G M, some times over; pulls to the core by λ_{k+1}/λ_k a step."""
    basis = start
    for _ in range(steps):
        basis = torch.linalg.qr(gram @ basis).Q
    return basis


def in_basis(gram: Tensor, vectors: Tensor) -> Tensor:
    """B = Uᵀ G U: two products."""
    return vectors.mT @ gram @ vectors


def off_diagonal(matrix: Tensor) -> float:
    """The Frobenius norm off the diagonal, as a share of the whole."""
    rest = matrix - torch.diag(matrix.diagonal())
    return float(rest.norm() / matrix.norm())


def perturbed(matrix: Tensor, vectors: Tensor, k: int, steps: int) -> Tensor:
    """The core after ``steps`` corrections by perturbation theory, from B = Uᵀ G U; orthonormal [d, k]."""
    a, c, d = matrix[:k, :k], matrix[k:, :k], matrix[k:, k:]
    gaps = a.diagonal()[None, :] - d.diagonal()[:, None]
    tiny = torch.finfo(gaps.dtype).eps * matrix.diagonal().abs().max()
    gaps = torch.where(gaps.abs() < tiny, tiny, gaps)
    x = c / gaps
    for _ in range(steps - 1):
        dropped = d @ x - d.diagonal()[:, None] * x - (x @ a - x * a.diagonal()[None, :]) - x @ (c.mT @ x)
        x = (c + dropped) / gaps
    if not bool(torch.isfinite(x).all()):
        return torch.full_like(vectors[:, :k], float("nan"))
    core: Tensor = torch.linalg.qr(vectors[:, :k] + vectors[:, k:] @ x).Q
    return core


def window_turned(matrix: Tensor, vectors: Tensor, k: int, window: int) -> tuple[Tensor, Tensor]:
    """U and B after an exact eigendecomposition of B within ``window`` directions on either side of the cut alone."""
    low, high = max(0, k - window), min(len(matrix), k + window)
    _, turn = leading(matrix[low:high, low:high])
    vectors, matrix = vectors.clone(), matrix.clone()
    vectors[:, low:high] = vectors[:, low:high] @ turn
    matrix[:, low:high] = matrix[:, low:high] @ turn
    matrix[low:high] = turn.mT @ matrix[low:high]
    return vectors, matrix


def both(gram: Tensor, vectors: Tensor, k: int, window: int, steps: int) -> Tensor:
    """The pairs near the cut, whose gaps are small, exactly; the pairs across it that are far apart by perturbation."""
    turned, inside = window_turned(in_basis(gram, vectors), vectors, k, window)
    return perturbed(inside, turned, k, steps)


def sign_projector(gram: Tensor, cut: float, steps: int) -> Tensor:
    """P = (I + sign(G − cut I)) / 2 by Newton and Schulz, X ← X (3 I − X²) / 2: products only, two a step."""
    x = gram - cut * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    x = x / torch.linalg.matrix_norm(x, 1)
    for _ in range(steps):
        x = 1.5 * x - 0.5 * x @ (x @ x)
    projector: Tensor = (torch.eye(len(x), dtype=x.dtype, device=x.device) + x) / 2
    return projector


def complement(core: Tensor) -> Tensor:
    """N [d, d−k] that makes M whole, by a complete QR (Householder) decomposition."""
    whole: Tensor = torch.linalg.qr(core, mode="complete").Q
    return whole[:, core.shape[1] :]
