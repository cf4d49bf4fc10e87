"""Every experiment runs end to end, small; what was done is not done again; documents become pages and figures."""

from __future__ import annotations

import fnmatch
import importlib
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import table1, table2
from experiments.documents.figures import drawn_from, write_svg
from experiments.documents.keeping import PARTS
from experiments.documents.tables import TABLES
from experiments.pages import NOT_YET, page, with_summary
from experiments.reproduce import EXPERIMENTS, Options, reproduce
from experiments.running.work import Work
from experiments.settings import PAPER, SMOKE
from unweave.errors import ConfigError, MismatchError

FOLDER = "work"


class Ran:
    """One run of everything."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        self.documents = self.again("all")

    def again(self, *names: str, **options: Any) -> dict[str, Any]:
        self.said.clear()
        return reproduce(names, Options(self.folder, SMOKE, device="cpu", **options), self.said.append)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Ran(tmp_path_factory.mktemp(FOLDER))
    torch.set_num_threads(before)


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for one in value.values():
            yield from numbers(one)
    elif isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, float):
        yield value


def test_every_experiment_writes_a_document_that_says_what_it_was_made_by(ran: Ran) -> None:
    assert set(ran.documents) == set(EXPERIMENTS) == set(TABLES)
    for name, document in ran.documents.items():
        assert json.loads((ran.folder / f"{name}.json").read_text()) == json.loads(json.dumps(document))
        assert document["experiment"] == name
        assert document["made_by"][0]["torch"] == str(torch.__version__)
        assert document["seconds"] > 0
        assert document["recipes"], name
        assert all(math.isfinite(value) for value in numbers(document)), name
        assert TABLES[name](document) in (ran.folder / f"{name}.md").read_text("utf-8")


def test_a_table_is_shown_and_a_quick_one_says_that_it_is(ran: Ran) -> None:
    ran.again("table3", stage="assemble")
    shown = "\n".join(ran.said)
    assert "| step: method | n | test | retained |" in shown
    assert "its numbers say nothing" in shown


def test_a_pattern_without_a_job_is_refused_with_an_example(ran: Ran) -> None:
    with pytest.raises(ConfigError, match=r"no job matches 'nothing\*'\. There are, for example: .+/original/0"):
        ran.again("table3", jobs="nothing*")


def test_every_pattern_has_to_match_a_job(ran: Ran) -> None:
    with pytest.raises(ConfigError, match=r"no job matches 'nothing\*'\."):
        ran.again("table3", jobs="*/pgu/*, nothing*")
    ran.again("table3", jobs="*/pgu/*, */match/*,*/pgu/0", stage="run")
    assert ran.said == ["2 jobs, 2 of them done before"]


def test_a_comma_separates_patterns_so_no_job_has_one_in_its_name() -> None:
    work = Work(Path("unused"), PAPER, torch.device("cpu"))
    names = [job.name for path in EXPERIMENTS.values() for job in importlib.import_module(path).jobs(work)]
    assert len(names) > 1000
    assert not [name for name in names if "," in name]


def test_table_1_has_every_method_tuned_with_as_many_trials(ran: Ran) -> None:
    document = ran.documents["table1"]
    assert set(document["methods"]) == {"original", "retrained", *table1.OURS, *table1.baselines()}
    trials = {name: len(found["trials"]) for name, found in document["tuning"]["methods"].items()}
    assert trials == {name: SMOKE.trials for name in table1.baselines() if name not in table1.UNTUNED}
    assert document["methods"]["scrub"]["trials"] == SMOKE.trials
    assert document["methods"]["sisa"]["trials"] == 0
    for name in ("scrub", "salun"):
        assert document["methods"][f"{name} frozen"]["config"]["norm"] == "frozen"
        assert "norm" not in document["methods"][name]["config"]
    for row in document["methods"].values():
        assert {"retained", "forgotten", "test", "own", "val", "val own"} == set(row["errors"])


def test_attacks_are_about_every_method_and_retrained_networks_are_the_floor(ran: Ran) -> None:
    found, more = ran.documents["attacks"]["attacks"], ran.documents["attacks"]["more networks"]
    assert found["models"] == more["attacks"]["models"] == {"full": SMOKE.models, "retrained": SMOKE.models}
    for method in table1.OURS:  # of one network alone nobody can learn how its method behaves
        assert set(found["methods"][method]) == {"xgboost"}
        assert set(more["attacks"]["methods"][method]) == {"xgboost", "u-lira", "rmia", "klom"}
        assert ran.documents["attacks"]["methods"][method]["seeds"] == [0]
        assert ran.documents["table1"]["methods"][method]["seeds"] == more["methods"][method]["seeds"] == [0, 1, 2, 3]
    assert "xgboost" in found["methods"]["scrub"], "one network of its own seed is among the tested ones"
    assert ran.documents["table1"]["entropy"]["distance to retrained"]["retrained"] == 0


def test_removed_classes_are_judged_among_those_that_stay(ran: Ran) -> None:
    methods = ran.documents["table2"]["requests"]["2"]["methods"]
    assert set(methods) == {"original", "retrained", "pgu", "paper", "ours", "soft", "odds", "both", *table2.OTHERS}
    assert methods["retrained"]["errors"]["forgotten"]["mean"] == 100, "a class never seen is never said"
    taken = ran.documents["class-smallvgg"]["taken for"]
    assert "airplane" not in taken["retrained"]
    assert sum(taken["retrained"].values()) == pytest.approx(1, abs=1e-3)


def test_networks_of_right_labels_are_the_originals_of_another_table(ran: Ran) -> None:
    for name, methods in (
        ("table4", ran.documents["table3"]["steps"][0]["methods"]),
        ("table4-tiny", ran.documents["table2"]["requests"]["2"]["methods"]),
    ):
        whole, original = ran.documents[name]["whole"], methods["original"]
        assert whole["seeds"] == original["seeds"]
        accuracies = [100 - error for error in original["errors"]["test"]["values"]]
        assert whole["accuracy"]["test"]["values"] == pytest.approx(accuracies)
        told = f"have {whole['accuracy']['test']['mean']:.2f} ± {whole['accuracy']['test']['std']:.2f} (n = 4; paper "
        assert told in TABLES[name](ran.documents[name])


def test_the_walk_is_looked_at_where_the_rule_ends_it(ran: Ran) -> None:
    samples, classes = (ran.documents["epochs"]["networks"][key] for key in ("smallvgg", "resnet18"))
    (name,) = samples["stopped by the rule"]
    assert (
        samples["methods"][name]["errors"] == ran.documents["layers"]["networks"]["smallvgg"]["methods"][name]["errors"]
    )
    assert list(samples["epochs"].values()) == sorted(samples["epochs"].values())
    assert f"| {samples['epochs'][name]}, where the rule stops |" in TABLES["epochs"](ran.documents["epochs"])
    assert classes["stopped by the rule"] == []


def test_what_was_done_is_not_done_again_and_what_is_missing_is(ran: Ran) -> None:
    ran.again("all", stage="run")
    assert len(ran.said) == 1, ran.said
    row = ran.folder / "rows" / "quick-allcnn" / "20-of-class-0" / "match" / "0.json"
    row.unlink()
    ran.again("table1", stage="run")
    assert len(ran.said) == 2
    assert "quick-allcnn/20-of-class-0/match/0" in ran.said[1]


def test_a_network_whose_weights_are_gone_is_trained_again(ran: Ran) -> None:
    weights = ran.folder / "weights" / "quick-allcnn" / "full" / "0.safetensors"
    weights.unlink()
    (ran.folder / "rows" / "quick-allcnn" / "20-of-class-0" / "delete" / "0.json").unlink()
    ran.again("table1", stage="run")
    assert weights.exists()


def test_a_baseline_of_another_tuning_is_left_out_and_made_anew(ran: Ran) -> None:
    row = ran.folder / "rows" / "quick-allcnn" / "20-of-class-0" / "delete" / "0.json"
    document = json.loads(row.read_text())
    document["settings"].pop("tuning")
    row.write_text(json.dumps(document))
    found = ran.again("table1", stage="assemble")["table1"]
    assert "delete" not in found["methods"]
    assert "1 outcomes of another tuning are left out (delete)" in ran.said[0]
    ran.again("table1", stage="run")
    assert "set-aside" in ran.said[0]
    assert ran.said[-1].startswith("1/1 quick-allcnn/20-of-class-0/delete/0")
    assert json.loads((ran.folder / "set-aside" / row.relative_to(ran.folder / "rows")).read_text()) == document
    assert "delete" in ran.again("table1", stage="assemble")["table1"]["methods"]


def test_no_job_is_started_when_time_is_over_or_the_pattern_is_another(ran: Ran) -> None:
    row = ran.folder / "rows" / "quick-allcnn" / "20-of-class-0" / "paper" / "0.json"
    kept = row.read_text()
    row.unlink()
    ran.again("table1", stage="run", minutes=0)
    assert "1 jobs left" in ran.said[-1]
    ran.again("table1", stage="run", jobs="*/match/*")
    assert not row.exists()
    row.write_text(kept)


def test_another_recipe_is_refused(ran: Ran, tmp_path: Path) -> None:
    options = Options(ran.folder, replace(SMOKE, allcnn=replace(SMOKE.allcnn, epochs=2)), device="cpu", stage="run")
    with pytest.raises(MismatchError, match="other settings"):
        reproduce(["table1"], options, ran.said.append)
    copied = tmp_path / "weights" / "quick-allcnn" / "full"
    copied.mkdir(parents=True)
    shutil.copy(ran.folder / "weights" / "quick-allcnn" / "full" / "0.safetensors", copied)
    with pytest.raises(MismatchError, match="another recipe"):
        reproduce(["table1"], replace(options, out=tmp_path), ran.said.append)


def test_documents_become_pages_and_figures(ran: Ran, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for name, document in ran.documents.items():
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(document))
    text = "\n".join(f"<!-- results/{name}.json -->\nold\n<!-- end of {name} -->" for name in TABLES)
    made = page(text, tmp_path)
    assert "old" not in made
    assert NOT_YET not in made
    assert page(made, tmp_path) == made
    assert made.count("paper 9.92 ± 0.45") == 1
    assert f"XGBoost attack: {SMOKE.models} full + {SMOKE.models} retrained + 1 on trial networks" in made
    assert f"{SMOKE.trials} trials at most" in made
    assert "unweave, `match`" in with_summary("<!-- reproduction -->\nold\n<!-- end of reproduction -->", tmp_path)
    for name, document in ran.documents.items():
        specs = drawn_from(name, document)
        assert all(f"figures/{key}.svg" in made for key in specs)
    paths = write_svg(drawn_from("table1", ran.documents["table1"]), tmp_path / "figures")
    assert all(path.read_text().startswith("<svg") for path in paths)
    assert len(paths) == 3


SPOILT = {
    "allcnn/20-of-class-0": ("match/0", "ssd/0", "sisa/0", "delete/0", "search/ssd-0", "retrained/0"),
    "allcnn/long-run-of-10-a-class": ("match/0",),
    "smallvgg/first-6-a-class": ("match/0",),
    "smallvgg/poison-60": ("match/0", "first_order/0", "clean/0"),
    "smallvgg/poison-search": ("first_order-0",),
    "smallvgg/class-0": ("ours/0",),
}
"""Outcomes of every kind that is timed."""
TRAINED = ("allcnn/without-20-of-class-0/1000", "smallvgg/clean-60/0")


def test_what_ran_beside_other_work_has_errors_but_no_seconds(ran: Ran, tmp_path: Path) -> None:
    """Whole documents with rows that were timed and rows that were not become tables, with dashes for the latter."""
    shutil.copytree(ran.folder, tmp_path, dirs_exist_ok=True)
    names = [f"quick-{folder}/{name}" for folder, leaves in SPOILT.items() for name in leaves]
    for name in names:
        (tmp_path / "rows" / f"{name}.json").unlink()
    for name in TRAINED:
        (tmp_path / "weights" / f"quick-{name}.safetensors").unlink()
    said, options = list[str](), Options(tmp_path, SMOKE, device="cpu")
    reproduce(["all"], replace(options, stage="run", jobs=",".join(names), crowded=True), said.append)
    assert said[0] == f"{len(names)} jobs, 0 of them done before"
    for name in names:
        kept = json.loads((tmp_path / "rows" / f"{name}.json").read_text())
        assert kept["made_by"]["crowded"] is True
        result = kept["result"]
        assert result["seconds"] is None, name
        assert result.get("fit seconds") is None
        assert all(step["seconds"] is None for step in result.get("steps", []))
        assert not any(result.get("step seconds", []))
    documents = reproduce(["all"], replace(options, stage="assemble"), said.append)
    made = {name: TABLES[name](document) for name, document in documents.items()}
    methods = documents["table1"]["methods"]
    assert methods["match"]["seconds"] is methods["match"]["fit seconds"] is methods["retrained"]["seconds"] is None
    assert methods["pgu"]["seconds"]["values"] == ran.documents["table1"]["methods"]["pgu"]["seconds"]["values"]
    assert [one.get("crowded") for one in documents["table1"]["made_by"]].count(True) == 1
    assert f"themselves (0 of 1 in 5 of {len(methods) - 1} rows)" in made["table1"], "the original's are not shown"
    told = made["table1"].partition("Error less that of retraining")[2]
    assert told.count(" points\n") == len(table1.OURS), "no ratio where one of both was not timed"
    line = next(line for line in made["table1"].splitlines() if line.startswith("| unweave, `match` | 4 |"))
    assert line.split(" | ")[6] == "–"
    assert "themselves (0 of 1 in 2 of 10 rows)" in made["table3"], "two steps of one chain"
    assert "themselves (0 of 1 in 3 of " in made["table4"]
    assert "themselves (0 of 1 in 1 of " in made["class-smallvgg"]
    assert "of the steps that had the GPU for themselves (0 of 2 in 1 of 6 rows)" in made["incremental-long"]
    assert "themselves" not in made["table2"] + TABLES["table1"](ran.documents["table1"])


GONE = {
    "layers": ("quick-resnet", ["resnet18"]),
    "epochs": ("quick-resnet", ["resnet18"]),
    "incremental-long": (
        "quick-allcnn/long-run-*",
        [f"quick-allcnn, 10 a class, {way}" for way in ("pgu", "match", "match first")],
    ),
}
"""Document → outcomes that are lost, and the parts that rested on them."""


def test_parts_whose_outcomes_are_gone_are_kept_and_the_document_says_so(ran: Ran, tmp_path: Path) -> None:
    shutil.copytree(ran.folder / "rows", tmp_path / "rows")
    for pattern in {"*/poison-*/clean", *(pattern for pattern, _ in GONE.values())}:
        for folder in list((tmp_path / "rows").glob(pattern)):
            shutil.rmtree(folder)
    said = list[str]()
    options = Options(tmp_path, SMOKE, device="cpu", stage="assemble", keep=ran.folder)
    found = reproduce([*GONE, "table4", "gamma"], options, said.append)
    assert said[0] == "gamma has no parts: --keep takes nothing over for it"
    assert "kept" not in found["gamma"]
    assert {cell.split(", ")[-1] for cell in found["table4"]["kept"]} == {"clean"}
    assert found["table4"]["networks"] == ran.documents["table4"]["networks"]
    for name, (_, lost) in GONE.items():
        new, old, parts = found[name], ran.documents[name], PARTS[name]
        assert new["kept"] == lost
        assert list(new[parts]) == list(old[parts])
        assert all(new[parts][part] == old[parts][part] for part in lost)
        assert 0 < new["seconds"] < old["seconds"], "of what was assembled here"
        shown, before = TABLES[name](new).splitlines(), TABLES[name](old).splitlines()
        assert shown[:-1] == before[:-1], "only the line of where it is from differs"
        assert shown[-1].endswith(f"; kept from an earlier run, not in this sum: {'; '.join(lost)}.*")
        assert json.loads((tmp_path / f"{name}.json").read_text()) == json.loads(json.dumps(new))
        assert f"{name}: taken over by --keep: {'; '.join(lost)}" in said


@pytest.mark.parametrize("kind", ["nothing", "pgu*", "match*", "original", "retrained", "poisoned", "search"])
def test_a_run_that_was_cut_short_can_be_assembled_and_shown(ran: Ran, tmp_path: Path, kind: str) -> None:
    for path in (ran.folder / "rows").rglob("*"):
        if path.is_file() and fnmatch.fnmatch(path.parent.name, kind):
            kept = tmp_path / path.relative_to(ran.folder)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, kept)
    said = list[str]()
    documents = reproduce(["all"], Options(tmp_path, SMOKE, device="cpu", minutes=0), said.append)
    for name, document in documents.items():
        assert (tmp_path / f"{name}.json").exists() == bool(document["made_by"])
        assert TABLES[name](document)
        assert isinstance(drawn_from(name, document), dict)
    empty = [f"{name}: nothing was run" for name, document in documents.items() if not document["made_by"]]
    assert [text.partition(" yet")[0] for text in said if "nothing was run" in text] == empty
    assert kind != "nothing" or len(empty) == len(EXPERIMENTS)


def test_an_unknown_experiment_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"table9.*Supported: all, table1"):
        reproduce(["table9"], Options(tmp_path, SMOKE))
