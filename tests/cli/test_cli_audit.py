"""``unweave audit``: from settings and from arrays on disk, with exit codes that mean something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from safetensors.torch import save_file
from toy_project import POISONED, Cli, Toy, files
from worlds import CLASSES, World, fair

import unweave.report
from unweave.audit.evidence import Evidence
from unweave.audit.files import arrays_of, save_evidence

SCHEMA = json.loads((Path(unweave.report.__file__).parent / "schema.json").read_text())


def outputs(evidence: Evidence, path: Path) -> Path:
    save_evidence(path, **dict(arrays_of(evidence)))
    return path


@pytest.fixture
def forgotten(fitted: Path, cli: Cli) -> Path:
    assert cli("forget", "--ids", "ids.txt").code == 0
    return fitted


def test_audit_after_forget(forgotten: Path, cli: Cli) -> None:
    done = cli("audit", "--ids", "ids.txt", "--page", "audit.html")
    assert done.code in (0, 3, 4), done.err
    assert done.err == ""
    found = json.loads((forgotten / "audit.json").read_text())
    jsonschema.validate(found, SCHEMA)
    assert found["tier"]["name"] == "T0"
    assert found["request"]["samples"] == 24
    assert [model["name"] for model in found["models"]] == ["original", "unlearned"]
    assert set(found["models"][0]["errors"]) == {"forget", "held out", "retained"}
    assert found["epochs"][0]["auc"] > found["epochs"][-1]["auc"]
    assert {layer["name"] for layer in found["layers"]} == {"1", "3"}
    assert found["leakage"]
    assert "--ids ids.txt" in found["rerun"] or found["rerun"].startswith("unweave audit")
    assert (forgotten / "audit.html").read_text().startswith("<!")
    assert {"pass": 0, "fail": 3, "inconclusive": 4}[found["verdict"]["outcome"]] == done.code


def test_an_audit_knows_from_the_record_what_is_left_of_the_classes(
    forgotten: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = json.loads((forgotten / "forgotten.json").read_text())["left"]
    assert left
    assert all(0 < share < 1 for share in left.values())
    seen = []
    monkeypatch.setattr(Evidence, "__post_init__", lambda self: seen.append(self.left))
    cli("audit", "--ids", "ids.txt")
    assert seen == [{int(c): share for c, share in left.items()}]


def test_a_no_op_does_not_pass(fitted: Path, toy: Toy, cli: Cli) -> None:
    save_file(toy.weights, fitted / "forgotten.safetensors")
    done = cli("audit", "--ids", "ids.txt")
    assert done.code == 3
    assert "nothing was forgotten" in " ".join(done.out.replace("│", " ").split())


def test_a_retrained_network_makes_it_t3(forgotten: Path, toy: Toy, cli: Cli) -> None:
    save_file({name: 0.9 * value for name, value in toy.weights.items()}, forgotten / "retrained.safetensors")
    assert cli("audit", "--ids", "ids.txt", "--retrained", "retrained.safetensors").code in (0, 3, 4)
    found = json.loads((forgotten / "audit.json").read_text())
    assert found["tier"]["name"] == "T3"
    assert found["attacks"][0]["retrained"]["samples"][0] == 24


def test_an_earlier_request_is_tested_again(forgotten: Path, cli: Cli) -> None:
    (forgotten / "may.txt").write_text("\n".join(map(str, range(60, 90))))
    assert cli("audit", "--ids", "ids.txt", "--earlier", "may.txt").code in (3, 4)
    found = json.loads((forgotten / "audit.json").read_text())
    jsonschema.validate(found, SCHEMA)
    assert [request["title"] for request in found["earlier"]] == ["may"]
    assert found["earlier"][0]["samples"] == 30
    assert found["earlier"][0]["outcome"] != "pass", "these were never forgotten"


@pytest.fixture
def twice(forgotten: Path, cli: Cli) -> Path:
    """After two requests, ids.txt and then more.txt, whose weights are 2.safetensors."""
    (forgotten / "more.txt").write_text("\n".join(map(str, range(100, 120))))
    first = ("--weights", "forgotten.safetensors", "--grams", "forgotten.grams.safetensors")
    assert cli("forget", "--ids", "more.txt", *first, "--out", "2.safetensors").code == 0
    return forgotten


def retained(found: dict[str, Any]) -> int:
    return found["models"][0]["errors"]["retained"]["samples"]


def test_what_is_left_is_of_what_the_original_was_trained_on(
    twice: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads((twice / "2.json").read_text())
    assert record["left"] != record["left of all"]
    seen = []
    monkeypatch.setattr(Evidence, "__post_init__", lambda self: seen.append({str(c): s for c, s in self.left.items()}))
    audit = ("audit", "--ids", "more.txt", "--out", "2.safetensors", "--force")
    cli(*audit)  # beside the first model
    cli(*audit, "--weights", "forgotten.safetensors")
    assert seen == [record["left of all"], record["left"]]


def test_samples_of_earlier_requests_are_not_retained(twice: Path, cli: Cli) -> None:
    audit = ("audit", "--ids", "more.txt", "--out", "2.safetensors", "--json", "--force")
    assert retained(cli(*audit).record) == 240 - 20 - 24, "the Grams know what is out"
    assert retained(cli(*audit, "--retained", 190).record) == 190, "others take the place of those that are out"
    (twice / "2.grams.safetensors").unlink()
    assert retained(cli(*audit, "--earlier", "ids.txt").record) == 240 - 20 - 24
    assert retained(cli(*audit).record) == 240 - 20, "nobody knows of the first request"


def test_a_stream_is_searched_for_what_is_out_too(twice: Path, cli: Cli) -> None:
    (twice / "stream.py").write_text(
        "import numpy as np, torch\n"
        "def train():\n"
        "    data = np.load('train.npz')\n"
        "    x, y = torch.from_numpy(data['x']).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(data['y']).long()\n"
        "    return zip(x.split(7), y.split(7))\n"
    )
    audit = ("audit", "--ids", "more.txt", "--out", "2.safetensors", "--train", "stream:train", "--json")
    assert retained(cli(*audit).record) == 240 - 20 - 24


def test_samples_that_nobody_asked_to_forget_are_refused(forgotten: Path, cli: Cli) -> None:
    (forgotten / "bad.txt").write_text("\n".join(map(str, range(36, 60))))
    there = files(forgotten)
    refused = cli("audit", "--ids", "bad.txt", "--force")
    assert refused.code == 1
    assert "16 of these 24 samples were not part of a request that led to forgotten.safetensors" in refused.err
    assert "unweave forget" in refused.err
    assert files(forgotten) == there
    assert cli("audit", "--classes", "2").code == 1
    assert cli("audit", "--poisoned", "bad.txt").code == 1


def test_a_part_of_a_request_and_an_earlier_one_may_be_audited(twice: Path, cli: Cli) -> None:
    (twice / "part.txt").write_text("\n".join(map(str, range(20, 40))))
    part = cli("audit", "--ids", "part.txt", "--out", "2.safetensors", "--json")
    assert part.code in (0, 3, 4), part.err
    assert retained(part.record) == 240 - 20 - 24, "the rest of the request is out as well"


def test_weights_of_other_tools_are_audited_beside_grams_of_ours(forgotten: Path, toy: Toy, cli: Cli) -> None:
    (forgotten / "other.txt").write_text("\n".join(map(str, range(60, 84))))
    save_file({name: 0.9 * value for name, value in toy.weights.items()}, forgotten / "forgotten.safetensors")
    assert cli("audit", "--ids", "other.txt").code in (0, 3, 4)


def test_a_request_that_changed_nothing_fails_and_is_not_refused(fitted: Path, cli: Cli) -> None:
    assert cli("forget", "--ids", "ids.txt", "--epochs", 1, "--lr", 1e-30, "--keep-anyway").code == 3
    done = cli("audit", "--ids", "ids.txt", "--json")
    assert done.code == 3, done.err
    assert "nothing was forgotten" in " ".join(check["sentence"] for check in done.record["verdict"]["checks"])


def test_classes_and_poison_say_what_they_are(fitted: Path, cli: Cli) -> None:
    assert cli("forget", "--classes", "2").code == 0
    assert cli("audit", "--classes", "2").code in (0, 3, 4)
    found = json.loads((fitted / "audit.json").read_text())
    assert found["request"]["task"] == "classes"
    assert [place["class"] for place in found["destinations"]] == ["2", "2"]


def test_the_task_is_the_requests(fitted: Path, cli: Cli) -> None:
    (fitted / "bad.txt").write_text("\n".join(map(str, range(POISONED))))
    assert cli("forget", "--ids", "bad.txt", "--task", "poison").code == 0
    assert cli("audit", "--ids", "bad.txt").code in (0, 3, 4)
    assert json.loads((fitted / "audit.json").read_text())["request"]["task"] == "poison"


def test_another_task_may_be_said(fitted: Path, toy: Toy, cli: Cli) -> None:
    (fitted / "class.txt").write_text("\n".join(map(str, np.flatnonzero(toy.y == 2))))
    assert cli("forget", "--classes", "2").code == 0
    assert cli("audit", "--ids", "class.txt", "--task", "samples").code in (0, 3, 4)
    assert json.loads((fitted / "audit.json").read_text())["request"]["task"] == "samples"


def test_samples_of_every_class_are_no_classes_that_went(forgotten: Path, cli: Cli) -> None:
    refused = cli("audit", "--ids", "ids.txt", "--task", "classes")
    assert refused.code == 2
    assert "these samples are of all classes there are. Use" in refused.err


def test_a_request_of_a_few_samples_is_audited_too(fitted: Path, cli: Cli) -> None:
    (fitted / "few.txt").write_text("20\n21\n22")
    assert cli("forget", "--ids", "few.txt").code == 0
    done = cli("audit", "--ids", "few.txt")
    assert done.code in (3, 4), done.err
    found = (fitted / "audit.json").read_text()
    assert "Features were not probed: that takes 10 forgotten samples, there are 3." in found


def test_without_a_record_the_settings_say_the_task(fitted: Path, cli: Cli) -> None:
    (fitted / "bad.txt").write_text("\n".join(map(str, range(POISONED))))
    assert cli("forget", "--poisoned", "bad.txt").code == 0
    (fitted / "forgotten.json").unlink()
    with open(fitted / "unweave.toml", "a") as settings:
        settings.write('\n[forget]\ntask = "poison"\n')
    assert cli("audit", "--ids", "bad.txt").code in (0, 3, 4)
    assert json.loads((fitted / "audit.json").read_text())["request"]["task"] == "poison"


def test_outputs_on_disk(here: Path, cli: Cli) -> None:
    done = cli("audit", outputs(fair(World()), here / "outputs.npz"), "--json")
    assert done.code == 0
    jsonschema.validate(done.record, SCHEMA)
    assert done.record == json.loads((here / "audit.json").read_text())


def test_the_table_shows_the_numbers_that_decide(here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    world = World()
    evidence = Evidence(world.answers(memory=0.0, kept=1.0), world.answers(memory=3.0), world.answers(memory=0.0))
    done = cli("audit", outputs(evidence, here / "outputs.npz"))
    assert done.code == 3
    found = json.loads((here / "audit.json").read_text())
    lines = [" ".join(line.replace("│", " ").split()) for line in done.out.splitlines()]
    wrong = {model["name"]: {part: e["value"] for part, e in model["errors"].items()} for model in found["models"]}
    words = {
        "Samples to forget": ("forget", 300),
        "Remaining training samples": ("retained", 500),
        "New samples": ("held out", "1,500"),
    }
    for name, (part, samples) in words.items():
        before, after, retrained = (wrong[model][part] for model in ("original", "unlearned", "retrained"))
        assert f"{name}, wrong {before:.1f}% → {after:.1f}% of {samples}; retrained {retrained:.1f}%" in lines
    checks = {check["name"]: check for check in found["verdict"]["checks"]}
    lost = checks["Retained samples"]
    at = lines.index(f"Retained samples: fail {lost['sentence']}")
    value, low, high = (lost["measured"][name] for name in ("value", "low", "high"))
    measured = f"{value:+.1f} points ({low:+.1f} to {high:+.1f} points)"
    assert lines[at + 1] == f"Measured: {measured}; allowed: at most +2.0 points"
    assert sum(line.startswith("Measured: ") for line in lines) == sum("measured" in check for check in checks.values())


def test_a_folder_of_arrays_is_the_same(here: Path, cli: Cli) -> None:
    evidence = fair(World())
    (here / "folder").mkdir()
    for name, array in arrays_of(evidence):
        np.save(here / "folder" / f"{name}.npy", array)
    one = cli("audit", outputs(evidence, here / "o.npz"), "--json", "--audit-out", "one.json").record
    two = cli("audit", here / "folder", "--json", "--audit-out", "two.json").record
    assert one["verdict"]["outcome"] == two["verdict"]["outcome"]
    for a, b in zip(one["attacks"], two["attacks"], strict=True):
        assert a["unlearned"]["auc"]["value"] == pytest.approx(b["unlearned"]["auc"]["value"], abs=1e-3)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = World(forget=60, held_out=200, retained=20)
    groups = [world.answers(memory=memory, models=10) for memory in (0.5, 3.0, 0.0)]
    return outputs(Evidence(*groups), tmp_path_factory.mktemp("ensemble") / "models.npz")


@pytest.mark.parametrize("name, title", [("xgboost", "xgboost"), ("u-lira", "u-lira")])
def test_an_attack_in_one_line(here: Path, cli: Cli, ensemble: Path, name: str, title: str) -> None:
    done = cli("audit", ensemble, "--attack", name, "--json")
    assert done.code in (0, 3, 4), done.err
    assert [attack["name"] for attack in done.record["attacks"]] == [title]
    assert done.record["tier"]["name"] == "T2"
    assert done.record["attacks"][0]["original"]["auc"]["value"] > 0.8


def test_limits_are_flags(here: Path, cli: Cli) -> None:
    path = outputs(fair(World()), here / "outputs.npz")
    assert cli("audit", path, "--auc", "0.001").code == 4
    assert json.loads((here / "audit.json").read_text())["thresholds"]["auc"] == 0.001


# -------------------------------------------------------------------------------------------------------- bad input


def broken(world: World, **changes: object) -> dict[str, object]:
    arrays: dict[str, object] = dict(arrays_of(fair(world)))
    return {name: value for name, value in (arrays | changes).items() if value is not None}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"forget_labels": None}, "has no array forget_labels"),
        ({"held_out_labels": None}, "labels are missing"),
        ({"unlearned_forget": np.full((300, CLASSES), np.nan)}, "NaN or infinite"),
        ({"unlearned_forget": np.full((300, CLASSES), 0.1)}, "probabilities"),
        ({"unlearned_forget": np.zeros((299, CLASSES))}, "labels for 299 samples"),
        ({"unlearned_forget": np.zeros((300, 1))}, "at least two"),
        ({"original_forget": None}, "no original_forget"),
        ({"forget_labels": np.full(300, 1.5)}, "whole numbers"),
        ({"unlearned_guess": np.zeros(3)}, "Unknown array"),
        ({"seconds_unlearned": np.array([1.0, 2.0])}, "seconds_unlearned"),
        ({"seconds_unlearned": np.array(np.nan)}, "seconds_unlearned"),
        ({"class_names": np.array("one")}, "class names"),
        ({"class_names": np.array(["a"] * CLASSES)}, "same name"),
        ({"earlier_may_labels": np.zeros(3, dtype=int)}, "earlier_may_unlearned"),
        ({"unlearned_forget": np.zeros((300, CLASSES)) + 1j}, "complex"),
    ],
)
def test_bad_arrays_are_named_and_nothing_is_written(
    here: Path, cli: Cli, change: dict[str, object], words: str
) -> None:
    np.savez(here / "bad.npz", **broken(World(), **change))  # type: ignore[arg-type]
    before = files(here)
    done = cli("audit", "bad.npz", "--page", "audit.html")
    assert done.code == 1
    assert words in done.err
    assert files(here) == before


def test_a_directory_where_a_file_should_be(here: Path, cli: Cli) -> None:
    path = outputs(fair(World()), here / "outputs.npz")
    (here / "audit.json").mkdir()
    done = cli("audit", path)
    assert done.code == 2
    assert "audit.json" in done.err


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"hello"])
def test_a_file_that_is_no_array(here: Path, cli: Cli, content: bytes) -> None:
    (here / "outputs.npz").write_bytes(content)
    done = cli("audit", "outputs.npz")
    assert done.code == 1
    assert "outputs.npz" in done.err


def test_a_missing_file(here: Path, cli: Cli) -> None:
    done = cli("audit", "nowhere.npz")
    assert done.code == 2
    assert "does not exist" in done.err


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--references", "nowhere.safetensors"], "Cannot read nowhere.safetensors"),
        (["--retrained", "nowhere.safetensors"], "Cannot read nowhere.safetensors"),
        (["--earlier", "nowhere.txt"], "--earlier: nowhere.txt does not exist"),
        (["--attack", "nothing"], "Unknown attack nothing"),
        (["--auc", "-1"], "Invalid threshold auc"),
    ],
)
def test_what_was_typed_wrong(forgotten: Path, cli: Cli, flags: list[str], words: str) -> None:
    wrong = cli("audit", "--ids", "ids.txt", *flags)
    assert wrong.code == 2
    assert words in wrong.err


def test_what_to_audit_must_be_said_once(here: Path, cli: Cli) -> None:
    assert cli("audit").code == 2
    assert cli("audit", "o.npz", "--ids", "ids.txt").code == 2
    assert cli("audit", "--poisoned", "ids.txt", "--task", "poison").code == 2


def test_an_audit_is_not_overwritten(here: Path, cli: Cli) -> None:
    path = outputs(fair(World()), here / "outputs.npz")
    assert cli("audit", path).code == 0
    again = cli("audit", path)
    assert again.code == 2
    assert "Choose another place with --audit-out, or pass --force." in again.err
    assert cli("audit", path, "--force").code == 0
    (here / "audit.html").touch()
    assert "with --page" in cli("audit", path, "--audit-out", "2.json", "--page", "audit.html").err


@pytest.mark.parametrize(
    "words", [["no.npz"], ["--ids", "no.txt"], ["--poisoned", "no.npy"], ["--ids", "ids.txt", "--earlier", "no.csv"]]
)
def test_a_name_that_is_mistyped_comes_before_the_place_that_is_taken(
    project: Path, cli: Cli, words: list[str]
) -> None:
    (project / "audit.json").write_text("{}")
    refused = cli("audit", *words)
    assert refused.code == 2
    assert f"{words[-1]} does not exist" in refused.err


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--audit-out", "grams.safetensors"], ["overwrite [fit] grams", "with --audit-out"]),
        (["--audit-out", "forgotten.safetensors"], ["overwrite the request's weights", "with --audit-out"]),
        (["--page", "forgotten.grams.safetensors"], ["overwrite the request's grams", "with --page"]),
        (["--page", "model.safetensors"], ["overwrite [model] weights", "with --page"]),
        (["--audit-out", "val.npz", "--test", "val.npz", "--val="], ["overwrite [data] test"]),
        (["--audit-out", "ids.txt"], ["overwrite --ids"]),
        (["--audit-out", "may.txt", "--earlier", "may.txt"], ["overwrite --earlier may.txt"]),
        (["--page", "r.safetensors", "--retrained", "r.safetensors"], ["overwrite [audit] retrained"]),
    ],
)
def test_what_an_audit_reads_is_never_overwritten(fitted: Path, cli: Cli, flags: list[str], words: list[str]) -> None:
    (fitted / "may.txt").write_text("0\n")
    there = files(fitted)
    refused = cli("audit", "--ids", "ids.txt", *flags, "--force")
    assert refused.code == 2
    for word in words:
        assert word in refused.err
    assert files(fitted) == there


def test_without_strangers_the_remedy_is_named(forgotten: Path, cli: Cli) -> None:
    done = cli("audit", "--ids", "ids.txt", "--val=")
    assert done.code == 2
    assert "--test" in done.err
