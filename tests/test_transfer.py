from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from unweave import transfer
from unweave.transfer import STAGE_BYTES, moved

SIZE = 4
"""Of a buffer here."""


class Marks:
    """Counts how many chunks are on their way at once, if each arrives only when it is waited for."""

    def __init__(self) -> None:
        self.open = self.most = 0

    def mark(self) -> Callable[[], None]:
        self.open += 1
        self.most = max(self.most, self.open)
        return self.arrived

    def arrived(self) -> None:
        self.open -= 1


@pytest.mark.parametrize("way", [transfer._fetch, transfer._send])
@pytest.mark.parametrize("count", [1, SIZE, 2 * SIZE, 3 * SIZE, 5 * SIZE + 3])
def test_every_chunk_arrives_and_no_buffer_is_used_twice_at_once(way: Callable[..., None], count: int) -> None:
    marks, source, there = Marks(), torch.arange(count), torch.full((count,), -1)
    way(source, there, [torch.empty(SIZE, dtype=torch.long) for _ in range(2)], marks.mark)
    assert torch.equal(there, source)
    assert marks.open == 0
    assert marks.most == min(2, -(-count // SIZE))


def test_what_is_there_already_is_not_copied() -> None:
    tensor = torch.empty(STAGE_BYTES, dtype=torch.float64)
    assert moved(tensor, "cpu") is tensor


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("elements", [10, STAGE_BYTES // 8, 3 * STAGE_BYTES // 8 + 5])
def test_a_gpu_and_back_gives_the_same_bits(elements: int) -> None:
    tensor = torch.randn(5, elements, dtype=torch.float64).mT  # not contiguous
    there = moved(tensor, "cuda")
    assert there.is_cuda
    assert torch.equal(there, tensor.cuda())
    assert torch.equal(moved(there, "cpu"), tensor)
