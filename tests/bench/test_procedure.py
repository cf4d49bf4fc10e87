"""What U-LiRA is asked about: samples of one request, and networks that are never compared with themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import procedure
from unweave.demo import data, requests


def test_the_others_are_as_many_of_each_class_and_none_of_the_request() -> None:
    train = data.load("train")
    asked, more = requests.samples(train).forget, procedure.others(train)
    assert torch.equal(asked.y.bincount(), more.y.bincount())
    seen = {image.numpy().tobytes() for image in asked.x}
    assert not seen & {image.numpy().tobytes() for image in more.x}


def test_what_differs_is_found_and_no_network_is_compared_with_itself() -> None:
    """Of kinds that say the same nothing is found, though each network has a way of its own."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 10
    own = 3 * np.eye(10)[labels]

    def networks(lift: float) -> np.ndarray:
        return (1 + lift) * own + rng.normal(size=(12, 60, 10)) * 2

    trained = {"original": networks(2.0), "retrained": networks(0.0)}
    outputs = {
        **trained,
        **{f"{kind}, others gone": found for kind, found in trained.items()},
        "unlearned": networks(0.5),
    }
    rows = {(row["of"], row["against"]): row for row in procedure.compared(outputs, labels)}
    assert set(rows) == set(procedure.PAIRS)
    alike = rows["retrained, others gone", "retrained"]
    assert alike["networks"] == [6, 6]
    assert alike["auc"]["value"] == pytest.approx(0.5, abs=0.08)
    assert rows["unlearned", "retrained"]["networks"] == [12, 12]
    assert rows["unlearned", "retrained"]["auc"] == rows["unlearned", "retrained, others gone"]["auc"]
    assert rows["original", "retrained"]["auc"]["value"] > rows["unlearned", "retrained"]["auc"]["value"] > 0.55
