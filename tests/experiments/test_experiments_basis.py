"""What stands under a table: seeds, networks behind attacks, trials behind settings; by hand, from small documents."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.documents.basis import basis, count, settings, span, timed_seeds, timed_steps, tuning
from experiments.documents.distances import distances, gap
from experiments.documents.paper_numbers import PAPER


def rests_on(**kinds: int) -> dict[str, Any]:
    return {"rests on": {kind.replace("_", " "): number for kind, number in kinds.items()}}


def test_networks_behind_an_attack_are_counted_over_rows_and_the_control_is_told_apart() -> None:
    methods = {
        "retrained": {"rmia": rests_on(retrained=4, on_trial=1)},
        "match": {"xgboost": rests_on(full=5, retrained=5, on_trial=1), "rmia": rests_on(retrained=5, on_trial=5)},
        "scrub": {"rmia": rests_on(retrained=5, on_trial=2)},
    }
    document = {"attacks": {"methods": methods}, "paper": PAPER["table1"]}
    said = basis(document)
    assert said.startswith("n: seeds behind a row")
    assert "XGBoost attack: 5 full + 5 retrained + 1 on trial networks (the paper: 50 full + 50 retrained" in said
    control = "in the row of retraining 4 retrained + 1 on trial"
    assert f"RMIA: 5 retrained + 2 to 5 on trial networks ({control})." in said
    assert "U-LiRA" not in said
    assert "XGBoost" not in basis(document, ("rmia",))
    assert basis({}) == "n: seeds behind a row, mean ± standard deviation."


def errors(*values: float, seeds: range | None = None) -> dict[str, Any]:
    return {"title": "it", "seeds": list(seeds or range(len(values))), "errors": {"test": {"values": list(values)}}}


def test_a_method_on_some_originals_is_not_better_because_they_are() -> None:
    rows = {
        "original": errors(10, 10, 14, 14),
        "retrained": errors(12, 14, 13, 13, seeds=range(10, 14)),
        "it": errors(11, 13),  # rises by 1 and by 3 over two originals that are 2 better than the average
        "single": errors(15, seeds=range(2, 3)),
    }
    value, deviation = gap(rows, "it", "test")
    assert value == pytest.approx(12 + 2 - 13)
    # variances of the rise, of originals and of retrained networks: 2 of two, 16/3 of four, 2/3 of four
    assert deviation == pytest.approx((2 / 2 + 16 / 12 + 2 / 12) ** 0.5)
    assert gap(rows, "single", "test") == (pytest.approx(12 + 1 - 13), None)
    rows = {name: {**row, "seconds": None} for name, row in rows.items()}
    said = distances(rows, {}, ("it", "single", "absent"), ("test",)).splitlines()
    assert said[2:] == ["- it: test +1.00 ± 1.58 points", "- it: test +0.00 points"]
    rows["original"] = errors(10, 10)
    assert "- it: test" in distances(rows, {}, ("it",), ("test",))
    assert "- it: test" not in distances(rows, {}, ("single",), ("test",)), "its original is not there"
    del rows["original"]
    assert distances(rows, {}, ("it",), ("test",)) == "Not run yet: the original or the retrained networks."


def test_a_baseline_shows_the_trial_it_was_taken_from() -> None:
    trials = [
        {"forgotten": 0.2, "target": 8.2, "score": 8.0},
        {"forgotten": 7.9, "target": 8.2, "score": 0.45},
        {"forgotten": 20.0, "target": 8.2, "score": 13.0},
    ]
    about = {"trials": trials, "ended": "narrow", "chosen": {"lr": 0.0042, "norm": "frozen"}, "chosen trial": 2}
    found = {"seed": 900, "trials at most": 6, "methods": {"delete": about}}
    made = tuning(found, {"delete": {"title": "DELETE"}})
    assert "6 trials at most" in made
    assert "| DELETE | lr 0.0042, norm frozen | 3, narrow | 2 | 7.90 of 8.20 | 0.45 |" in made
    differ = tuning(found, {"delete": {"title": "DELETE", "config by seed": [{}, {"lr": 1.0}]}})
    assert "norm frozen; other seeds differ" in differ
    assert tuning({}, {}) == tuning({"methods": {}}, {}) == "No baseline was tuned yet."


def test_counts_and_settings_are_written_short() -> None:
    assert count({"errors": {"test": {"values": [1.0, 2.0, 3.0]}}, "seconds": {"values": [1.0]}}) == "3"
    assert count({"accuracy": {"test": {"values": [1.0, 2.0]}}, "seconds": None}) == "2"
    assert [span([5, 5]), span([2, 5, 1])] == ["5", "1 to 5"]
    assert settings({"a": 1.0 - 1e-4, "samples": 2000, "lr": 2.5e-5}) == "a 0.9999, samples 2000, lr 2.5e-05"


def row(seeds: int, timed: int) -> dict[str, Any]:
    seconds = {"values": [1.0] * timed, "mean": 1.0, "std": 0.0} if timed else None
    return {"errors": {"test": {"values": [9.0] * seeds}}, "seconds": seconds}


def test_a_table_whose_seconds_are_of_fewer_seeds_says_of_how_many() -> None:
    assert timed_seeds([]) == timed_seeds([row(5, 5), row(2, 2)]) == []
    assert timed_seeds([row(5, 1), row(5, 1)]) == ["Seconds: of the seeds that had the GPU for themselves (1 of 5)."]
    (said,) = timed_seeds([row(5, 5), row(5, 1), row(3, 0)])
    assert said.endswith("themselves (0 to 1 of 3 to 5 in 2 of 3 rows).")
    assert basis({}, (), [row(5, 1)]).endswith(
        "standard deviation. Seconds: of the seeds that had the GPU for themselves (1 of 5)."
    )
    runs = [{"curves": [[9.0, 8.0, 7.0], [9.0, 8.0]], "step seconds": {"values": [1.0, 2.0]}}]
    assert timed_steps(runs) == ["Seconds: of the steps that had the GPU for themselves (2 of 3)."]
