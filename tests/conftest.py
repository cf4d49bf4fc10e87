from __future__ import annotations

from collections.abc import Iterator

import problems
import pytest
import torch
from hypothesis import settings
from torch import Tensor

from unweave import layers

# No deadline: the first example of a test pays for imports and for PyTorch's warm-up. Derandomised: a failure repeats.
settings.register_profile("unweave", deadline=None, max_examples=40, derandomize=True, database=None)
settings.load_profile("unweave")


@pytest.fixture(autouse=True)
def _fixed_randomness() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def registry() -> Iterator[None]:
    """Whatever a test registers is gone afterwards."""
    before = dict(layers._REGISTRY)
    yield
    layers._REGISTRY.clear()
    layers._REGISTRY.update(before)


@pytest.fixture(scope="session")
def points() -> problems.Problem:
    """An MLP that knows 300 points by heart; to forget: 40 of them."""
    return problems.points()


@pytest.fixture(scope="session")
def pictures() -> problems.Problem:
    """A CNN that knows 240 images by heart; to forget: 40 of them."""
    return problems.pictures()


@pytest.fixture(scope="session")
def poisoned() -> tuple[problems.Problem, Tensor]:
    """An MLP that has learnt 40 wrong labels, which are to be forgotten; and the true labels."""
    return problems.poisoned()
