"""The committed documents are what the committed code makes of the committed outcomes."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from experiments import attacks, class_smallvgg, epochs, gamma, incremental_long, layers, table1, table3
from experiments.documents.keeping import PARTS, with_kept
from experiments.running.work import Work
from experiments.settings import PAPER

RESULTS = Path(__file__).parents[2] / "results"
MADE_OF = [("table1", module) for module in (table1, attacks)] + [
    ("smallvgg", module) for module in (table3, class_smallvgg, gamma, layers, epochs, incremental_long)
]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Work]:
    """A work folder for each archive."""
    there = dict[str, Work]()

    def work(archive: str) -> Work:
        if archive not in there:
            folder = tmp_path_factory.mktemp(archive)
            with tarfile.open(RESULTS / "outcomes" / f"{archive}.tar.xz") as packed:
                packed.extractall(folder, filter="data")
            there[archive] = Work(folder, PAPER, torch.device("cpu"))
        return there[archive]

    return work


def committed(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return document


@pytest.mark.parametrize(("archive", "module"), MADE_OF, ids=lambda one: getattr(one, "NAME", None))
def test_a_document_is_made_of_its_outcomes(
    archive: str, module: ModuleType, unpacked: Callable[[str], Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = committed(module.NAME)
    if hasattr(module, "attacks"):  # to learn them takes a minute: they are taken from the document
        monkeypatch.setattr(module, "attacks", lambda _work, case, *_, **__: _attacks_on(kept, case.setting.name))
    if module is epochs:
        monkeypatch.setattr(epochs.Attackers, "ready", lambda _: True)
        monkeypatch.setattr(epochs, "_scores", lambda _, name: kept["networks"]["smallvgg"]["attacker's scores"][name])
    found = module.assemble(unpacked(archive))
    if module.NAME in PARTS:
        found = with_kept(found, kept)
    assert json.loads(json.dumps(found)) == kept


def _attacks_on(document: dict[str, Any], setting: str) -> dict[str, Any]:
    parts = document.get("networks", {}).values()
    found: dict[str, Any] = next((p["attacks"] for p in parts if p["request"]["network"] == setting), {})
    return found or document["attacks"]


@pytest.mark.parametrize(
    ("archive", "case", "name"),
    [
        ("table1", "allcnn-cifar10/500-of-class-0", "table1"),
        ("smallvgg", "smallvgg-cifar10/first-400-a-class", "table3"),
    ],
)
def test_attacks_rest_on_all_networks_there_are(
    archive: str, case: str, name: str, unpacked: Callable[[str], Work]
) -> None:
    counted = {kind: len(unpacked(archive).names(f"{case}/{kind}")) for kind in ("original", "retrained")}
    assert committed(name)["attacks"]["models"] == {"full": counted["original"], "retrained": counted["retrained"]}
