"""Table 2 with a second number of classes: what it is asked beside its errors, and that this comes last."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import table2
from experiments.documents.keeping import with_kept
from experiments.documents.tables import TABLES
from experiments.reproduce import Options, reproduce
from experiments.running.work import Work
from experiments.settings import PAPER, SMOKE

SCALE = replace(SMOKE, removed=(2, 3), seeds=1, models=4, fewer_models=4)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("work")
    return folder, reproduce(["table2"], Options(folder, SCALE, device="cpu"), lambda _: None)["table2"]


def test_the_second_request_has_its_own_attacks_baselines_and_tuning(ran: tuple[Path, dict[str, Any]]) -> None:
    _, document = ran
    first, second = document["requests"]["2"], document["requests"]["3"]
    assert set(first["methods"]) == set(second["methods"]) >= {"eu_k", "scrub of classes", "odds"}
    assert second["attacks"]["models"] == document["attacks"]["models"] == {"full": 4, "retrained": 4}
    assert set(second["attacks"]["methods"]) == set(document["attacks"]["methods"]) >= set(table2.OTHERS)
    assert set(second["tuning"]["methods"]) == set(table2.OTHERS)
    config = second["methods"]["scrub of classes"]["config"]
    assert config == {**config, "gamma": 0.99, "alpha": 0.001, "forget_epochs": 2, "epochs": 3}
    text = TABLES["table2"](document)
    tail = text.partition("**3 classes**")[2]
    row = next(line for line in tail.splitlines() if line.startswith("| unweave |"))
    assert "(" in row.split(" | ")[-5], "an AUC with its interval"
    assert tail.count("Tuning, on the validation half") == 2, "its own, and the first request's at the end"
    assert "XGBoost attack: 4 full + 4 retrained + 1 on trial networks" in tail


def test_what_was_not_run_of_it_leaves_no_trace(ran: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, document = ran
    rows = tmp_path / "rows"
    for path in (folder / "rows").rglob("*.*"):
        own = path.relative_to(folder / "rows")
        late = own.parts[1] == "first-3-classes" and ("search" in own.parts or own.stem not in ("0",))
        if path.is_file() and not late and own.parts[2] not in table2.OTHERS:
            (rows / own).parent.mkdir(parents=True, exist_ok=True)
            (rows / own).write_bytes(path.read_bytes())
    found = table2.assemble(Work(tmp_path, SCALE, torch.device("cpu")))
    assert set(found["requests"]["3"]) == {"methods", "entropy"}
    kept = with_kept(json.loads(json.dumps(found)), document)
    assert kept["requests"]["3"]["attacks"] == document["requests"]["3"]["attacks"]
    assert "attacks of 3 classes" in kept["kept"]


def test_a_run_that_is_cut_short_has_the_networks_of_both_requests_first() -> None:
    work = Work(Path("unused"), PAPER, torch.device("cpu"))
    names = [job.name.removeprefix("resnet18-tinyimagenet/") for job in table2.jobs(work)]
    last = max(names.index(f"first-10-classes/{way}/4") for way in ("retrained", *table2.CLASSES))
    late = {name for name in names if name.startswith("first-10-classes/") and names.index(name) > last}
    assert {"first-10-classes/search/eu_k-0", "first-10-classes/eu_k/0", "first-10-classes/retrained/11"} <= late
    assert not late & {f"first-10-classes/{way}/{seed}" for way in table2.CLASSES for seed in range(5)}
    assert names.index("first-5-classes/retrained/11") < names.index("first-10-classes/retrained/0")
