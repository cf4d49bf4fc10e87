"""A model that does not know its training samples better than others: other samples, labels or inputs, most likely."""

from __future__ import annotations

import warnings

import pytest
import torch
from problems import Problem

import unweave
from unweave.behaviour.outcomes import Outcomes, read
from unweave.errors import UnweaveWarning
from unweave.fitting.known import warn_of_unknown


def outcomes(count: int, wrong: int) -> Outcomes:
    """So many samples of two classes, so many of which are wrong."""
    logits = torch.tensor([[2.0, 0.0]]).repeat(count, 1)
    labels = torch.zeros(count, dtype=torch.long)
    labels[:wrong] = 1
    return read(logits, labels)


@pytest.mark.parametrize(
    ("training", "held_out", "told"),
    [
        ((1000, 450), (500, 150), True),
        ((1000, 340), (500, 150), False),  # four points more are no reason
        ((40, 18), (20, 6), False),  # fifteen points, and all of it may be chance
        ((1000, 100), (500, 150), False),
        ((0, 0), (500, 150), False),
    ],
)
def test_only_clearly_more_errors_than_on_held_out_samples_are_told(
    training: tuple[int, int], held_out: tuple[int, int], told: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_unknown(outcomes(*training), outcomes(*held_out))
    assert bool(caught) == told


def test_fit_tells_of_permuted_labels_and_names_both_errors(points: Problem) -> None:
    mixed = points.y[torch.randperm(len(points.y), generator=torch.Generator().manual_seed(0))]
    wrong = 100 * (points.model(points.x).argmax(1) != mixed).double().mean().item()
    with pytest.warns(UnweaveWarning, match=f"wrong on {wrong:.1f} % of the training samples, and on .* validation"):
        unweave.fit(points.model, [(points.x, mixed)], val=points.val)
