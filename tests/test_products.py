from __future__ import annotations

import pytest
import torch
from helpers import gap

from unweave import products
from unweave.products import LEAST_PART, WIDE, add_gram, mirrored, parts_for


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


def test_half_of_the_products_are_left_out() -> None:
    gram = torch.zeros(1, 2 * WIDE, 2 * WIDE, dtype=torch.float64)
    add_gram(gram, torch.ones(1, 2, 2 * WIDE, dtype=torch.float64))
    assert (gram != 0).double().mean().item() == 5 / 8


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("n", [1, LEAST_PART, 4 * LEAST_PART, 7 * LEAST_PART + 3])
def test_parts_of_the_rows_add_up_to_the_whole_gram(monkeypatch: pytest.MonkeyPatch, n: int, groups: int) -> None:
    monkeypatch.setattr(products, "_processors", lambda device: 132)
    rows = torch.randn(groups, n, WIDE + 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gram = torch.zeros(groups, WIDE + 3, WIDE + 3, dtype=torch.float64)
    add_gram(gram, rows[:, :, : WIDE + 3], times=2)
    assert gap(mirrored(gram), 2 * rows.mT @ rows) < 1e-13


def test_rows_are_cut_until_every_processor_has_tiles() -> None:
    assert parts_for((1, 256, 1024), 32_768, 132) == 16  # 2 · 8 tiles, and 16 parts of them: 256 for 132 processors
    assert parts_for((1, 1024, 4096), 32_768, 132) == 1
    assert parts_for((1, 192, 192), 131_072, 132) == 66
    assert parts_for((1, 192, 192), 4 * LEAST_PART, 132) == 4
    assert parts_for((3, 192, 192), 131_072, 132) == 1
    assert parts_for((1, 192, 192), 131_072, 0) == 1
