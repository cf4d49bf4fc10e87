"""The whole way from ``init`` to a new model, on each kind of request."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import gap
from safetensors.torch import load_file, save_file
from toy_project import CLASSES, POISONED, Cli, Toy, build, files

import unweave
from unweave.reading.rest import fingerprint


def errors(weights: Path, x: np.ndarray, y: np.ndarray, width: int = 64) -> float:
    """Percent wrong of the toy network with the weights of a file."""
    net = build(width)
    state = load_file(weights)
    net[3] = torch.nn.Linear(width, len(state["3.weight"]))
    net.load_state_dict(state)
    with torch.no_grad():
        logits = net(torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255)
    return 100 * float((logits.argmax(1) != torch.from_numpy(y)).float().mean())


def test_init_fit_forget(here: Path, toy: Toy, cli: Cli) -> None:
    (here / "my_project").mkdir()
    (here / "my_project" / "model.py").write_text(
        "from torch import nn\n"
        "def build(): return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 4))\n"
    )
    save_file(toy.weights, here / "model.safetensors")
    np.savez(here / "train.npz", inputs=toy.x, labels=toy.y)
    np.savez(here / "val.npz", inputs=toy.val_x, labels=toy.val_y)
    chosen = np.arange(20, 44)
    (here / "ids.txt").write_text("# a request\n\n" + "\n".join(f"{i}  # from a letter" for i in chosen))

    assert cli("init").code == 0
    fit = cli("fit")
    assert fit.code == 0, fit.err
    assert "240" in fit.out
    assert fit.err == ""
    done = cli("forget", "--ids", "ids.txt")
    assert done.code == 0, done.err
    assert done.err == ""
    assert "done" in done.out
    assert "forgotten.safetensors" in done.out

    before, after = here / "model.safetensors", here / "forgotten.safetensors"
    record = json.loads((here / "forgotten.json").read_text())
    assert errors(before, toy.x[chosen], toy.y[chosen]) == 0
    assert errors(after, toy.x[chosen], toy.y[chosen]) == pytest.approx(record["final"]["forget_error"])
    assert errors(after, toy.val_x, toy.val_y) == pytest.approx(record["final"]["val_error"])
    assert abs(record["final"]["forget_error"] - record["goal"]["error"]) <= record["goal"]["tolerance"]
    assert record["final"]["distance"] < 0.5 * record["history"][0]["distance"]


def test_what_is_written_belongs_together(fitted: Path, cli: Cli) -> None:
    assert cli("forget", "--ids", "ids.txt").code == 0
    record = json.loads((fitted / "forgotten.json").read_text())
    grams = unweave.LayerGrams.load(fitted / "forgotten.grams.safetensors")
    net = build()
    net.load_state_dict(load_file(fitted / "model.safetensors"))
    assert record["fingerprints"]["before"] == fingerprint(net)
    net.load_state_dict(load_file(fitted / "forgotten.safetensors"))
    assert record["fingerprints"]["after"] == fingerprint(net) == grams.origin.model
    assert grams.samples == 240 - 24
    assert record["samples"] == 24
    assert record["ok"] is True
    assert record["versions"] == {"unweave": unweave.__version__, "torch": torch.__version__}
    assert record["history"][0]["loss"] is None, "NaN is no JSON"
    assert set(record["ranks"]) == {"1", "3"}
    assert record["config"]["stop"] == "held-out"
    assert record["settings"]["model"]["factory"] == "toy_net:build"
    assert "margins" not in record["goal"]


def test_the_command_does_what_the_library_does(fitted: Path, toy: Toy, cli: Cli) -> None:
    assert cli("forget", "--ids", "ids.txt", "--seed", 5).code == 0
    net = build()
    net.load_state_dict(toy.weights)
    x, y = torch.from_numpy(toy.x).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(toy.y)
    val = torch.from_numpy(toy.val_x).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(toy.val_y)
    grams = unweave.LayerGrams.load(fitted / "grams.safetensors")
    config = unweave.ForgetConfig(seed=5)
    result = unweave.forget(net, [(x[20:44], y[20:44])], grams, val=[val], config=config)
    for name, value in load_file(fitted / "forgotten.safetensors").items():
        torch.testing.assert_close(value, result.model.state_dict()[name])


def test_classes_with_drop_on_images(images: Path, toy: Toy, cli: Cli) -> None:
    folders = ("--train", "train_images", "--val", "val_images")
    fit = cli("fit", *folders, "--json")
    assert fit.code == 0, fit.err
    assert fit.record["class_names"] == list(CLASSES)
    done = cli("forget", "--classes", "2", "--drop", *folders)
    assert done.code == 0, done.err
    record = json.loads((images / "forgotten.json").read_text())
    assert record["classes"] == [2]
    assert record["samples"] == int((toy.y == 2).sum())
    assert record["config"]["task"] == "classes"
    assert errors(images / "forgotten.safetensors", toy.x[toy.y == 2], toy.y[toy.y == 2]) >= 70

    assert json.loads((images / "forgotten.labels.json").read_text()) == {"0": 0, "1": 1, "3": 2}
    whole, smaller = (load_file(images / f"forgotten{part}.safetensors") for part in ("", ".dropped"))
    torch.testing.assert_close(smaller["3.weight"], whole["3.weight"][[0, 1, 3]], rtol=0, atol=0)
    torch.testing.assert_close(smaller["3.bias"], whole["3.bias"][[0, 1, 3]], rtol=0, atol=0)
    kept = toy.val_y != 2
    new_labels = np.array([0, 1, -1, 2])[toy.val_y[kept]]
    assert errors(images / "forgotten.dropped.safetensors", toy.val_x[kept], new_labels) < 20


def test_classes_by_name(images: Path, cli: Cli) -> None:
    folders = ("--train", "train_images", "--val", "val_images")
    assert cli("fit", *folders).code == 0
    done = cli("forget", "--classes", "dog", *folders, "--json")
    assert done.code == 0, done.err
    assert done.record["classes"] == [3]


def test_a_model_without_classes_to_drop_is_refused_before_the_work(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "conv_net.py").write_text(
        "from torch import nn\ndef build(): return nn.Sequential(nn.Conv2d(3, 4, 8), nn.Flatten())\n"
    )
    weights = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8), torch.nn.Flatten()).state_dict()
    save_file(weights, project / "conv.safetensors")
    conv = ("--factory", "conv_net:build", "--weights", "conv.safetensors")
    assert cli("fit", *conv).code == 0
    monkeypatch.setattr(unweave, "forget", lambda *args, **kwargs: pytest.fail("the work began"))
    refused = cli("forget", "--classes", "1", "--drop", *conv)
    assert refused.code == 1
    assert "nn.Linear" in refused.err


def test_poisoned(fitted: Path, toy: Toy, cli: Cli) -> None:
    np.save(fitted / "bad.npy", np.arange(POISONED))
    wrong, right = toy.y[:POISONED], (toy.y[:POISONED] - 1) % 4
    assert errors(fitted / "model.safetensors", toy.x[:POISONED], wrong) < 20
    done = cli("forget", "--poisoned", "bad.npy", "--json")
    assert done.code == 0, done.err
    assert done.record["config"]["task"] == "poison"
    assert errors(fitted / "forgotten.safetensors", toy.x[:POISONED], wrong) > 50
    assert errors(fitted / "forgotten.safetensors", toy.x[:POISONED], right) < 100


def test_all_of_a_source_of_its_own(fitted: Path, toy: Toy, cli: Cli) -> None:
    torch.save({"x": torch.from_numpy(toy.x[20:44]), "y": torch.from_numpy(toy.y[20:44])}, fitted / "gone.pt")
    (fitted / "train.npz").unlink()
    done = cli("forget", "--all", "--forget", "gone.pt", "--val=", "--train=", "--json")
    assert done.code == 0, done.err
    assert done.record["samples"] == 24
    assert done.record["final"]["val_error"] is None


def test_settings_of_requests_to_come_are_checked_while_the_data_is_there(project: Path, cli: Cli) -> None:
    with open(project / "unweave.toml", "a") as settings:
        settings.write("\n[forget]\ngamma = 90\n")
    refused = cli("fit")
    assert refused.code == 2
    assert "gamma" in refused.err
    assert not (project / "grams.safetensors").exists()


def test_the_same_request_again(fitted: Path, cli: Cli) -> None:
    """It overwrites only when told to, and then gives the same; from where the first one ended it is refused."""
    assert cli("forget", "--ids", "ids.txt").code == 0
    first = (fitted / "forgotten.safetensors").read_bytes()
    repeated = cli("forget", "--ids", "ids.txt")
    assert repeated.code == 2
    assert "there already" in repeated.err
    assert "--weights" in repeated.err
    assert "with --out" in repeated.err
    assert cli("forget", "--ids", "ids.txt", "--force").code == 0
    assert (fitted / "forgotten.safetensors").read_bytes() == first
    there = files(fitted)
    chained = ("--weights", "forgotten.safetensors", "--grams", "forgotten.grams.safetensors", "--out", "2.safetensors")
    again = cli("forget", "--ids", "ids.txt", *chained)
    assert again.code == 1
    assert "forgotten before" in again.err
    assert files(fitted) == there


@pytest.mark.filterwarnings("default::unweave.errors.UnweaveWarning")
def test_a_class_goes_though_some_of_it_went_before(fitted: Path, toy: Toy, cli: Cli) -> None:
    of_it = np.flatnonzero(toy.y == 1)
    (fitted / "some.txt").write_text("\n".join(map(str, of_it[:3])))
    assert cli("forget", "--ids", "some.txt").code == 0
    chained = ("--weights", "forgotten.safetensors", "--grams", "forgotten.grams.safetensors", "--out", "2.safetensors")
    done = cli("forget", "--classes", "1", "--drop", *chained, "--json")
    assert done.code in (0, 3), done.err
    assert f"3 of the {len(of_it)} samples of these classes were forgotten before, and are left out" in done.err
    assert done.record["samples"] == len(of_it) - 3


@pytest.mark.filterwarnings("default::unweave.errors.UnweaveWarning")
def test_another_request_that_began_at_the_same_place_is_told_of(fitted: Path, cli: Cli) -> None:
    assert cli("forget", "--ids", "ids.txt").code == 0
    (fitted / "more.txt").write_text("\n".join(map(str, range(100, 120))))
    (fitted / "other.json").write_text('["something else"]')
    again = cli("forget", "--ids", "ids.txt", "--force")
    assert (again.code, again.err) == (0, ""), "the same place: tried again"
    beside = cli("forget", "--ids", "more.txt", "--out", "2.safetensors")
    assert beside.code == 0
    assert "forgotten.json: another request began with these weights and Grams" in beside.err
    chained = ("--weights", "forgotten.safetensors", "--grams", "forgotten.grams.safetensors", "--out", "3.safetensors")
    after = cli("forget", "--ids", "more.txt", *chained)
    assert "another request" not in after.err


@pytest.mark.filterwarnings("default::unweave.errors.UnweaveWarning")
def test_of_many_requests_that_began_at_the_same_place_the_latest_are_named(fitted: Path, cli: Cli) -> None:
    assert cli("forget", "--ids", "ids.txt").code == 0
    record = (fitted / "forgotten.json").read_text()
    os.utime(fitted / "forgotten.json", (0, 0))
    for age, name in enumerate(("b", "d", "a")):
        (fitted / f"{name}.json").write_text(record)
        os.utime(fitted / f"{name}.json", (1000 - age, 1000 - age))
    (fitted / "more.txt").write_text("\n".join(map(str, range(100, 120))))
    beside = cli("forget", "--ids", "more.txt", "--out", "2.safetensors", "--force")
    assert "b.json, d.json, a.json and 1 more: another request began with these" in beside.err
    (fitted / "a.json").unlink()
    beside = cli("forget", "--ids", "more.txt", "--out", "2.safetensors", "--force")
    assert "b.json, d.json, forgotten.json: another request" in beside.err


def test_the_next_request_starts_from_the_last(fitted: Path, cli: Cli) -> None:
    assert cli("forget", "--ids", "ids.txt").code == 0
    (fitted / "more.txt").write_text("\n".join(map(str, range(100, 120))))
    chained = ("--weights", "forgotten.safetensors", "--grams", "forgotten.grams.safetensors", "--out", "2.safetensors")
    done = cli("forget", "--ids", "more.txt", *chained, "--json")
    assert done.code == 0, done.err
    assert (
        done.record["fingerprints"]["before"]
        == json.loads((fitted / "forgotten.json").read_text())["fingerprints"]["after"]
    )
    assert unweave.LayerGrams.load(fitted / "2.grams.safetensors").samples == 240 - 24 - 20


@pytest.mark.filterwarnings("default::unweave.errors.UnweaveWarning")
def test_with_the_first_weights_the_next_request_takes_out_what_was_added(fitted: Path, cli: Cli) -> None:
    assert cli("forget", "--ids", "ids.txt").code == 0
    (fitted / "more.txt").write_text("\n".join(map(str, range(100, 120))))
    chained = ["--weights", "forgotten.safetensors", "--grams", "forgotten.grams.safetensors", "--ids", "more.txt"]
    assert cli("forget", *chained, "--first", "model.safetensors", "--out", "2.safetensors").code == 0
    assert cli("forget", *chained, "--out", "3.safetensors").code == 0
    kept = np.setdiff1d(np.arange(240), [*map(int, (fitted / "ids.txt").read_text().split()), *range(100, 120)])
    with np.load(fitted / "train.npz") as train:
        np.savez(fitted / "rest.npz", **{name: train[name][kept] for name in train.files})
    assert cli("fit", "--train", "rest.npz", "--grams", "rest.safetensors").code == 0
    rest, exact, drifted = (
        unweave.LayerGrams.load(fitted / name)
        for name in ("rest.safetensors", "2.grams.safetensors", "3.grams.safetensors")
    )
    assert (
        max(gap(exact[name], rest[name]) for name in rest) < 1e-5 < max(gap(drifted[name], rest[name]) for name in rest)
    )
    wrong = cli("forget", *chained, "--first", "forgotten.safetensors", "--out", "4.safetensors")
    assert wrong.code == 1
    assert "first= (--first) is" in wrong.err
    kept_safe = cli("forget", *chained, "--first", "first.safetensors", "--out", "first.safetensors", "--force")
    assert "overwrite --first" in kept_safe.err
    both = ["--weights", "model.safetensors", "--first", "model.safetensors", "--out", "model.safetensors"]
    assert "--force does not change that" in cli("forget", "--ids", "more.txt", *both).err
    records = [json.loads((fitted / f"{name}.json").read_text())["drifted"] for name in ("forgotten", "2", "3")]
    assert records == [False, False, True]


def test_not_reached_writes_nothing(fitted: Path, cli: Cli) -> None:
    there = files(fitted)
    missed = cli("forget", "--ids", "ids.txt", "--epochs", 1, "--lr", 1e-9)
    assert missed.code == 3
    assert "NOT DONE" in missed.out
    assert "Nothing was written" in missed.err
    assert files(fitted) == there


def test_keep_anyway(fitted: Path, cli: Cli) -> None:
    missed = cli("forget", "--ids", "ids.txt", "--epochs", 1, "--lr", 1e-9, "--keep-anyway", "--json")
    assert missed.code == 3
    assert missed.record["ok"] is False
    assert "written all the same" in missed.err
    assert {"forgotten.safetensors", "forgotten.grams.safetensors", "forgotten.json"} <= files(fitted)
    assert json.loads((fitted / "forgotten.json").read_text())["ok"] is False


def test_preset(fitted: Path, cli: Cli) -> None:
    done = cli("forget", "--ids", "ids.txt", "--preset", "allcnn-cifar10", "--epochs", 3, "--json")
    assert done.code in (0, 3), done.err
    config = done.record["config"]
    assert (config["objective"], config["lr"], config["rank_rule"], config["epochs"]) == ("paper", 0.1, "le", 3)
    unknown = cli("forget", "--ids", "ids.txt", "--preset", "allcnn")
    assert unknown.code == 2
    assert "allcnn-cifar10" in unknown.err
