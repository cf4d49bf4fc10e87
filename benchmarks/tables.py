"""Tables of README.md and of pages in docs/, made from what is in results/; a test fails when they differ.

python -m benchmarks.tables        # write them there
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import label_shift, one_by_one
from benchmarks.blocks import replaced

ROOT = Path(__file__).resolve().parent.parent
START, END = "<!-- results/demo.json -->", "<!-- end -->"
ENSEMBLE_START, ENSEMBLE_END = "<!-- results/ensemble-allcnn.json -->", "<!-- end of the ensemble -->"
PROTECTION_START, PROTECTION_END = "<!-- results/protection.json -->", "<!-- end of protection -->"
ONE_BY_ONE_START, ONE_BY_ONE_END = "<!-- results/one-by-one.json -->", "<!-- end of one-by-one -->"
LABEL_SHIFT_START, LABEL_SHIFT_END = "<!-- results/label-shift.json -->", "<!-- end of label-shift -->"
SOLVING_START, SOLVING_END = "<!-- results/solving.json -->", "<!-- end of solving -->"
PROCEDURE_START, PROCEDURE_END = "<!-- results/procedure.json -->", "<!-- end of procedure -->"
QUICK_START, QUICK_END = "<!-- results/bench-reproduce.json -->", "<!-- end of bench-reproduce -->"
METHODS = {
    "original": "original",
    "match": "unlearned, `match`",
    "paper": "unlearned, `paper`",
    "retrained": "retrained",
}
SETS = ("retained", "forgotten", "test", "held-out of its class")


def demo_text(document: dict[str, Any]) -> str:
    """Markdown from the demonstration's results: seed 0 as a table, then what all seeds came to."""
    lines = [
        "| to be forgotten | network | retained | forgotten | test | seconds |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for chapter in document["runs"]["0"]:
        seconds = {"original": "", "unlearned": chapter["unlearn_seconds"], "retrained": chapter["retrain_seconds"]}
        for name, duration in seconds.items():
            errors = chapter[name]
            cells = [f"{errors[key]:.1f}" for key in ("retained", "forgotten", "test")]
            title = chapter["title"] if name == "original" else ""
            cells.append(f"{duration:.1f}" if duration else "")
            lines.append(f"| {title} | {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _seeds(document)])


def _seeds(document: dict[str, Any]) -> str:
    gaps = document["unlearned less retrained (forgotten, test) or less original (retained), in points"]
    mean = document["mean over seeds"]
    each = {key: ", ".join(f"{gap[key]:+.1f}" for gap in gaps.values()) for key in mean}
    networks, near = document["other retrained networks"], document["share of their pairs within the bounds"]
    bounds = document["bounds, in points"]
    return (
        f"Over {len(gaps)} seeds of the first request, the unlearned network's error less the retrained one's, in "
        f"points: on the forget set {each['forgotten']} (mean {mean['forgotten']:+.1f}), on the test set "
        f"{each['test']} (mean {mean['test']:+.1f}); on the retained set less the original's: {each['retained']} "
        f"(mean {mean['retained']:+.1f}). Single seeds scatter because retraining does: of all pairs of "
        f"{len(networks['test'])} networks that never saw these samples, {100 * near['forgotten']:.0f} % are within "
        f"{bounds['forgotten']:g} points of each other on the forget set, {100 * near['test']:.0f} % within "
        f"{bounds['test']:g} on the test set, {100 * near['both']:.0f} % within both."
    )


def demo_block(root: Path = ROOT) -> str:
    """What stands between the markers in the README."""
    return f"{START}\n{demo_text(json.loads((root / 'results/demo.json').read_text()))}\n{END}"


def ensemble_block(root: Path = ROOT) -> str:
    """Errors of many AllCNNs, mean and standard deviation, and what the two attacks make of them."""
    document = json.loads((root / "results/ensemble-allcnn.json").read_text())
    models = list(document["models"].values())
    lines = [
        "| network | retained | forgotten | test | held-out of their class | seconds | XGBoost attack | U-LiRA |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, title in METHODS.items():
        cells = [_mean_and_spread([model[name][key] for model in models]) for key in SETS]
        cells.append(f"{statistics.median(model[name]['seconds'] for model in models):.1f}")
        cells += [_auc(root, name, attack) for attack in ("xgboost", "u-lira")]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    gpu = document["made_by"]["gpu"]
    text = f"{len(models)} networks of each kind, mean ± standard deviation, on one {gpu}."
    return "\n".join([ENSEMBLE_START, *lines, "", text, ENSEMBLE_END])


def protection_block(root: Path = ROOT) -> str:
    """A line for each way: no protection, and hard and soft by γ or task."""
    document = json.loads((root / "results/protection.json").read_text())
    lines = ["| | protection | landed | felt | retained | test |", "|---|---|---:|---:|---:|---:|"]
    for kind, rows in {"points": document["points"], "images": document["images"]}.items():
        for row in rows:
            gamma = row.get("gamma", 0.9)
            protect = "none" if row["protect"] == "none" else f"{row['protect']}, γ = {gamma:g}"
            cells = [f"{row['ok']} of {row['requests']}", f"{row['felt']:.3f}"]
            cells += [f"{row[name]:+.2f}" for name in ("retained", "test")]
            title = f"{kind}, {row['task']}" if "task" in row else kind
            lines.append(f"| {title} | {protect} | {' | '.join(cells)} |")
    return "\n".join([PROTECTION_START, *lines, PROTECTION_END])


def one_by_one_block(root: Path = ROOT) -> str:
    """A line for each way to forget the same samples, the original and retraining."""
    document = json.loads((root / "results/one-by-one.json").read_text())
    lines = ["| | networks | forgotten | off | retained | test |", "|---|---:|---:|---:|---:|---:|"]
    for row in document["means"]:
        cells = [
            f"{row[name]:.1f}" if name in ("forgotten", "test") else f"{row[name]:.2f}" for name in one_by_one.READ_OUTS
        ]
        lines.append(f"| {row['way']} | {row['networks']} | {' | '.join(cells)} |")
    return "\n".join([ONE_BY_ONE_START, *lines, ONE_BY_ONE_END])


def procedure_block(root: Path = ROOT) -> str:
    """A line for each two kinds of networks that U-LiRA tells apart."""
    document = json.loads((root / "results/procedure.json").read_text())
    lines = ["| networks | against | of each | U-LiRA |", "|---|---|---:|---:|"]
    for row in document["rows"]:
        value, low, high = (row["auc"][key] for key in ("value", "low", "high"))
        lines.append(f"| {row['of']} | {row['against']} | {row['networks'][0]} | {value:.3f} ({low:.2f}–{high:.2f}) |")
    return "\n".join([PROCEDURE_START, *lines, PROCEDURE_END])


def label_shift_block(root: Path = ROOT) -> str:
    """A line for each share of a class and each network."""
    document = json.loads((root / "results/label-shift.json").read_text())
    columns = "forgotten | test of the class | retained of the class | retained | test"
    lines = [f"| share forgotten | | networks | {columns} |", f"|---|---|---:|{'---:|' * len(label_shift.READ_OUTS)}"]
    for row in document["means"]:
        cells = [f"{row[name]:.1f}" for name in label_shift.READ_OUTS]
        share = f"{100 * row['share']:.0f} %" if row["way"] == "original" else ""
        lines.append(f"| {share} | {row['way']} | {row['networks']} | {' | '.join(cells)} |")
    return "\n".join([LABEL_SHIFT_START, *lines, LABEL_SHIFT_END])


def solving_block(root: Path = ROOT) -> str:
    """A line for each kind of problem and each way to its targets."""
    document = json.loads((root / "results/solving.json").read_text())
    columns = "| | | landed | steps | at most | felt | forgotten | off | retained | test |"
    lines = [columns, f"|---|---|{'---:|' * 8}"]
    for kind in ("points", "images"):
        for row in document[kind]:
            cells = [f"{row['ok']} of {row['requests']}", f"{row['steps']:.1f}", row["most"], f"{row['felt']:.3f}"]
            cells += [f"{row['forgotten']:+.2f}", f"{row['off']:.2f}", f"{row['retained']:+.2f}", f"{row['test']:+.2f}"]
            lines.append(f"| {kind} | {row['way']} | {' | '.join(map(str, cells))} |")
    return "\n".join([SOLVING_START, *lines, SOLVING_END])


def quick_block(root: Path = ROOT) -> str:
    """How long all experiments take with --quick, run by run."""
    runs = json.loads((root / "results/bench-reproduce.json").read_text())["runs"]
    columns = "minutes | of processors | load before, after | the three longest, s | the rest, s | commit | date"
    lines = [f"| {columns} |", "|---:|---:|---:|---|---:|---|---|"]
    for run in runs:
        made, found = run["provenance"], run["experiments"]
        longest = sorted(found, key=lambda name: -found[name]["seconds"])[:3]
        shown = ", ".join(f"`{name}` {found[name]['seconds']:.0f}" for name in longest)
        rest = run["seconds"] - sum(found[name]["seconds"] for name in longest)
        cells = [f"{run['seconds'] / 60:.1f}", f"{run['processor seconds'] / 60:.1f}"]
        cells += [f"{run['load before'][0]:.1f}, {run['load after'][0]:.1f}", shown, f"{rest:.0f}"]
        lines.append(f"| {' | '.join(cells)} | {made['commit'][:7]} | {made['date']} |")
    made, jobs = runs[-1]["provenance"], sum(one["jobs"] for one in runs[-1]["experiments"].values())
    text = (
        f"`{runs[-1]['command']}`: all {len(runs[-1]['documents'])} experiments, {jobs} jobs, on {made['processors']} "
        f"processors, PyTorch {made['torch']}. A job that several experiments share counts "
        "for the first of them."
    )
    return "\n".join([QUICK_START, *lines, "", text, QUICK_END])


def _mean_and_spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def _auc(root: Path, name: str, attack: str) -> str:
    """Of unlearned against retrained models; for the original and the retrained ones, the control and the floor."""
    audit = json.loads(
        (root / f"results/audit-allcnn-{name if name in ('match', 'paper') else 'match'}.json").read_text()
    )
    found = next(found for found in audit["attacks"] if found["name"] == attack)
    auc = found[name if name in ("original", "retrained") else "unlearned"]["auc"]
    return f"{auc['value']:.2f} ({auc['low']:.2f}–{auc['high']:.2f})"


def write_blocks() -> None:
    """Put every table between its markers."""
    for page, start, end, block in (
        ("README.md", START, END, demo_block()),
        ("docs/audit.md", ENSEMBLE_START, ENSEMBLE_END, ensemble_block()),
        ("docs/method.md", PROTECTION_START, PROTECTION_END, protection_block()),
        ("docs/method.md", ONE_BY_ONE_START, ONE_BY_ONE_END, one_by_one_block()),
        ("docs/method.md", LABEL_SHIFT_START, LABEL_SHIFT_END, label_shift_block()),
        ("docs/method.md", SOLVING_START, SOLVING_END, solving_block()),
        ("docs/audit.md", PROCEDURE_START, PROCEDURE_END, procedure_block()),
        ("docs/speed.md", QUICK_START, QUICK_END, quick_block()),
    ):
        text = (ROOT / page).read_text()
        (ROOT / page).write_text(replaced(text, start, end, block))


if __name__ == "__main__":
    write_blocks()
