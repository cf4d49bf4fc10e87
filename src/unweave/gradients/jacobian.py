"""The Gram of a Jacobian's rows, Θ = G Gᵀ, without ever holding the Jacobian.

G has R rows for each sample i, ∇_w Σ_c v_c f_c(x_i) for each of its cotangents v [R, C]. With the unit vectors for
cotangents there is one for each class, R = C, and G is [n C, P]: for 2,000 samples, 10 classes and 1.6 million weights
130 GB in float32. Θ is [n C, n C], float64, 3.2 GB there. Columns of G are independent of each other,

    Θ = Σ_s G_s G_sᵀ      over slices s of the parameters,

so one buffer [n C, |s|] is filled and multiplied with itself a slice at a time, and the sum over slices is in float64.
With S = ⌈n C P / buffer⌉ slices of T tensors:

    passes    S n C forward passes of one sample, each with a backward pass down to the slice's first layer; weight
              gradients only for the tensors in the slice, T + S − 1 in all instead of T
    products  (n C)² P / 2 multiply-adds, as the lower triangle is enough

For that example with AllCNN (0.34 G multiply-adds a forward pass): 20,000 S sample passes of at most 1 G, and 3.2e14
multiply-adds for the products. S is 21 with 8 GiB, 11 with 16 GiB and 3 with 64 GiB. Taking rows in pairs of chunks
instead needs as many passes, each with the gradients of all weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unweave.errors import ConfigError
from unweave.gradients.per_sample import at_most, sample_gradients
from unweave.reading.batches import Inputs, run
from unweave.reading.rest import at_rest
from unweave.reading.samples import Samples

Pulled = dict[str, Tensor]
"""A vector-Jacobian product: for each weight a tensor of its shape, in float64."""

Gradients = Callable[[Mapping[str, Tensor], Inputs, Tensor], Mapping[str, Tensor]]
"""From weights by name, inputs of m samples and cotangents [m, C] to rows of G by weight, [m, *shape]."""

BUFFER_SHARE = 0.75
"""Of the bytes allowed, for the buffer; the rest is for gradients on their way into it."""
ROWS = 4096
"""Rows of the buffer in one product."""
JITTERS = (0.0, 1e-14, 1e-12, 1e-10, 1e-8)
"""What is added to the diagonal, as a share of its mean, until Cholesky succeeds."""


@dataclass(frozen=True)
class Piece:
    """Columns start … stop − 1 of one flattened parameter."""

    name: str
    start: int
    stop: int


def cut(sizes: Mapping[str, int], width: int) -> list[list[Piece]]:
    """Slices of exactly ``width`` columns, the last one narrower; a tensor may lie in several."""
    slices: list[list[Piece]] = []
    room = 0
    for name, size in sizes.items():
        start = 0
        while start < size:
            if room == 0:
                slices.append([])
                room = width
            stop = min(size, start + room)
            slices[-1].append(Piece(name, start, stop))
            room -= stop - start
            start = stop
    return slices


@dataclass(frozen=True)
class Plan:
    """The slices, and how many samples' gradients may be on their way at once in each."""

    slices: list[list[Piece]]
    chunks: list[int]
    width: int

    @staticmethod
    def make(weights: Mapping[str, Tensor], rows: int, max_bytes: int, chunk: int) -> Plan:
        """Divide the bytes.

        Raises:
            ConfigError: not enough for one column, or for one gradient of the tensors in a slice.
        """
        sizes = {name: weight.numel() for name, weight in weights.items()}
        each = _precision(weights).itemsize
        for_buffer = int(BUFFER_SHARE * max_bytes)
        width = for_buffer // (rows * each)
        slices = cut(sizes, min(max(width, 1), sum(sizes.values())))
        touched = [sum(sizes[piece.name] for piece in pieces) * each for pieces in slices]
        chunks = [min(chunk, (max_bytes - for_buffer) // size) for size in touched]
        if width < 1 or min(chunks) < 1:
            least = least_bytes(weights, rows)
            raise ConfigError(f"Invalid max_bytes: {max_bytes}. Supported here: from {least} on.")
        return Plan(slices, chunks, max(sum(p.stop - p.start for p in pieces) for pieces in slices))


def least_bytes(weights: Mapping[str, Tensor], rows: int) -> int:
    """From here on any amount does: one column of all rows, and one gradient of all weights. (Less may do.)"""
    each, size = _precision(weights).itemsize, sum(weight.numel() for weight in weights.values())
    return max(int(rows * each / BUFFER_SHARE), int(size * each / (1 - BUFFER_SHARE))) + each


def _precision(weights: Mapping[str, Tensor]) -> torch.dtype:
    """What rows are kept in: what the weights are in, but float32 at least."""
    return functools.reduce(torch.promote_types, (weight.dtype for weight in weights.values()), torch.float32)


def unit_cotangents(weights: Mapping[str, Tensor], samples: Samples, classes: int) -> Tensor:
    """[n, C, C]: for every sample each class alone; a view, which takes no memory for the samples."""
    units = torch.eye(classes, dtype=_precision(weights), device=samples.labels.device)
    return units.expand(len(samples), -1, -1)


def jacobian_gram(
    net: nn.Module,
    weights: Mapping[str, Tensor],
    samples: Samples,
    cotangents: Tensor,
    max_bytes: int,
    chunk: int = 32,
    progress: Callable[[int, int], None] | None = None,
    gradients: Gradients | None = None,
) -> Tensor:
    """Θ, float64 [n R, n R]; row i·R + r belongs to sample i and its cotangent r. Call it inside ``at_rest``.

    Args:
        net: in eval mode.
        weights: the parameters to differentiate by.
        samples: n of them.
        cotangents: v, [n, R, C], in the order of the samples' positions.
        max_bytes: for blocks of the Jacobian; Θ and the activations (on a GPU the patches of convolutions) of ``chunk``
            samples come on top.
        chunk: samples whose gradients are asked for together, at most.
        progress: called with the slices done and their number.
        gradients: how rows are had, or what counts of them, in the weights' shapes; None: :func:`sample_gradients`.

    Raises:
        ConfigError: ``max_bytes`` is too small.
        ModelError: see :func:`sample_gradients`.
    """
    rows = cotangents.shape[0] * cotangents.shape[1]
    plan = Plan.make(weights, rows, max_bytes, chunk)
    device, dtype = next(iter(weights.values())).device, _precision(weights)
    gradients = gradients or functools.partial(sample_gradients, net)
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=device)
    buffer = torch.empty(rows * plan.width, dtype=dtype, device=device)

    for done, (pieces, size) in enumerate(zip(plan.slices, plan.chunks, strict=True)):
        columns = sum(piece.stop - piece.start for piece in pieces)
        block = buffer[: rows * columns].view(*cotangents.shape[:2], columns)
        _fill(block, gradients, weights, samples, cotangents, pieces, size)
        _add_products(gram, block.view(rows, columns))
        if progress is not None:
            progress(done + 1, len(plan.slices))
    for start in range(0, rows, ROWS):
        gram[:start, start : start + ROWS] = gram[start : start + ROWS, :start].mT
    return gram


def _fill(
    block: Tensor,
    gradients: Gradients,
    weights: Mapping[str, Tensor],
    samples: Samples,
    cotangents: Tensor,
    pieces: list[Piece],
    size: int,
) -> None:
    """Write the slice's columns of all rows into block [n, R, columns]."""
    wanted = {piece.name: weights[piece.name] for piece in pieces}
    for inputs, labels, positions in at_most(samples, size):
        for r in range(cotangents.shape[1]):
            rows = gradients(wanted, inputs, cotangents[positions, r])
            column = 0
            for piece in pieces:
                part = rows[piece.name].reshape(len(labels), -1)[:, piece.start : piece.stop]
                block[positions, r, column : column + part.shape[1]] = part.to(block.dtype)
                column += part.shape[1]


def _add_products(gram: Tensor, block: Tensor) -> None:
    """The lower triangle of block blockᵀ, in bands, added to the Gram; and the upper one inside a band."""
    for start in range(0, len(block), ROWS):
        stop = min(start + ROWS, len(block))
        gram[start:stop, :stop] += block[start:stop] @ block[:stop].mT


def pulled(
    net: nn.Module,
    weights: Mapping[str, nn.Parameter],
    samples: Samples,
    v: Tensor,
    size: int,
    convolutions: str | None = "ieee",
) -> Pulled:
    """Gᵀ v for v [n, C]: the gradient of Σ v_ic f_c(x_i), summed over batches of ``size`` in float64.

    ``convolutions``: as :func:`unweave.reading.rest.at_rest` has them.
    """
    total = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    with at_rest(net, gradients=True, convolutions=convolutions):
        for inputs, _, positions in at_most(samples, size):
            logits = run(net, inputs)
            weighed = (logits * v[positions].to(logits.dtype)).sum()
            found = torch.autograd.grad(weighed, list(weights.values()), allow_unused=True)
            for name, part in zip(weights, found, strict=True):
                if part is not None:
                    total[name] += part
    return total


@dataclass(frozen=True)
class Solution:
    """x with (Θ + (ridge + jitter) I) x = e; None where no Cholesky factor was found."""

    x: Tensor | None
    jitter: float
    residual: float
    """‖(Θ + ridge I) x − e‖ / ‖e‖: what the jitter and rounding cost."""


def solve(gram: Tensor, e: Tensor, ridge: float) -> Solution:
    """Solve by Cholesky in float64; a jitter, if there had to be one, is stated and shows in the residual."""
    mean = float(gram.diagonal().mean())
    for share in JITTERS:
        shifted = gram.clone()
        shifted.diagonal().add_(ridge + share * mean)
        factor, info = torch.linalg.cholesky_ex(shifted)
        if int(info) == 0:
            x = torch.cholesky_solve(e[:, None], factor).squeeze(1)
            residual = gram @ x + ridge * x - e
            return Solution(x, share * mean, float(residual.norm() / e.norm().clamp_min(1e-300)))
    return Solution(None, JITTERS[-1] * mean, float("nan"))
