"""The choice of a step: what plain doubling would choose, with fewer tries."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from unweave.walking.walk import FIRST_MOVE, LEAST_MOVE, TRIALS, choose_doubling

Left = Callable[[int], float | None]


def doubled(left: Left) -> float:
    """The oracle: try 1, 2, 4 … one by one; the first that goes a tenth of the way, else the best before a ruin."""
    shares = [left(k) for k in range(TRIALS)]
    ruin = shares.index(None) if None in shares else TRIALS
    sound = {k: share for k, share in enumerate(shares[:ruin]) if share is not None}
    enough = [k for k, share in sound.items() if share <= 1 - FIRST_MOVE]
    if enough:
        return 2.0 ** min(enough)
    helping = [k for k, share in sound.items() if share < 1 - LEAST_MOVE]
    if helping:
        return 2.0 ** min(helping, key=lambda k: sound[k])
    return 0.5 * 2**ruin if ruin < TRIALS else 0.0


@pytest.mark.parametrize("first", [1e-7, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_a_step_that_goes_as_far_as_it_is_long_is_found_with_few_tries(first: float, power: float) -> None:
    tried: list[int] = []

    def left(k: int) -> float:
        tried.append(k)
        return 1 - first * 2 ** (power * k)

    chosen, tries = choose_doubling(left), tried.copy()
    assert chosen == doubled(left)
    assert len(tries) == len(set(tries))
    if power == 1.0 and first * chosen >= FIRST_MOVE:
        assert len(tries) <= 7


def test_a_hump_between_two_tries_is_not_missed() -> None:
    """Four first steps go far enough and sixteen overshoot, though one alone promises far less of both."""
    for beyond in (1.3, 0.9995, 0.95):
        shares = [0.9999, 0.97, 0.85, 0.7, beyond] + [1.5 + k for k in range(TRIALS - 5)]
        assert choose_doubling(shares.__getitem__) == doubled(shares.__getitem__) == 4.0


@pytest.mark.parametrize("ruin", range(TRIALS))
@pytest.mark.parametrize("rise", [1e-6, 3e-4, 2e-3, 5e-3])
def test_before_a_ruin_the_best_is_taken_and_half_the_ruin_where_none_helped(ruin: int, rise: float) -> None:
    def left(k: int) -> float | None:
        return None if k >= ruin else 1 - rise * 2**k

    assert choose_doubling(left) == doubled(left)


def test_a_ruin_at_the_first_try_gives_half_of_it() -> None:
    assert choose_doubling(lambda k: None) == 0.5


@pytest.mark.parametrize("share", [1.0, 1.5, 0.9995])
def test_where_no_step_helps_there_is_none(share: float) -> None:
    assert choose_doubling(lambda k: share) == 0.0


def test_any_single_hump_with_or_without_a_ruin_gives_what_doubling_gives() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(500):
        moved = torch.rand(TRIALS, generator=draw, dtype=torch.float64) ** 6
        top = int(torch.randint(TRIALS, (1,), generator=draw))
        ruin = int(torch.randint(2 * TRIALS, (1,), generator=draw))
        hump = [*moved[:top].sort().values.tolist(), 0.0, *moved[top + 1 :].sort(descending=True).values.tolist()]
        hump[top] = max(hump) * 1.1

        def left(k: int, hump: list[float] = hump, ruin: int = ruin) -> float | None:
            return None if k >= ruin else 1 - hump[k]

        assert choose_doubling(left) == doubled(left), (hump, ruin)
