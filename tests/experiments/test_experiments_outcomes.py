"""The committed documents are what the committed code makes of the committed outcomes."""

from __future__ import annotations

import importlib
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from experiments import (
    attacks,
    class_smallvgg,
    epochs,
    gamma,
    incremental_long,
    layers,
    table1,
    table2,
    table3,
    table4,
    table4_tiny,
)
from experiments.documents.along_chains import AfterStep
from experiments.documents.keeping import OF_OUTPUTS, PARTS, with_kept
from experiments.documents.many import Attackers
from experiments.documents.summary import attacks_by
from experiments.reproduce import EXPERIMENTS
from experiments.running.jobs import digest
from experiments.running.work import Work
from experiments.settings import PAPER, Case
from experiments.ways.methods import SAMPLES

RESULTS = Path(__file__).parents[2] / "results"
MADE_OF: list[tuple[tuple[str, ...], ModuleType]] = [
    *((("table1",), module) for module in (table1, attacks)),
    (("resnet18",), table2),
    (("table4", "smallvgg"), table4),
    (("table4-tiny", "resnet18"), table4_tiny),
    *((("smallvgg",), module) for module in (table3, class_smallvgg, gamma, incremental_long)),
    *((("smallvgg", "resnet18"), module) for module in (layers, epochs)),
]
"""Archives of outcomes and what is made of them. That of ResNet-18 has numbers alone: its outputs are 29 MB."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Work]:
    """A work folder for each archive, or for some together."""
    there = dict[tuple[str, ...], Work]()

    def work(archives: tuple[str, ...]) -> Work:
        if archives not in there:
            folder = tmp_path_factory.mktemp("-".join(archives))
            for name in archives:
                with tarfile.open(RESULTS / "outcomes" / f"{name}.tar.xz") as packed:
                    packed.extractall(folder, filter="data")
            there[archives] = Work(folder, PAPER, torch.device("cpu"))
        return there[archives]

    return work


def committed(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return document


@pytest.mark.parametrize(("archives", "module"), MADE_OF, ids=lambda one: getattr(one, "NAME", None))
def test_a_document_is_made_of_its_outcomes(
    archives: tuple[str, ...],
    module: ModuleType,
    unpacked: Callable[[tuple[str, ...]], Work],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = committed(module.NAME)
    if hasattr(module, "attacks"):  # to learn them takes a minute: they are taken from the document
        made = partial(_attacks_of, kept) if module.NAME not in OF_OUTPUTS else lambda *_: {}
        monkeypatch.setattr(module, "attacks", made)
    if module is table3:
        keys = ("attacks", "attacks after the first step", "attacks in turns")
        monkeypatch.setattr(table3, "attacked", lambda *_: {key: kept[key] for key in keys})
    if module is epochs:
        scores = {part["request"]["network"]: part["attacker's scores"] for part in kept["networks"].values()}
        monkeypatch.setattr(epochs.Attackers, "ready", lambda made: not _kept_attacks(kept, made.case))
        monkeypatch.setattr(epochs, "_scores", lambda made, name: scores[made.case.setting.name][name])
    found = module.assemble(unpacked(archives))
    if module.NAME in PARTS:
        found = with_kept(found, kept)
    assert json.loads(json.dumps(found)) == kept


def _kept_attacks(document: dict[str, Any], case: Case) -> bool:
    """Whether they were taken over, for the outputs of these networks are not kept."""
    parts = document.get("networks", {}).items()
    of = [key for key, part in parts if part.get("request", {}).get("network") == case.setting.name]
    return any(f"attacks of {key}" in document.get("kept", ()) for key in of)


def _attacks_of(document: dict[str, Any], _work: Work, case: Case, *_: object, **asked: object) -> dict[str, Any]:
    if _kept_attacks(document, case):
        return {}
    parts = document.get("networks", {}).values()
    found: dict[str, Any] = next((p["attacks"] for p in parts if p["request"]["network"] == case.setting.name), {})
    if not asked.get("every"):
        return found or document["attacks"]
    told: dict[str, Any] = document.get("attacks in turns") or document["more networks"]["attacks"]
    return told


NO_JOB_ANY_MORE = {
    "smallvgg-cifar10/first-100-a-class/pgu epochs=1/0",
    *(f"resnet18-tinyimagenet/first-5-classes/scrub/{seed}" for seed in range(5)),
    *(f"resnet18-tinyimagenet/first-5-classes/search/scrub-{number}" for number in range(6)),
}
"""The network after the epoch that takes no step is the original; SCRUB of classes has other settings since."""


@pytest.mark.parametrize("archive", sorted({name for archives, _ in MADE_OF for name in archives}))
def test_a_run_goes_on_from_the_committed_outcomes(archive: str, unpacked: Callable[[tuple[str, ...]], Work]) -> None:
    work = unpacked((archive,))
    jobs = {job.name: job for path in EXPERIMENTS.values() for job in importlib.import_module(path).jobs(work)}
    kept = set(work.names())
    assert kept - set(jobs) <= NO_JOB_ANY_MORE
    other = [name for name in kept & set(jobs) if _digest_of(work, name) != digest(jobs[name].settings)]
    assert not other, "their settings are others than the job's, so that a run would refuse them"
    assert not [name for name in kept if work.of_another_tuning(name)], "a run would set them aside"


def _digest_of(work: Work, name: str) -> str:
    found: str = json.loads((work.rows / f"{name}.json").read_text())["digest"]
    return found


@pytest.mark.parametrize(
    ("archive", "case", "name"),
    [
        ("table1", "allcnn-cifar10/500-of-class-0", "table1"),
        ("resnet18", "resnet18-tinyimagenet/first-5-classes", "table2"),
        ("smallvgg", "smallvgg-cifar10/first-400-a-class", "table3"),
    ],
)
def test_attacks_rest_on_all_networks_there_are(
    archive: str, case: str, name: str, unpacked: Callable[[tuple[str, ...]], Work]
) -> None:
    counted = {kind: len(unpacked((archive,)).names(f"{case}/{kind}")) for kind in ("original", "retrained")}
    assert committed(name)["attacks"]["models"] == {"full": counted["original"], "retrained": counted["retrained"]}


WITHOUT_CLASSIFIER = ("u-lira", "rmia", "klom")
"""Attacks that take seconds, and do not depend on a library's version."""


@pytest.mark.parametrize("name", ["table3", "table3, first step", "class-smallvgg"])
def test_attacks_are_what_the_outputs_give(name: str, unpacked: Callable[[tuple[str, ...]], Work]) -> None:
    work = unpacked(("smallvgg",))
    work = Work(work.folder, replace(PAPER, draws=20), torch.device("cpu"))  # of intervals, which are not compared
    methods, steps = ["original", "retrained", *SAMPLES], table3.cases(work)
    if name == "table3":
        found, told = attacks_by(Attackers(work, steps[-1], methods), WITHOUT_CLASSIFIER), committed(name)["attacks"]
    elif name == "class-smallvgg":
        case = class_smallvgg.case_of(work)
        found = attacks_by(Attackers(work, case, class_smallvgg.METHODS), WITHOUT_CLASSIFIER)
        told = committed(name)["attacks"]
    else:
        found = attacks_by(AfterStep(work, steps, 1, methods), ("u-lira", "klom"))
        told = committed("table3")["attacks after the first step"]
    assert found["models"] == told["models"]
    for method, about in told["methods"].items():
        assert set(about) - {"xgboost"} == set(found["methods"][method])
        for attack, kept in about.items():
            if attack != "xgboost":
                made = found["methods"][method][attack]
                assert made["rests on"] == kept["rests on"]
                assert _values(made) == pytest.approx(_values(kept), abs=2e-3)


def _values(found: dict[str, Any]) -> list[float]:
    parts = ("auc", "hardest quarter", "unlearned", "original", "retrained")
    return [found[part]["value"] for part in parts if part in found]
