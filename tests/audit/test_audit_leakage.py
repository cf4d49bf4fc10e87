"""What stored Grams give away."""

from __future__ import annotations

import pytest
import torch
from helpers import grams_from, spectrum_gram

from unweave.audit.leakage import leakage, level


@pytest.mark.parametrize(
    "density, expected",
    [(0.1, "high"), (1, "high"), (9.9, "high"), (10, "some"), (38.9, "some"), (39, "low"), (1e6, "low")],
)
def test_levels_follow_what_was_measured(density: float, expected: str) -> None:
    assert level(density) == expected


def test_each_layer_is_counted() -> None:
    grams = grams_from({"wide": spectrum_gram([1.0] * 20), "narrow": spectrum_gram([1.0] * 2)}, samples=100, rows=700)
    assert leakage(grams) == [
        {"layer": "wide", "rows": 700, "samples": 100, "dimension": 20, "samples_per_dimension": 5.0, "level": "high"},
        {"layer": "narrow", "rows": 700, "samples": 100, "dimension": 2, "samples_per_dimension": 50.0, "level": "low"},
    ]


def test_a_tally_of_tokens_has_a_dimension_for_each() -> None:
    (found,) = leakage(grams_from({"embed": torch.ones(500, 1, 1, dtype=torch.float64)}, samples=1000))
    assert (found["dimension"], found["level"]) == (500, "high")
