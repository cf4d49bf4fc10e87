"""G += rᵀ r to twelve digits without float64 products: rows in digits of eight bits, multiplied as whole numbers.

For GPUs whose float64 is slow: gaming and workstation cards do one float64 operation where they do 64 in float32, and
512 on 8-bit whole numbers, with exact sums in int32.

**The digits.** A chunk of rows r [n, d], n ≤ 2^15, is scaled column by column. With 2^(e−1) ≤ max |r_j| < 2^e::

    r_j = 2^(e_j + 2) Σ over s = 1 … 7 of  q_s 256^−s  + δ_j        q_s whole, −128 ≤ q_s ≤ 127,  |δ_j| ≤ 2^(e_j − 55)

54 bits below the column's largest value: a float32 is kept whole down to 2^−30 of it. (The scale leaves the first digit
within ±64, so that carries from below always fit.)

**The products.** A sum of n products of digits is exact in int32, and so is one over the three pairs s < u of a class
c = s + u (3 · 2^15 · 2^14 < 2^31): a class is one matrix product, with its digits side by side along the rows::

    G_ij = 2^(e_i + e_j + 4) Σ over c of 256^−c  Σ over s + u = c of  q_s,iᵀ q_u,j

(s, u) and (u, s) are transposes, so those with s < u and half of (s, s) are taken, and the transpose added at the end.
Classes above 9 are left out: 19 products of 28 are made, in 11 calls.

**The error**, relative to √(G_ii G_jj) of the chunk, since ‖r_j‖ ≥ 2^(e_j − 1)::

    from δ          2 √n 2^−54
    left out        n 2^20 Σ over c ≥ 10 of (15 − c) 256^−c  ≈  5 n 2^−60
    float64 sums    11 · 2^−53 (1 + √n / 64)²

:func:`bound` is their sum, 1.8e-13 for n = 2^15, whatever the values are. By Cauchy and Schwarz it holds for the sum of
all chunks too, relative to √(G_ii G_jj) of the whole. So Grams subtract although every chunk has scales of its own. All
is exact but a few float64 additions in a fixed order: the same rows give the same bits, on every device.

**What it costs**, for n rows: 38 n d² operations on 8-bit numbers in place of 1.25 n d² in float64 (block rows). So it
pays where 8-bit products are more than 30 times as fast. By the data sheets that is 512 times on an RTX 3090 or 4090,
an A10 or a T4; 32 on an A100 and 30 on an H200, which have nothing to gain. Besides, in bytes of memory traffic::

    120 n d         to cut the digits, with PyTorch's own operations
    310 d²          to add 11 products up in float64, once a chunk

On an RTX 4090 (660 · 10^12 8-bit and 1.3 · 10^12 float64 operations a second, 10^12 bytes) the first takes as long as
the products at d = 2,100, and as the whole float64 way at d = 130; the second as long as the products at n = 5,300. So
chunks are as long as int32 allows, 2^15 rows, where there are so many. In all, by count, it should be 1.8 times as fast
as float64 at d = 256, 5 times at 1,024 and 7 times at 4,608. float32 products would be exact as well, for 2^10 rows at
a time (2^14 · 2^10 = 2^24), at an eighth of the speed and with 32 times the float64 additions: hardly a gain.

Held for a while are 16 bytes a number of the chunk, and 12 d² bytes.

float64 must exist, if slow: Apple's GPUs have none, and their Grams cannot be kept as they are here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

DIGITS = 7
"""Digits of eight bits to a number."""

LAST_CLASS = 9
"""The largest s + u for which digits s and u are multiplied."""

CHUNK = 1 << 15
"""The most rows that share their scales: three pairs of digits sum up to less than 2^31."""

MULTIPLE = 16
"""Rows and columns are filled up with zeros to a multiple of this: kernels for 8-bit products ask for 8, or 16."""

LEAST = 32
"""The least width: PyTorch refuses products of fewer than 17 rows on a GPU."""

PRODUCTS = sum(max(0, c // 2 - max(1, c - DIGITS) + 1) for c in range(2, LAST_CLASS + 1))
"""Products of two digits that are made."""

CALLS = 11
"""Matrix products a chunk: seven classes with s < u, and four of a digit with itself."""

LOWEST = -900
"""The least exponent of a scale: a column below 2^−900 adds nothing that float64 could hold."""

_SIGNS = int.from_bytes(b"\x80" * DIGITS, "little")


def bound(n: int) -> float:
    """How far the Gram of n rows may be off, relative to √(G_ii G_jj); larger n are cut into chunks."""
    n = min(n, CHUNK)
    dropped = sum((2 * DIGITS + 1 - c) * 256.0**-c for c in range(LAST_CLASS + 1, 2 * DIGITS + 1))
    rounded = CALLS * 2.0**-53 * (1 + math.sqrt(n) / 64) ** 2
    return 2 * math.sqrt(n) * 2.0**-54 + n * 2.0**20 * dropped + rounded


def add_split_gram(gram: Tensor, rows: Tensor, times: int = 1) -> None:
    """Add ``times`` rowsᵀ rows to a Gram, float64 [groups, d, d], from rows [groups, n, d] of any floating-point type.

    Columns with a value that is not finite become NaN.
    """
    if not rows.shape[1]:
        return
    for own, group in zip(gram, rows, strict=True):
        for chunk in group.split(CHUNK):
            digits, scale = digits_of(chunk)
            half = _half(digits)[: len(scale), : len(scale)]
            half *= scale[:, None]
            half *= times * scale
            own += half
            own += half.mT


def digits_of(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Digits int8 [D, 7, N] of rows [n, d], the *least* first, and the scales float64 [d]: r = scale Σ q_s 256^−s.

    D and N are d and n filled up with zeros; numbers lie along the rows, which is how 8-bit products want both sides.
    """
    low, high = torch.aminmax(rows, dim=0)
    largest = torch.maximum(-low, high).double()
    exponent = torch.frexp(largest).exponent.clamp_min(LOWEST)
    n, d = rows.shape
    whole = torch.zeros(max(LEAST, _filled(d)), _filled(n), dtype=torch.int64, device=rows.device)
    # A product of float32 and float64 is one in float64, so that nothing is lost or too small here.
    scaled = rows.mT * power_of_two(8 * DIGITS - 2 - exponent)[:, None]
    whole[:d, :n] = scaled.round_()
    del scaled
    # Adding 128 to every byte and taking it off again without carries leaves bytes that are signed digits.
    whole += _SIGNS
    whole ^= _SIGNS
    digits = whole.view(torch.int8).unflatten(1, (-1, 8))[..., :DIGITS].mT.contiguous()
    return digits, torch.where(largest.isfinite(), power_of_two(exponent + 2), torch.nan)


def _half(digits: Tensor) -> Tensor:
    """H, float64 [D, D], with H + Hᵀ = Σ over s + u ≤ 9 of 256^−(s + u) q_sᵀ q_u: classes from the least on."""
    width, _, n = digits.shape
    up, down = digits.flip(1).flatten(1), digits.flatten(1)  # the digits 1 … 7 side by side, and 7 … 1
    half = torch.zeros(width, width, dtype=torch.float64, device=digits.device)
    for c in range(LAST_CLASS, 1, -1):
        first, last = max(1, c - DIGITS), (c - 1) // 2
        if first <= last:  # s = first … last beside u = c − first … c − last
            begin = DIGITS - c + first
            left, right = up[:, (first - 1) * n : last * n], down[:, begin * n : (begin + last - first + 1) * n]
            half.add_(torch._int_mm(left, right.mT), alpha=256.0**-c)
        if c % 2 == 0:
            own = up[:, (c // 2 - 1) * n : c // 2 * n]
            half.add_(torch._int_mm(own, own.mT), alpha=0.5 * 256.0**-c)
    return half


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in float64, put together from its bits: a GPU's pow() may be off in the last one."""
    bits: Tensor = (exponent.to(torch.int64).clamp(-1022, 1024) + 1023) << 52
    return bits.view(torch.float64)


def _filled(count: int) -> int:
    return -(-count // MULTIPLE) * MULTIPLE
