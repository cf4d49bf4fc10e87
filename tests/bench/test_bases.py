"""Every way to the core space comes to the exact one where it should, and the distance tells when it does not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchmarks import bases
from benchmarks.eigen import rows_like
from benchmarks.power import power_law

D, K = 24, 9


def turned(angle: float) -> tuple[Tensor, Tensor]:
    """The first K axes of D, and the same with the last of them turned by an angle out of their span."""
    axes = torch.eye(D, dtype=torch.float64)
    other = axes[:, :K].clone()
    other[:, K - 1] = math.cos(angle) * axes[:, K - 1] + math.sin(angle) * axes[:, K]
    return axes[:, :K], other


@pytest.mark.parametrize("angle", [0.0, 1e-3, 0.4, math.pi / 2])
def test_the_distance_is_the_sine_of_the_largest_angle_and_the_norm_of_the_difference(angle: float) -> None:
    exact, other = turned(angle)
    assert bases.distance(other, exact) == pytest.approx(math.sin(angle), abs=1e-12)
    norm = torch.linalg.matrix_norm(other @ other.mT - exact @ exact.mT, 2)
    assert bases.distance(other, exact) == pytest.approx(float(norm), abs=1e-8)


@pytest.fixture
def grams() -> tuple[Tensor, Tensor]:
    """A Gram with a gap at K, and the same after a small subtraction."""
    values = torch.cat([torch.linspace(20, 10, K), torch.linspace(2, 1, D - K)]).double()
    turn = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64)).Q
    before = turn @ torch.diag(values) @ turn.mT
    few = 0.2 * torch.randn(5, D, dtype=torch.float64)
    return before, before - few.mT @ few


def test_updates_from_the_basis_of_before_come_to_the_exact_space_where_there_is_a_gap(
    grams: tuple[Tensor, Tensor],
) -> None:
    before, after = grams
    exact, start = bases.leading(after)[1][:, :K], bases.leading(before)[1]
    stale = bases.distance(start[:, :K], exact)
    inside = bases.in_basis(after, start)
    assert stale > 1e-3
    once = bases.distance(bases.perturbed(inside, start, K, 1), exact)
    assert once < stale / 5
    assert bases.distance(bases.perturbed(inside, start, K, 12), exact) < once / 100
    assert bases.distance(bases.subspace_iteration(after, start[:, :K], 12), exact) < stale / 100
    whole, diagonal = bases.window_turned(inside, start, K, D)
    assert bases.distance(whole[:, :K], exact) < 1e-10
    assert bases.off_diagonal(diagonal) < 1e-12
    some, matrix = bases.window_turned(inside, start, K, 3)
    assert torch.allclose(bases.in_basis(after, some), matrix, atol=1e-12)
    assert bases.distance(bases.both(after, start, K, 3, 12), exact) < once / 100


def test_the_sign_function_gives_the_projector_by_products_alone(grams: tuple[Tensor, Tensor]) -> None:
    exact = bases.leading(grams[1])[1][:, :K]
    assert torch.allclose(bases.sign_projector(grams[1], 5.0, 40), exact @ exact.mT, atol=1e-10)


def test_the_complement_is_orthonormal_and_outside_the_core(grams: tuple[Tensor, Tensor]) -> None:
    core = bases.leading(grams[1])[1][:, :K]
    whole = torch.cat([core, bases.complement(core)], 1)
    assert torch.allclose(whole.mT @ whole, torch.eye(D, dtype=torch.float64), atol=1e-12)


def test_the_rank_is_the_smallest_that_holds_its_share() -> None:
    assert [bases.rank_for(torch.tensor([1.0, 4.0, 9.0]), gamma) for gamma in (0.4, 0.5, 0.51, 0.9, 1.0)] == [
        1,
        1,
        2,
        3,
        3,
    ]


def test_the_share_off_the_diagonal() -> None:
    assert bases.off_diagonal(torch.tensor([[3.0, 0.0], [4.0, 0.0]])) == pytest.approx(0.8)


def test_rows_have_the_spectrum_they_should() -> None:
    rows = rows_like(8, 40_000, "cpu", 0)
    found = torch.linalg.eigvalsh(rows.mT @ rows / len(rows)).flip(0)
    assert torch.allclose(found, torch.arange(1, 9).double() ** -1.5, rtol=0.05)


@pytest.mark.parametrize("exponent, factor", [(0.0, 2.0), (1.0, 0.5), (2.81, 1e-9)])
def test_an_exponent_is_found_again(exponent: float, factor: float) -> None:
    xs = [16, 64, 100, 1000]
    law = power_law(xs, [factor * x**exponent for x in xs])
    assert (law.exponent, law.factor, law.off_by) == (pytest.approx(exponent), pytest.approx(factor), pytest.approx(1))
    assert law(50_000) == pytest.approx(factor * 50_000**exponent)


def test_an_exponent_is_that_of_least_squares_where_points_scatter() -> None:
    law = power_law([1, 2, 4], [1, 4, 4])  # logarithms 0, 2, 2 in base two: slope 1, the middle one off by 2/3
    assert law.exponent == pytest.approx(1)
    assert law.off_by == pytest.approx(2 ** (2 / 3))


@pytest.mark.parametrize("xs, ys", [([1], [1]), ([2, 2], [1, 2]), ([1, 2], [0, 1])])
def test_points_without_a_line_are_refused(xs: list[float], ys: list[float]) -> None:
    with pytest.raises(ValueError, match="Supported"):
        power_law(xs, ys)
