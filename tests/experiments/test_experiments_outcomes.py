"""The committed documents are what the committed code makes of the committed outcomes."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
import torch

from experiments import attacks, table1
from experiments.settings import PAPER
from experiments.work import Work

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("outcomes")
    with tarfile.open(RESULTS / "outcomes" / "table1.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return Work(folder, PAPER, torch.device("cpu"))


@pytest.mark.parametrize("module", [table1, attacks], ids=lambda module: module.NAME)
def test_a_document_is_made_of_its_outcomes(module: ModuleType, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = json.loads((RESULTS / f"{module.NAME}.json").read_text())
    counted = {kind: len(work.names(f"allcnn-cifar10/500-of-class-0/{kind}")) for kind in ("original", "retrained")}
    assert kept["attacks"]["models"] == {"full": counted["original"], "retrained": counted["retrained"]}
    monkeypatch.setattr(module, "attacks", lambda *_: kept["attacks"])  # to learn them takes a minute
    assert json.loads(json.dumps(module.assemble(work))) == kept
