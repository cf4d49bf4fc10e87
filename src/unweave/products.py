"""G += rᵀ r for rows r, without the half that symmetry tells.

No BLAS call that PyTorch offers makes use of the symmetry, so the Gram is summed by block rows from the diagonal on:
with B of them (B + 1) / 2B of the products are left, 5/8 for four.
"""

from __future__ import annotations

from torch import Tensor

BLOCKS = 4
"""Block rows of a Gram: with more of them the products become too narrow to be quick."""

WIDE = 256
"""The least d that is worth splitting."""


def block_of(d: int) -> int:
    """How wide a block row of a Gram [d, d] is."""
    return d if d < WIDE else -(-d // BLOCKS)


def add_gram(gram: Tensor, rows: Tensor, times: int = 1) -> None:
    """Add ``times`` rowsᵀ rows to a Gram [groups, d, d] from rows [groups, n, d], on and above the diagonal only."""
    width = block_of(gram.shape[-1])
    for start in range(0, gram.shape[-1], width):
        block = gram[:, start : start + width, start:]
        block.baddbmm_(rows[:, :, start : start + width].mT, rows[:, :, start:], alpha=times)


def mirrored(gram: Tensor) -> Tensor:
    """The Gram of which this holds the part on and above the diagonal: symmetric to the last bit."""
    return gram.triu() + gram.triu(1).mT
