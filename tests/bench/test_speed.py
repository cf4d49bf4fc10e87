"""docs/speed.md shows what is in results/ and nothing else; a result becomes a table and a chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import charts, eigen, ensemble, growth, side_by_side, speed, training
from benchmarks.options import Options

QUICK = Options(quick=True, repeats=1, slow_repeats=1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A checkout with results for one device."""
    root = tmp_path_factory.mktemp("checkout")
    for folder in ("results", "docs"):
        (root / folder).mkdir()
    modules = {
        "side-by-side": side_by_side,
        "growth": growth,
        "eigen": eigen,
        "training": training,
        "ensemble": ensemble,
    }
    made = {name: module.run(QUICK) for name, module in modules.items()}
    for name, result in made.items():
        (root / f"results/bench-{name}-cpu.json").write_text(json.dumps(result))
    blank = "\n".join("\n".join(speed.markers(name)) for name in speed.TABLES)
    (root / speed.PAGE).write_text(f"before\n{blank}\nafter\n")
    return root, made


@pytest.mark.parametrize("name", speed.TABLES)
def test_the_page_shows_what_is_in_results(name: str) -> None:
    assert speed.block(name) in (speed.ROOT / speed.PAGE).read_text("utf-8")


def test_every_chart_of_a_result_is_there() -> None:
    assert {name for name in charts.charts() if not (speed.ROOT / "docs/charts" / name).exists()} == set()


def test_without_a_result_a_block_says_so(tmp_path: Path) -> None:
    for name in speed.TABLES:
        start, end = speed.markers(name)
        assert speed.block(name, tmp_path).splitlines() == [start, "", "Not measured yet.", "", end]
    assert charts.charts(tmp_path) == {}


def test_a_result_becomes_its_block_and_its_chart(measured: tuple[Path, dict[str, Any]]) -> None:
    root, made = measured
    speed.write(root)
    speed.write(root)  # and again: what stands there is replaced, not added to
    text = (root / speed.PAGE).read_text("utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    for name in speed.TABLES:
        assert text.count(speed.block(name, root)) == 1
    for name in charts.MAKERS:
        drawn = (root / f"docs/charts/{name}-cpu.svg").read_text("utf-8")
        assert ElementTree.fromstring(drawn).tag.endswith("svg")
    median = made["side-by-side"]["networks"]["toy"]["ways"]["plain fit"]["median"]
    assert f"| plain fit | {median:.3g} |" in text
    law = made["growth"]["axes"]["depth"]["exponents"]["fit"]["seconds"]["all"]
    assert f"| depth | 1 … 4 | {law['exponent']:.2f} (" in text
    assert "**extrapolated** to d = 50,000" in text
    update = made["eigen"]["sizes"][-1]["ways"]["perturbation, 4 steps"]
    row = made["training"]["recipes"]["quick"]
    taken = [f"{way['an epoch']['median']:.3f} | {way['all epochs']:.1f}" for way in (row, row["plain"])]
    assert f"| `quick` | 200 | 50 | SGD | 12 | {' | '.join(taken)} |" in text
    streams = row["several"]["ways"]["streams"]
    assert f"4 networks at once by `quick`, seconds for an epoch: streams {streams['an epoch']['median']:.3f}" in text
    assert f"50 full and 50 retrained ones take {made['ensemble']['hundred'] / 60:.1f} minutes" in text
    assert f"| perturbation, 4 steps | {update['median']:.3g} | {update['distance']:.1e} |" in text


def test_the_charts_hold_every_point(measured: tuple[Path, dict[str, Any]]) -> None:
    drawn = charts.charts(measured[0])
    ways = measured[1]["side-by-side"]["networks"]["toy"]["ways"]
    assert {row["way"] for row in drawn["side-by-side-cpu.svg"]["data"]["values"]} == set(ways)
    points = [point for axis in measured[1]["growth"]["axes"].values() for point in axis["points"]]
    assert len(drawn["growth-cpu.svg"]["data"]["values"]) == 3 * len(points)
    kinds = [row["kind"] for row in drawn["eigen-cpu.svg"]["data"]["values"]]
    assert (kinds.count("measured"), kinds.count("extrapolated")) == (6, 4)
