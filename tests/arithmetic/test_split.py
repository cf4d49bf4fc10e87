"""Grams from digits of eight bits, against float64 and against whole numbers, and where they are used."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any
from unittest import mock

import problems
import pytest
import torch
from helpers import gap, images, in_batches, small_cnn, sums_of
from hypothesis import given
from hypothesis import strategies as st
from test_structured import patches_like
from torch import Tensor

import unweave
from unweave.arithmetic import products, split
from unweave.arithmetic.products import add_gram, arithmetic_for, arithmetic_of, mirrored
from unweave.arithmetic.routes import kind_of, quickest
from unweave.arithmetic.split import CHUNK, DIGITS, add_split_gram, bound, digits_of, power_of_two

TWELVE = 1e-12
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split every Gram, however narrow."""
    monkeypatch.setenv(products.ARITHMETIC, "split")
    monkeypatch.setattr(products, "SPLIT_WIDE", 1)


def off(found: Tensor, expected: Tensor) -> float:
    """The largest difference of two Grams [groups, d, d], relative to √(G_ii G_jj)."""
    size = expected.diagonal(dim1=1, dim2=2).sqrt()
    scale = size[:, :, None] * size[:, None]
    assert bool((found[scale == 0] == 0).all())
    return ((found - expected).abs() / scale.clamp_min(1e-300)).max().item() if found.numel() else 0.0


def split_gram(rows: Tensor, times: int = 1) -> Tensor:
    gram = torch.zeros(len(rows), rows.shape[2], rows.shape[2], dtype=torch.float64)
    add_split_gram(gram, rows, times)
    return mirrored(gram)


def float64_gram(rows: Tensor) -> Tensor:
    return rows.double().mT @ rows.double()


def spread_rows(groups: int, n: int, d: int, spread: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows whose exponents go over a range of ``spread``, in each column."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(groups, n, d, generator=generator, dtype=torch.float64)
    exponents = torch.randint(-spread // 2, spread // 2 + 1, values.shape, generator=generator)
    return (values * power_of_two(exponents)).to(dtype)


# ----------------------------------------------------------------------------------------------------------- the digits


@pytest.mark.parametrize("dtype", DTYPES)
def test_digits_are_the_numbers_themselves(dtype: torch.dtype) -> None:
    rows = spread_rows(1, 37, 5, 24 if dtype != torch.float16 else 8, 0, dtype)[0]
    rows = rows if dtype != torch.float64 else rows.float().double()
    digits, scale = digits_of(rows)
    assert (digits.dtype, digits.shape) == (torch.int8, (32, DIGITS, 48))
    # Least first: q_7 first. Whole numbers below 2^54 and powers of two: exact in Python's integers.
    for j in range(rows.shape[1]):
        for i in range(rows.shape[0]):
            whole = sum(int(digits[j, k, i]) * 256**k for k in range(DIGITS))
            assert Fraction(whole, 256**DIGITS) * Fraction(scale[j].item()) == Fraction(rows[i, j].item())
    assert not digits[5:].any()
    assert not digits[:, :, 37:].any()


@given(exponents=st.lists(st.integers(-60, 60), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_what_the_digits_leave_out_is_below_their_cut(exponents: list[int], seed: int) -> None:
    values = torch.rand(len(exponents), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.5
    rows = values * power_of_two(torch.tensor(exponents))[:, None]
    digits, scale = digits_of(rows)
    whole = [sum(int(digits[0, k, i]) * 256**k for k in range(DIGITS)) for i in range(len(rows))]
    held = [Fraction(w, 256**DIGITS) * Fraction(scale[0].item()) for w in whole]
    rest = [Fraction(r) - h for r, h in zip(rows[:, 0].tolist(), held, strict=True)]
    exponent = math.frexp(rows.max().item())[1]
    assert max(map(abs, rest)) <= Fraction(2) ** (exponent - 55)


def test_powers_of_two_are_exact() -> None:
    exponents = [-1022, -1, 0, 1, 52, 1023]
    assert power_of_two(torch.tensor(exponents)).tolist() == [2.0**e for e in exponents]


# ------------------------------------------------------------------------------------------------------------- the sums


@given(
    groups=st.integers(1, 3),
    n=st.integers(0, 70),
    d=st.integers(1, 40),
    spread=st.integers(0, 40),
    times=st.integers(0, 5),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_the_gram_is_that_of_float64(
    groups: int, n: int, d: int, spread: int, times: int, dtype: torch.dtype, seed: int
) -> None:
    rows = spread_rows(groups, n, d, spread, seed, dtype)
    rows[:, :, torch.arange(d) % 5 == 3] = 0
    before = rows.clone()
    found = split_gram(rows, times)
    assert off(found, times * float64_gram(rows)) <= bound(n) + 1e-14
    assert torch.equal(rows, before)


def test_exponents_over_a_million_and_a_chunk_that_is_full() -> None:
    rows = spread_rows(1, CHUNK + 100, 6, 20, 0)
    expected = torch.zeros(1, 6, 6, dtype=torch.float64)
    for part in rows.split(512, dim=1):
        expected += float64_gram(part)
    assert off(split_gram(rows), expected) <= TWELVE


def test_the_bound_is_below_what_is_promised_and_is_nearly_reached() -> None:
    """One large value and many that consist of the digits whose products are left out, all of one sign."""
    assert bound(CHUNK) < 2e-13 < TWELVE
    n = CHUNK
    small = sum(-128 * Fraction(256) ** -s for s in range(3, DIGITS + 1)) * 8
    column = torch.full((n,), float(small), dtype=torch.float64)
    column[0] = 1.0
    assert Fraction(column[1].item()) == small
    assert digits_of(column[:, None])[1].item() == 8.0
    exact = 1 + (n - 1) * small**2
    found = Fraction(split_gram(column[None, :, None]).item())
    assert 0.7 * bound(n) * exact < abs(found - exact) <= bound(n) * exact


def test_sums_of_digits_do_not_overflow() -> None:
    """The values with the largest digits of one sign there are, in as long a chunk as there may be."""
    digits = torch.full((32, DIGITS, CHUNK), -128, dtype=torch.int8)
    half = split._half(digits)
    pairs = [(s, u) for s in range(1, DIGITS + 1) for u in range(1, DIGITS + 1) if s + u <= split.LAST_CLASS]
    expected = sum(Fraction(CHUNK * 2**14, 256 ** (s + u)) for s, u in pairs)
    assert gap(half + half.mT, torch.full((32, 32), float(expected), dtype=torch.float64)) < 1e-15
    assert sum(s <= u for s, u in pairs) == split.PRODUCTS


@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(1, 4, 3),
        torch.full((1, 4, 3), 1e-45),
        torch.full((1, 4, 3), 3e38),
        torch.tensor([1e-45, 1e-38, 1.0, 3e38]).repeat(2, 5, 1),
        torch.tensor([[1e-45, 3e38], [-1e-44, 1e-45], [2e-44, -3e38]])[None],
    ],
    ids=["zero", "subnormal", "huge", "a scale to each column", "both in one column"],
)
def test_the_ends_of_float32(rows: Tensor) -> None:
    assert off(split_gram(rows), float64_gram(rows)) <= 1e-14


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_shows(value: float) -> None:
    rows = torch.ones(1, 9, 3)
    rows[0, 4, 1] = value
    finite = split_gram(rows)[0].isfinite()
    assert finite.tolist() == [[True, False, True], [False] * 3, [True, False, True]]


@pytest.mark.parametrize("cut", [1, 33, 64, 99])
def test_grams_subtract_though_every_chunk_has_its_own_scales(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "CHUNK", 16)
    rows = spread_rows(2, 100, 20, 20, seed=3)
    full, forget = split_gram(rows), split_gram(rows[:, :cut])
    for retain in (split_gram(rows[:, cut:]), float64_gram(rows[:, cut:])):
        size = full.diagonal(dim1=1, dim2=2).sqrt()
        assert ((full - forget - retain).abs() / (size[:, :, None] * size[:, None])).max().item() <= TWELVE


def test_the_same_rows_give_the_same_bits_and_a_symmetric_gram() -> None:
    rows = spread_rows(1, 50, 30, 20, seed=4)
    assert torch.equal(split_gram(rows), split_gram(rows.clone()))
    assert torch.equal(split_gram(rows), split_gram(rows.flip(1)))  # whole numbers: in any order
    assert torch.equal(split_gram(rows), split_gram(rows.mT.contiguous().mT))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n, d", [(5, 3), (1000, 300), (CHUNK + 77, 257)])
def test_a_gpu_finds_the_same_bits(n: int, d: int, dtype: torch.dtype) -> None:
    rows = spread_rows(2, n, d, 8, 5, dtype)
    gram = torch.zeros(2, d, d, dtype=torch.float64, device="cuda")
    add_split_gram(gram, rows.cuda(), times=3)
    assert torch.equal(mirrored(gram).cpu(), split_gram(rows, times=3))


@given(n=st.integers(1, 40), d=st.integers(1, 40))
def test_products_have_the_shapes_that_gpus_ask_for(n: int, d: int) -> None:
    """More than 16 rows, multiples of 16, and both sides with the sum along their memory."""
    real = torch._int_mm

    def checked(left: Tensor, right: Tensor) -> Tensor:
        assert left.shape[0] > 16
        assert all(size % 16 == 0 for size in (*left.shape, *right.shape, left.stride(0), right.stride(1)))
        assert left.stride(1) == right.stride(0) == 1
        assert left.storage_offset() % 16 == right.storage_offset() % 16 == 0
        return real(left, right)

    with mock.patch.object(torch, "_int_mm", side_effect=checked) as used:
        split_gram(spread_rows(1, n, d, 0, 0))
    assert used.call_count == split.CALLS


# ----------------------------------------------------------------------------------------------------------- the choice


def test_the_arithmetic_follows_the_speed_of_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = [(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)]
    slow = [(7, 5), (8, 6), (8, 7), (8, 9), (10, 3), (11, 0), (12, 0), (12, 1)]
    without_small_products = [(6, 1), (7, 2)]
    assert {arithmetic_of(c) for c in fast + without_small_products} == {"float64"}
    assert {arithmetic_of(c) for c in slow} == {"split"}
    monkeypatch.delenv(products.ARITHMETIC, raising=False)
    assert arithmetic_for(torch.device("cpu")) == "float64"
    monkeypatch.setattr(products, "_capability", lambda device: (8, 9))
    assert arithmetic_for(torch.device("cuda", 0)) == "float64"  # it has to be asked for
    monkeypatch.setenv(products.ARITHMETIC, "auto")
    assert arithmetic_for(torch.device("cuda", 0)) == "split"
    assert arithmetic_for(torch.device("cpu")) == "float64"
    monkeypatch.setenv(products.ARITHMETIC, "float16")
    with pytest.raises(unweave.errors.ConfigError, match=r"UNWEAVE_ARITHMETIC: 'float16'\. Supported: 'float64'"):
        arithmetic_for(torch.device("cpu"))


@pytest.mark.parametrize("wanted, d, splits", [("split", 256, 1), ("split", 255, 0), ("float64", 256, 0)])
def test_only_wide_grams_are_split(wanted: str, d: int, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(products.ARITHMETIC, wanted)
    rows, gram = spread_rows(1, 20, d, 20, 0), torch.zeros(1, d, d, dtype=torch.float64)
    with mock.patch.object(products, "add_split_gram", side_effect=add_split_gram) as used:
        add_gram(gram, rows, times=2)
    assert used.call_count == splits
    assert off(mirrored(gram), 2 * float64_gram(rows)) <= TWELVE


def test_a_gpu_with_slow_float64_has_prices_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(products.ARITHMETIC, "split")
    assert kind_of(torch.device("cpu")) == "split"
    wide = patches_like({"N": 256, "C": 128, "side": 32, "kernel": 3, "stride": 1, "dilation": 1, "groups": 1})
    points = patches_like({"N": 256, "C": 512, "side": 32, "kernel": 1, "stride": 1, "dilation": 1, "groups": 1})
    assert quickest(wide, "split") == "correlations"  # 36 ms by correlations, 66 by patches
    assert quickest(points, "split") == "patches"


# ------------------------------------------------------------------------------------------------------------ the whole


def test_a_cnn_is_fitted_and_forgets_as_ever(pictures: problems.Problem, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("forced")  # after the problem is made, in float64
    with mock.patch.object(products, "add_split_gram", side_effect=add_split_gram) as used:
        full = unweave.fit(pictures.model, in_batches(pictures.x, pictures.y, 128), val=pictures.val)
    assert used.called
    assert max(off(full.grouped(name), pictures.grams.grouped(name)) for name in full) <= TWELVE
    settings: dict[str, Any] = {"epochs": 4, "seed": 0}
    config = unweave.ForgetConfig(**settings)
    result = unweave.forget(pictures.model, pictures.forgotten, full, val=pictures.val, config=config)
    expected = pictures.run(**settings)
    assert result.history[-1].forget_error == expected.history[-1].forget_error
    models = result.model, expected.model, pictures.model
    for here, there, before in zip(*(model.parameters() for model in models), strict=True):
        assert gap(here, there) < 1e-5
        assert here.dim() < 2 or gap(here, before) > 1e-3


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("size", [1, 5])
def test_grams_of_a_network_subtract(size: int) -> None:
    net, (x, labels) = small_cnn(), images(12)
    full, again = (unweave.fit(net, in_batches(x, labels, 12)) for _ in range(2))
    retain = full - unweave.fit(net, in_batches(x[:5], labels[:5], size))
    expected = unweave.fit(net, in_batches(x[5:], labels[5:], size))
    assert full == again
    for name in full:
        assert gap(retain[name], expected[name]) <= TWELVE


@pytest.mark.usefixtures("forced")
def test_infinite_rows_are_refused() -> None:
    sums = sums_of(torch.nn.Linear(4, 4), (torch.full((3, 4), math.inf),))
    with pytest.raises(unweave.errors.ModelError, match="'' was given NaN or infinite"):
        sums[""].result()
