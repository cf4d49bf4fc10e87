"""The README's table and its sentence on seeds, made from results/demo.json; a test fails when they differ.

python benchmarks/tables.py        # write them into README.md
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START, END = "<!-- results/demo.json -->", "<!-- end -->"


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
    floors = document["another retrained less retrained, in points"]
    other = {key: ", ".join(f"{gap[key]:+.1f}" for gap in floors.values()) for key in mean}
    return (
        f"Over {len(gaps)} seeds of the first request, the unlearned network's error less the retrained one's, in "
        f"points: on the forget set {each['forgotten']} (mean {mean['forgotten']:+.1f}), on the test set "
        f"{each['test']} (mean {mean['test']:+.1f}); on the retained set less the original's: {each['retained']} "
        f"(mean {mean['retained']:+.1f}). Single seeds scatter because retraining does: a second retrained network, "
        f"from another seed, is {other['forgotten']} points from the first on the forget set and {other['test']} on "
        "the test set."
    )


def demo_block(root: Path = ROOT) -> str:
    """What stands between the markers in the README."""
    return f"{START}\n{demo_text(json.loads((root / 'results/demo.json').read_text()))}\n{END}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    pattern = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    readme.write_text(pattern.sub(lambda match: demo_block(), readme.read_text()))
