"""The tables of docs/speed.md, made from what is in results/; a test fails when they differ.

    unweave bench --out results       measure; without --out the results go to bench-results/, which this does not read
    python -m benchmarks.speed        write the tables into docs/speed.md, and the charts beside it

Where a result is not there, its block says so: no number is made up.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import charts, limits
from benchmarks import ensemble as some_of_a_hundred
from benchmarks.blocks import replaced
from benchmarks.growth import STAGES

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/speed.md"


def side_by_side(result: dict[str, Any]) -> list[str]:
    """One table a network."""
    lines: list[str] = []
    for network, entry in result["networks"].items():
        lines += [
            "",
            f"**{network}**, {entry['pixels']}: forgets {entry['forget samples']:,} of "
            f"{entry['training samples']:,} samples.",
            "",
            "| | median s | least | most | epochs | forget error | validation error |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for name, row in entry["ways"].items():
            cells = [f"{row[key]:.3g}" for key in ("median", "min", "max")]
            cells.append(str(row.get("epochs", "")))
            cells += [f"{row[key]:.1f} %" if key in row else "" for key in ("forget error", "validation error")]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines += ["", *(f"- {name}: {why}" for name, why in entry["left out"].items())]
    return lines


def growth(result: dict[str, Any]) -> list[str]:
    """Exponents over all points; between the last two in brackets."""
    head = [f"{stage}, {what}" for what in ("s", "bytes") for stage in STAGES]
    lines = ["", f"| grows as this power of | from … to | {' | '.join(head)} |", f"|---|---|{'---:|' * len(head)}"]
    for axis, entry in result["axes"].items():
        values = [point["value"] for point in entry["points"]]
        cells = []
        for what in ("seconds", "bytes"):
            for stage in STAGES:
                laws = entry["exponents"][stage][what]
                cells.append(f"{laws['all']['exponent']:.2f} ({laws['last two']['exponent']:.2f})")
        lines.append(f"| {axis.replace('_', ' ')} | {values[0]:,} … {values[-1]:,} | {' | '.join(cells)} |")
    epochs = result["problem"]["epochs of a request"]
    return [
        *lines,
        "",
        f"A request here runs {epochs} epochs, however far it gets. In brackets: between the last two points.",
    ]


def eigen(result: dict[str, Any]) -> list[str]:
    """Seconds by size; the other ways at the largest size they were tried at."""
    lines = ["", "| d | k | eigh, s | eigvalsh, s | four of them batched, times one |", "|---:|---:|---:|---:|---:|"]
    for entry in result["sizes"]:
        alone, values = entry["eigh"]["median"], entry["eigvalsh"]["median"]
        batched = entry.get("four of one size, batched")
        times = "" if batched is None else f"{batched['median'] / alone:.2f}"
        lines.append(f"| {entry['d']:,} | {entry['k']:,} | {alone:.3g} | {values:.3g} | {times} |")
    for way, law in result["laws"].items():
        far = next(key for key in law if key.startswith("extrapolated"))
        at = int(far.rpartition("= ")[2])
        lines += ["", f"`{way}` grows as d^{law['exponent']:.2f}; **extrapolated** to d = {at:,}: {law[far]:.0f} s."]
    tried = [entry for entry in result["sizes"] if "ways" in entry]
    if tried:
        off = tried[-1]["ways"]["off-diagonal share of UᵀGU"]
        lines += [
            "",
            f"Other ways at d = {tried[-1]['d']:,} (off-diagonal share of UᵀGU: {off:.1e}):",
            "",
            "| way | median s | distance from the exact projector |",
            "|---|---:|---:|",
        ]
        for name, row in tried[-1]["ways"].items():
            if isinstance(row, dict):
                lines.append(f"| {name} | {_seconds(row)} | {_distance(row)} |")
    return lines


def _seconds(row: dict[str, Any]) -> str:
    return f"left out: {row['left out']}" if "left out" in row else f"{row['median']:.3g}"


def _distance(row: dict[str, Any]) -> str:
    return "" if row.get("distance") is None else f"{row['distance']:.1e}"


def training(result: dict[str, Any]) -> list[str]:
    """A row a recipe, with what it takes where it is written plainly, if that was measured."""
    plain = all("plain" in row for row in result["recipes"].values())
    head = ["recipe", "images", "batch", "optimiser", "epochs", "an epoch, s", "all epochs, s"]
    head += ["plainly, an epoch, s", "all epochs, s"] if plain else []
    lines = ["", f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    for name, row in result["recipes"].items():
        optimiser = {"sgd": "SGD", "nesterov": "SGD, Nesterov", "adam": "Adam"}[row["optimiser"]]
        cells = [f"{row['images']:,}", str(row["batch_size"]), optimiser, str(row["epochs"]), *_of_epochs(row)]
        lines.append(f"| `{name}` | {' | '.join(cells + (_of_epochs(row['plain']) if plain else []))} |")
    return lines + [line for name, row in result["recipes"].items() for line in _at_once(name, row)]


def _at_once(name: str, row: dict[str, Any]) -> list[str]:
    """Several networks by one recipe, if that was measured: an epoch of all of them."""
    if "several" not in row:
        return []
    ways = row["several"]["ways"].items()
    told = (f"{way} {'failed' if 'failed' in one else ', all epochs '.join(_of_epochs(one))}" for way, one in ways)
    return ["", f"{row['several']['networks']} networks at once by `{name}`, seconds for an epoch: {'; '.join(told)}."]


def _of_epochs(row: dict[str, Any]) -> list[str]:
    if row["an epoch"] is None:
        return ["not known"] * 2
    return [f"{row['an epoch']['median']:.3f}", f"{row['all epochs']:.1f}"]


def ensemble(result: dict[str, Any]) -> list[str]:
    """In words."""
    return ["", " ".join(some_of_a_hundred.sentences(result))]


TABLES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "side-by-side": side_by_side,
    "growth": growth,
    "eigen": eigen,
    "training": training,
    "ensemble": ensemble,
}


def _limits(root: Path, result: dict[str, Any]) -> list[str]:
    """Floors by the rates that were measured on the same kind of machine; nothing where they were not."""
    measured = root / "results/scale-check-cuda.json"
    if not measured.exists():
        return []
    rates = json.loads(measured.read_text(encoding="utf-8"))
    same = rates["provenance"]["gpu"] == result["made_by"]["gpu"]
    return limits.table(result, rates["rates"]) if same else []


def markers(name: str) -> tuple[str, str]:
    """What stands before and after a block."""
    return f"<!-- results/bench-{name} -->", f"<!-- end of {name} -->"


def block(name: str, root: Path = ROOT) -> str:
    """What stands between the markers, with them; and that there is none where there is none."""
    start, end = markers(name)
    lines = [start]
    for device in charts.DEVICES:
        for stem, result in charts.results(root, name, device).items():
            made = result["made_by"]
            where = made["gpu"] if device == "cuda" else f"{made['processors']} CPU cores"
            lines += ["", f"On {where}, PyTorch {made['torch']}, commit {made['commit'][:7]}, {made['date']}:"]
            chart = ["", f"![{name} on {where}](charts/{stem}.svg)"] if name in charts.MAKERS else []
            lines += [*chart, *TABLES[name](result), ""]
            if name == "side-by-side" and device == "cuda":
                lines += ["How far that is from what the machine could do:", *_limits(root, result), ""]
    return "\n".join([*(lines if len(lines) > 1 else [start, "", "Not measured yet.", ""]), end])


def write(root: Path = ROOT) -> None:
    """Renew the blocks and the charts."""
    page = root / PAGE
    text = page.read_text("utf-8")
    for name in TABLES:
        text = replaced(text, *markers(name), block(name, root))
    page.write_text(text, "utf-8")
    charts.write(root)


if __name__ == "__main__":
    write()
