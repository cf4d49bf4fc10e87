"""Parts of an earlier document: which are taken over, where they stand, and what the document then says of itself."""

from __future__ import annotations

import argparse
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import layers
from experiments.documents.cells import origin
from experiments.documents.keeping import (
    BY_BUDGET,
    OF_OUTPUTS,
    PARTS,
    RIGHT_LABELS,
    earlier,
    in_place,
    with_kept,
    with_seeds,
)
from experiments.documents.tables import TABLES
from experiments.reproduce import Options, options_of, reproduce
from experiments.settings import SMOKE
from unweave.cli.main import main
from unweave.cli.reproduce import add_options
from unweave.errors import ConfigError, MismatchError, StoreError, UnweaveWarning

ROOT = Path(__file__).parents[2]
OLD, NEW, BOTH = ({"commit": name, "gpu": "a GPU", "date": "2026-01-02"} for name in ("old", "new", "both"))
METHODS = {"original": {"errors": {"forgotten": {"mean": 1.5, "std": 0.0, "values": [1.5]}}}}

LIKE_THEM = replace(SMOKE, name="paper")
"""The scale that the documents below say they are of."""


def head(name: str, made_by: list[dict[str, Any]], seconds: float, epochs: int, *settings: str) -> dict[str, Any]:
    recipes = {setting: {"epochs": epochs} for setting in settings}
    paper = {key: {"pgu": [], "eu_k": []} for key in ("smallvgg", "resnet18")}
    head = {"experiment": name, "scale": "paper", "made_by": made_by, "seconds": seconds, "recipes": recipes}
    return {**head, "paper": paper}


def network(name: str, methods: dict[str, Any], note: str) -> dict[str, Any]:
    return {"request": {"network": name}, "moved": [], "methods": methods, "attacks": {}, "note": note}


def old_layers() -> dict[str, Any]:
    networks = {"smallvgg": network("vgg", METHODS, "old"), "resnet18": network("res", METHODS, "old")}
    return {**head("layers", [OLD, BOTH], 50.0, 40, "vgg", "res"), "networks": networks}


def new_layers() -> dict[str, Any]:
    networks = {"smallvgg": network("vgg", METHODS, "new"), "resnet18": network("res", {}, "new")}
    return {**head("layers", [NEW, BOTH], 7.0, 80, "vgg", "res"), "networks": networks}


def long_runs(note: str, epochs: int, *names: str) -> dict[str, Any]:
    runs = {name: {"curves": [[90.0, 80.0]], "note": note} for name in names}
    return {**head("incremental-long", [NEW], 7.0, epochs, "all", "vgg"), "drop": 2.0, "runs": runs}


ALL = ("all, 100 a class, pgu", "all, 100 a class, match", "vgg, 100 a class, pgu", "vgg, 100 a class, match")


def test_a_network_without_outcomes_is_taken_over_with_its_recipe_and_what_made_it() -> None:
    new, old = new_layers(), old_layers()
    found = with_kept(new, old)
    assert found["networks"] == {"smallvgg": new["networks"]["smallvgg"], "resnet18": old["networks"]["resnet18"]}
    assert found["kept"] == ["resnet18"]
    assert found["recipes"] == {"vgg": {"epochs": 80}, "res": {"epochs": 40}}
    assert found["made_by"] == [NEW, BOTH, OLD]
    assert found["seconds"] == 7.0
    assert list(found) == [*(key for key in new if key != "networks"), "kept", "networks"]
    assert (new, old) == (new_layers(), old_layers()), "neither is changed"


def test_a_document_that_needs_nothing_stays_as_it_was() -> None:
    new = new_layers()
    new["networks"]["resnet18"]["methods"] = METHODS
    assert with_kept(new, old_layers()) == new
    empty = old_layers()
    empty["networks"]["resnet18"]["methods"] = {}
    assert with_kept(new_layers(), empty) == new_layers(), "nor does an old part without outcomes count"


def test_missing_runs_are_put_where_they_were() -> None:
    found = with_kept(long_runs("new", 80, ALL[2], ALL[3]), long_runs("old", 40, *ALL))
    assert list(found["runs"]) == list(ALL)
    assert [run["note"] for run in found["runs"].values()] == ["old", "old", "new", "new"]
    assert found["kept"] == list(ALL[:2])
    assert found["recipes"] == {"all": {"epochs": 40}, "vgg": {"epochs": 80}}
    assert found["made_by"] == [NEW], "no entry is there twice"


def wrong_labels(note: str, epochs: int, **budgets: list[str]) -> dict[str, Any]:
    cells = {name[1:]: {method: {"note": note} for method in methods} for name, methods in budgets.items()}
    tuned = {method: [{"by": note}] for methods in budgets.values() for method in methods if method == "first_order"}
    about = head("table4", [OLD if note == "old" else NEW], 7.0, epochs, "vgg")
    return {**about, "networks": {"vgg": cells}, "tuning": {"criterion": "val", "methods": tuned}}


def test_single_cells_of_the_tables_of_wrong_labels_are_taken_over_and_stand_where_they_stood() -> None:
    methods = ["poisoned", "clean", "pgu", "match"]
    old = wrong_labels("old", 80, b50=methods, b100=methods, b150=methods)
    new = wrong_labels("new", 80, b50=["poisoned", "match", "first_order"], b100=methods, b150=[])
    found = with_kept(new, old)
    notes = {
        budget: {method: cell["note"] for method, cell in cells.items()}
        for budget, cells in found["networks"]["vgg"].items()
    }
    assert list(notes) == ["50", "100", "150"]
    assert list(notes["50"].items()) == [
        *zip(["poisoned", "clean", "pgu", "match", "first_order"], ["new", "old", "old", "new", "new"], strict=True)
    ]
    assert set(notes["100"].values()) == {"new"}
    assert list(notes["150"]) == methods
    assert found["kept"] == ["vgg, 50, clean", "vgg, 50, pgu", *(f"vgg, 150, {method}" for method in methods)]
    assert found["made_by"] == [NEW, OLD]


def test_cells_come_with_their_trials_and_without_budgets_that_nobody_asks_for() -> None:
    old = wrong_labels("old", 80, b50=["match", "first_order"], b100=["match"])
    found = with_kept(wrong_labels("new", 80, b50=["match"]), old)
    assert found["kept"] == ["vgg, 50, first_order"]
    assert found["tuning"] == {"criterion": "val", "methods": {"first_order": [{"by": "old"}]}}


def test_the_networks_of_right_labels_are_taken_over_where_there_are_none() -> None:
    old, new = ({**wrong_labels(told, 80, b50=["match"]), "whole": {"of": told}} for told in ("old", "new"))
    assert with_kept(new, old) == new
    found = with_kept({**new, "whole": {}}, old)
    assert found["kept"] == [RIGHT_LABELS]
    assert found["whole"] == {"of": "old"}
    assert found["networks"] == new["networks"]
    with pytest.raises(MismatchError, match="vgg has outcomes here that were made by another recipe"):
        with_kept({**new, "whole": {}}, {**old, "recipes": {"vgg": {"epochs": 40}}})


def test_cells_and_runs_that_do_not_say_their_seeds_get_them_and_it_is_told_that_they_are_inferred() -> None:
    first_two = {"seeds": [0, 1], "seeds inferred": True}
    cell = {"accuracy": {"test": {"values": [9.0, 8.0]}}}
    assert with_seeds(cell) == {**cell, **first_two}
    run = {"curves": [[90.0, 80.0], [90.0, 70.0]]}
    assert with_seeds(run) == {**run, **first_two}
    for known in ({**run, "seeds": [3, 4]}, {"methods": METHODS}):
        assert with_seeds(known) == known
    found = with_kept(long_runs("new", 80, ALL[2], ALL[3]), long_runs("old", 80, *ALL))
    assert [run.get("seeds") for run in found["runs"].values()] == [[0], [0], None, None], "those taken over alone"


def test_cells_of_another_tuning_are_refused() -> None:
    new = wrong_labels("new", 80, b50=["first_order"], b100=[])
    with pytest.raises(MismatchError, match="first_order was tuned here and, in another way, in the document"):
        with_kept(new, wrong_labels("old", 80, b50=["first_order"], b100=["first_order"]))


def test_cells_of_another_recipe_are_refused() -> None:
    with pytest.raises(MismatchError, match="vgg has outcomes here that were made by another recipe"):
        with_kept(wrong_labels("new", 80, b50=["match"]), wrong_labels("old", 40, b50=["match", "clean"]))


@pytest.mark.parametrize(
    ("new", "old", "order"),
    [("cd", "abcd", "abcd"), ("ad", "abcd", "abcd"), ("dxa", "abcd", "dxabc"), ("xy", "ab", "abxy"), ("", "ab", "ab")],
)
def test_the_new_order_stands_and_others_follow_whom_they_followed(new: str, old: str, order: str) -> None:
    assert "".join(in_place(new, old)) == order


def test_a_network_cannot_have_two_recipes_in_one_document() -> None:
    new = long_runs("new", 80, *ALL[:3])
    with pytest.raises(MismatchError, match=r"vgg has outcomes .* another recipe .* leave --keep out"):
        with_kept(new, long_runs("old", 40, *ALL))
    assert with_kept(new, long_runs("old", 80, *ALL))["kept"] == [ALL[3]], "one recipe of both is fine"


@pytest.mark.parametrize(("key", "value"), [("scale", "quick"), ("drop", 3.0)])
def test_parts_on_other_terms_are_refused(key: str, value: Any) -> None:
    old = {**long_runs("old", 80, *ALL), key: value}
    with pytest.raises(MismatchError, match=f"{key} is .* here and {value} in the document"):
        with_kept(long_runs("new", 80, ALL[0]), old)


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_the_results_that_are_here_can_be_taken_over(name: str) -> None:
    old = earlier(ROOT / "results", name, "paper")
    new = deepcopy(old)
    new.pop("kept", None)
    gone = list(old[PARTS[name]])[-1]
    if name in OF_OUTPUTS:
        new["requests"][gone]["entropy"] = {}
        gone = f"entropies of {gone} classes"
    elif PARTS[name] == "runs":
        del new["runs"][gone]
    elif name in BY_BUDGET:
        budget, cells = next(iter(old["networks"][gone].items()))
        method = list(cells)[-1]
        del new["networks"][gone][budget][method]
        gone = f"{gone}, {budget}, {method}"
    else:
        new["networks"][gone]["methods"] = {}
    found = with_kept(new, old)
    assert found.pop("kept") == [gone]
    old.pop("kept", None)
    assert found == old


def attacked(made: dict[str, Any], told: str, error: float, *, outputs: bool) -> dict[str, Any]:
    methods = {"original": {"seeds": [0], "errors": {"forgotten": {"values": [error]}}, "told": told}}
    found = {"methods": {"original": {"xgboost": told}}} if outputs else {}
    part = {"request": {"network": "res"}, "methods": methods, "attacks": found}
    if outputs:
        part["attacker's scores"] = {"original": told}
    return {**head("epochs", [made], 7.0, 40, "res"), "networks": {"resnet18": part}}


def test_attacks_on_networks_whose_outputs_are_gone_are_taken_over_beside_new_numbers() -> None:
    new, old = attacked(NEW, "new", 1.5, outputs=False), attacked(OLD, "old", 1.5, outputs=True)
    found = with_kept(new, old)
    part = found["networks"]["resnet18"]
    assert found["kept"] == ["attacks of resnet18"]
    assert found["made_by"] == [NEW, OLD]
    assert part["methods"] == new["networks"]["resnet18"]["methods"]
    assert (part["attacks"], part["attacker's scores"]) == (
        {"methods": {"original": {"xgboost": "old"}}},
        {"original": "old"},
    )
    seen = attacked(NEW, "new", 1.5, outputs=True)
    assert with_kept(seen, old) == seen, "there are new ones"
    other = attacked(NEW, "new", 1.6, outputs=False)
    with pytest.warns(UnweaveWarning, match="left out: original have other networks now"):
        assert with_kept(other, old) == other, "they were about another network"
    row = new["networks"]["resnet18"]["methods"]["original"]
    row |= {"seeds": [0, 12], "errors": {"forgotten": {"values": [1.5, 9.0]}}}
    assert with_kept(new, old)["kept"] == ["attacks of resnet18"], "there are more that were only trained"
    row["seeds"] = [12, 0]
    with pytest.warns(UnweaveWarning, match="left out"):
        assert "kept" not in with_kept(new, old), "the error is another seed's"


def test_attacks_on_a_request_are_left_out_once_it_has_more_networks() -> None:
    new, old = attacked(NEW, "new", 1.5, outputs=False), attacked(OLD, "old", 1.5, outputs=True)
    for document in (new, old):
        part = document["networks"]["resnet18"]
        part["methods"]["pgu"] = part["methods"].pop("original")
        part["attacks"] = {"methods": {"pgu": found["original"]}} if (found := part["attacks"].get("methods")) else {}
    new["networks"]["resnet18"]["methods"]["pgu"] |= {"seeds": [0, 1], "errors": {"forgotten": {"values": [1.5, 2.0]}}}
    with pytest.warns(UnweaveWarning, match="left out: pgu"):
        assert "kept" not in with_kept(new, old)


def removal(made: dict[str, Any], told: str, *, outputs: bool, epochs: int = 40) -> dict[str, Any]:
    requests = {n: {"methods": {**METHODS, "told": told}, "entropy": {"of": told} if outputs else {}} for n in "57"}
    attacks = {"methods": {"of": told}} if outputs else {}
    return {**head("table2", [made], 7.0, epochs, "res"), "requests": requests, "attacks": attacks}


def test_what_is_made_of_outputs_is_taken_over_where_they_are_gone_and_numbers_are_not() -> None:
    new, old = removal(NEW, "new", outputs=False), removal(OLD, "old", outputs=True)
    found = with_kept(new, old)
    assert found["kept"] == ["entropies of 5 classes", "entropies of 7 classes", "attacks"]
    assert found["made_by"] == [NEW, OLD]
    assert [entry["entropy"] for entry in found["requests"].values()] == [{"of": "old"}] * 2
    assert [entry["methods"]["told"] for entry in found["requests"].values()] == ["new"] * 2
    assert found["attacks"] == old["attacks"]
    new["requests"]["5"]["entropy"] = {"of": "new"}
    assert with_kept(new, old)["kept"] == ["entropies of 7 classes", "attacks"]
    whole = removal(NEW, "new", outputs=True)
    assert with_kept(whole, old) == whole


def test_what_is_made_of_outputs_of_another_recipe_is_refused() -> None:
    with pytest.raises(MismatchError, match=r"recipes is .* Leave --keep out"):
        with_kept(removal(NEW, "new", outputs=False), removal(OLD, "old", outputs=True, epochs=80))


def test_a_folder_without_the_document_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*layers\.json\. Name the folder"):
        earlier(tmp_path, "layers", "paper")


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is no JSON"), ("[]", "is no document of layers"), ('{"experiment": "epochs"}', "no docu")],
)
def test_what_is_no_document_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "layers.json").write_text(text)
    with pytest.raises(StoreError, match=words):
        earlier(tmp_path, "layers", "paper")


def test_the_line_of_where_numbers_are_from_names_what_was_kept() -> None:
    assert origin(new_layers()).endswith("; 7 s of jobs.*")
    kept = origin({**new_layers(), "kept": ["a, 1", "b, 2"]})
    assert kept.endswith("; 7 s of jobs; kept from an earlier run, not in this sum: a, 1; b, 2.*")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An earlier document's folder and one for the new one, whose outcomes are made up."""
    monkeypatch.setattr(layers, "assemble", lambda work: new_layers())
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "layers.json").write_text(json.dumps(old_layers()))
    return tmp_path / "before", tmp_path / "out"


def test_what_is_kept_is_written_and_shown(folders: tuple[Path, Path]) -> None:
    before, out = folders
    said = list[str]()
    found = reproduce(["layers"], Options(out, LIKE_THEM, device="cpu", stage="assemble", keep=before), said.append)
    written = json.loads((out / "layers.json").read_text())
    assert written == found["layers"] == with_kept(new_layers(), old_layers())
    assert said[0] == "layers: taken over by --keep: resnet18"
    text = (out / "layers.md").read_text("utf-8")
    assert TABLES["layers"](written) in text
    part = text.partition("**res**")[2]
    assert "| 0 | 1 | – | 1.50 |" in part
    assert "not in this sum: resnet18" in part


def test_another_scale_comes_out_before_anything_is_run(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "jobs", lambda work: pytest.fail("nothing is to be run"))
    with pytest.raises(MismatchError, match="scale is smoke here and paper in the document of --keep"):
        reproduce(["layers"], Options(folders[1], SMOKE, device="cpu", keep=folders[0]), print)


def test_without_the_flag_nothing_is_kept(folders: tuple[Path, Path]) -> None:
    said = list[str]()
    found = reproduce(["layers"], Options(folders[1], SMOKE, device="cpu", stage="assemble"), said.append)
    assert found["layers"] == new_layers()
    assert not [text for text in said if "--keep" in text or "kept" in text]


def test_where_nothing_was_run_the_earlier_document_is_not_passed_off_as_new(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, out = folders
    monkeypatch.setattr(layers, "assemble", lambda work: {**new_layers(), "made_by": []})
    with pytest.raises(StoreError, match=r"no outcomes of layers .* --keep adds to the outcomes .* at least one"):
        reproduce(["layers"], Options(out, LIKE_THEM, device="cpu", stage="assemble", keep=before), print)
    assert not (out / "layers.json").exists()


def test_a_wrong_folder_is_found_out_before_any_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layers, "jobs", lambda work: pytest.fail("too late"))
    words = ["--quick", "--device", "cpu", "--out", str(tmp_path / "out"), "--keep", str(tmp_path)]
    assert main(["reproduce", "layers", *words]) == 2
    assert f"Invalid --keep: there is no {tmp_path / 'layers.json'}" in capsys.readouterr().err


def test_where_nothing_is_assembled_the_flag_is_said_to_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "jobs", lambda work: [])
    said = list[str]()
    reproduce(["layers"], Options(tmp_path / "out", SMOKE, device="cpu", stage="run", keep=tmp_path), said.append)
    told = "--keep does nothing with --stage run: parts are taken over when documents are assembled"
    assert said == [told, "0 jobs, 0 of them done before"]


@pytest.mark.parametrize(("words", "folder"), [([], None), (["--keep", "results"], Path("results"))])
def test_the_flag_reaches_the_options(words: list[str], folder: Path | None) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert options_of(parser.parse_args(words)).keep == folder
