from __future__ import annotations

import pytest
import torch
from helpers import gap

from unweave.arithmetic.products import WIDE, add_gram, mirror_, mirrored


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("d", [1, 5, WIDE - 1, WIDE, WIDE + 3])
def test_block_rows_add_up_to_the_whole_gram(d: int, groups: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(groups, 40, d, dtype=torch.float64, generator=generator)
    more = torch.randn(groups, 7, d, dtype=torch.float64, generator=generator)
    gram = torch.zeros(groups, d, d, dtype=torch.float64)
    add_gram(gram, rows, times=3)
    add_gram(gram, more)
    found = mirrored(gram)
    assert gap(found, 3 * rows.mT @ rows + more.mT @ more) < 1e-13
    assert torch.equal(found, found.mT)


@pytest.mark.parametrize("strip", [1, 4, 7, 100])
def test_a_gram_is_mirrored_in_place_a_strip_at_a_time(strip: int) -> None:
    gram = torch.randn(2, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = mirrored(gram)
    mirror_(gram, strip)
    assert torch.equal(gram, expected)


def test_half_of_the_products_are_left_out() -> None:
    gram = torch.zeros(1, 2 * WIDE, 2 * WIDE, dtype=torch.float64)
    add_gram(gram, torch.ones(1, 2, 2 * WIDE, dtype=torch.float64))
    assert (gram != 0).double().mean().item() == 5 / 8
