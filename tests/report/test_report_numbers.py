"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from unweave.report.charts.attacks import found_at
from unweave.report.numbers import allowed, between, flattened, interval, moment, number, seconds, times


@pytest.mark.parametrize(
    "shown, expected",
    [
        (number(0.5313, "auc"), "0.531"),
        (number(-1.26, "points"), "−1.3 points"),
        (number(0.125, "share"), "12.5%"),
        (between(-0.6, 3.4, "points"), "−0.6 to +3.4 points"),
        (between(28.66, 41.9, "percent"), "28.7–41.9%"),
        (interval({"value": 0.5, "low": 0.4, "high": 0.6}, "auc"), "0.500 (0.400–0.600)"),
        (interval({"value": 2.0, "low": 2.0, "high": 2.0}, "points"), "+2.0 points"),
        (allowed([None, 0.6], "auc"), "at most 0.600"),
        (allowed([0.6, None], "auc"), "at least 0.600"),
        (allowed([0.4, 0.6], "auc"), "0.400–0.600"),
        (allowed([None, None]), "anything"),
        (seconds(0.002), "2 ms"),
        (seconds(6.2), "6.2 s"),
        (seconds(59.99), "60.0 s"),
        (seconds(95), "1 min 35 s"),
        (seconds(12_000), "3 h 20 min"),
        (times(0.0653), "15× faster"),
        (times(1.25), "1.2× slower"),
        (times(1.0), "as long as retraining"),
        (moment("2026-03-01T10:02:11Z"), "1 March 2026, 10:02 UTC"),
        (moment("2026-03-01T10:02:11+02:00"), "1 March 2026, 10:02 +0200"),
        (moment("yesterday"), "yesterday"),
    ],
)
def test_numbers_in_words(shown: str, expected: str) -> None:
    assert shown == expected


def test_settings_are_flattened() -> None:
    nested = {"a": {"b": 0.25, "c": []}, "d": [{"e": True}, None], "f": {}}
    assert flattened(nested) == [("a.b", "0.25"), ("a.c", ""), ("d[0].e", "yes"), ("d[1]", "–"), ("f", "–")]


def test_what_is_found_between_two_points_of_a_curve() -> None:
    curve = {"fpr": [0.0, 0.0, 0.5, 1.0], "tpr": [0.0, 0.4, 0.8, 1.0]}
    assert found_at(curve, 0.0) == pytest.approx(0.4)
    assert found_at(curve, 0.25) == pytest.approx(0.6)
    assert found_at(curve, 1.0) == pytest.approx(1.0)
