"""Floors: what no way of doing the same work can pass, from counted operations and measured rates."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import limits

RATES = {name: {"value": value} for name, value in {"float64": 5e13, "float32": 4e13, "memory": 4e12}.items()}


def entry(**seconds: float) -> dict[str, Any]:
    ways = {"forward pass": 1.0, "forward pass, TF32": 0.25, "fit": 3.0, "eigendecompositions": 0.1, "request": 0.9}
    rows: dict[str, Any] = {name: {"median": value} for name, value in (ways | seconds).items()}
    rows["request"]["epochs"] = 10
    return {"training samples": 50_000, "forget samples": 500, "validation samples": 5_000, "ways": rows}


def test_a_forward_pass_takes_its_operations_at_the_rate_of_float32() -> None:
    floor, measured = limits.floors(entry(), "allcnn", RATES)["forward pass"]
    # AllCNN's multiplications for one image, layer by layer: outputs × inputs of each weight.
    layers = [(1024, 27, 96), (1024, 864, 96), (256, 864, 192), (256, 1728, 192), (256, 1728, 192)]
    layers += [(64, 1728, 192), (64, 1728, 192), (64, 192, 192), (1, 192, 10)]
    assert floor == pytest.approx(50_000 * 2 * sum(pixels * d * out for pixels, d, out in layers) / 4e13)
    assert measured == 1.0


def test_grams_get_cheaper_with_faster_products_and_with_faster_memory() -> None:
    floor = limits.floors(entry(), "allcnn", RATES)["Grams"][0]
    for name in ("float64", "memory"):
        faster = RATES | {name: {"value": 2 * RATES[name]["value"]}}
        assert floor / 2 < limits.floors(entry(), "allcnn", faster)["Grams"][0] < floor


def test_a_request_cannot_do_without_its_decompositions_and_passes() -> None:
    floor, measured = limits.floors(entry(), "allcnn", RATES)["request of 10 epochs"]
    assert floor == pytest.approx(0.1 + 0.25 / 50_000 * (3 * 10 * 500 + 2 * 5_000))
    assert measured == 0.9


def test_the_table_says_how_many_times_the_floor() -> None:
    floor, _ = limits.floors(entry(), "smallvgg", RATES)["fit"]
    lines = limits.table({"networks": {"smallvgg": entry(), "toy": entry()}}, RATES)
    assert f"| smallvgg | fit |  | {floor:.3g} | 3 | {3 / floor:.1f} |" in lines
    (request,) = [line for line in lines if "request" in line]
    assert request.startswith("| smallvgg | request of 10 epochs | 0.7 | ")
    assert not [line for line in lines if "toy" in line]
