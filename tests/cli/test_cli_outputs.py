"""The files of a request: what they must not overwrite, and that they appear all at once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from toy_project import TOML, Cli, files

import unweave
from unweave.cli.outputs import Staged, uninterrupted, write_text
from unweave.errors import StoreError
from unweave.store import metadata_of


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--out", "model.safetensors"], ["overwrite [model] weights", "with --out, or pass --force"]),
        (["--out", "./sub/../model.safetensors"], ["overwrite [model] weights"]),
        (["--out", "link.safetensors"], ["overwrite [model] weights"]),
        (["--grams-out", "grams.safetensors"], ["overwrite [fit] grams", "with --grams-out"]),
        (["--out", "grams.safetensors"], ["overwrite [fit] grams", "with --out"]),
        (["--out", "grams.safetensors", "--force"], ["overwrite [fit] grams", "with --out; --force does not"]),
        (["--grams-out", "model.safetensors", "--force"], ["overwrite [model] weights", "--force does not"]),
        (["--result", "ids.txt", "--force"], ["overwrite --ids", "with --result"]),
        (["--result", "unweave.toml"], ["overwrite the settings"]),
        (["--result", "unweave.toml", "--force"], ["overwrite the settings"]),
        (["--result", "train.npz", "--force"], ["overwrite [data] train"]),
        (["--out", "a.safetensors", "--grams-out", "a.safetensors"], ["both be written to a.safetensors"]),
        (["--out", "nowhere/a.safetensors"], ["no folder nowhere"]),
        (["--out", "folder.safetensors"], ["is a folder"]),
        (["--out", "model.safetensors/a.safetensors"], ["no folder"]),
        (["--out", "new.pt"], ["ends in .safetensors"]),
    ],
)
def test_places_that_are_refused(fitted: Path, cli: Cli, flags: list[str], words: list[str]) -> None:
    (fitted / "sub").mkdir()
    (fitted / "folder.safetensors").mkdir()
    (fitted / "link.safetensors").symlink_to("model.safetensors")
    before = {name: (fitted / name).read_bytes() for name in files(fitted)}
    failed = cli("forget", "--ids", "ids.txt", *flags)
    assert failed.code == 2
    for word in words:
        assert word in failed.err
    assert {name: (fitted / name).read_bytes() for name in files(fitted)} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(fitted: Path, cli: Cli) -> None:
    (fitted / "locked").mkdir(mode=0o500)
    assert "no permission" in cli("forget", "--ids", "ids.txt", "--out", "locked/a.safetensors").err


def test_no_permission_as_anybody(fitted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *args: False)
    failed = cli("forget", "--ids", "ids.txt")
    assert failed.code == 1
    assert "no permission" in failed.err


def fewer_samples(project: Path) -> None:
    """fewer.npz, and a function that streams the same, so that their number is known only at the end."""
    with np.load(project / "train.npz") as train:
        np.savez(project / "fewer.npz", **{part: train[part][:200] for part in train.files})
    (project / "streams.py").write_text(
        "import numpy as np, torch\n"
        "def fewer():\n"
        "    made = np.load('fewer.npz')\n"
        "    x = torch.from_numpy(made['x'].transpose(0, 3, 1, 2) / 255).float()\n"
        "    return iter([(x, torch.from_numpy(made['y']))])\n"
    )


def test_fit_does_not_overwrite_what_a_request_wrote(fitted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("forget", "--ids", "ids.txt").code == 0
    before = (fitted / "forgotten.grams.safetensors").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(unweave, "fit", lambda *args, **kwargs: pytest.fail("the work began"))
        refused = cli("fit", "--grams", "forgotten.grams.safetensors")
    assert refused.code == 2
    assert "24 samples were taken out of these Grams" in refused.err
    assert "with --grams, or pass --force" in refused.err
    assert (fitted / "forgotten.grams.safetensors").read_bytes() == before
    assert cli("fit", "--grams", "forgotten.grams.safetensors", "--force").code == 0
    assert unweave.LayerGrams.load(fitted / "forgotten.grams.safetensors").samples == 240
    assert cli("fit").code == 0, "the same training set again"


def test_fit_does_not_overwrite_grams_of_another_number_of_samples(
    fitted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer_samples(fitted)
    with monkeypatch.context() as patched:
        patched.setattr(unweave, "fit", lambda *args, **kwargs: pytest.fail("the work began"))
        refused = cli("fit", "--train", "fewer.npz")
    assert refused.code == 2
    assert "holds Grams of 240 samples, and [data] train has 200" in refused.err
    assert unweave.LayerGrams.load(fitted / "grams.safetensors").samples == 240
    assert cli("fit", "--train", "fewer.npz", "--force").code == 0
    assert unweave.LayerGrams.load(fitted / "grams.safetensors").samples == 200


@pytest.mark.filterwarnings("default::unweave.errors.UnweaveWarning")
def test_grams_of_a_stream_of_another_length_go_beside_those_that_are_there(fitted: Path, cli: Cli) -> None:
    fewer_samples(fitted)
    (fitted / "grams.2.safetensors").write_bytes(b"somebody else's")
    done = cli("fit", "--train", "streams:fewer", "--json")
    assert done.code == 0
    assert "grams.safetensors holds Grams of 240 samples, and stays as it is: these are of 200" in done.err
    assert [Path(name).name for name in done.record["written"]] == ["grams.3.safetensors"]
    assert unweave.LayerGrams.load(fitted / "grams.safetensors").samples == 240
    assert unweave.LayerGrams.load(fitted / "grams.3.safetensors").samples == 200
    assert (fitted / "grams.2.safetensors").read_bytes() == b"somebody else's"


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(origin=json.dumps(json.loads(header["origin"]) | {"a later field": 1})),
        lambda header: header.update(layers=header["layers"].replace('"rows"', '"rows later"')),
        lambda header: header.update(version="2"),
        lambda header: header.update(origin="[]"),
        lambda header: header.pop("origin"),
    ],
    ids=["a later field", "later layers", "a later version", "damaged", "without a record"],
)
def test_fit_does_not_overwrite_grams_that_it_cannot_read(
    fitted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, str]], Any]
) -> None:
    """They may be what a later release's request wrote."""
    path = fitted / "grams.safetensors"
    header = metadata_of(path.read_bytes())
    change(header)
    save_file(load_file(path), path, metadata=header)
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(unweave, "fit", lambda *args, **kwargs: pytest.fail("the work began"))
        refused = cli("fit")
    assert refused.code == 2
    assert "which holds Grams that this release cannot read" in refused.err
    assert "with --grams, or pass --force" in refused.err
    assert path.read_bytes() == before
    assert cli("fit", "--force").code == 0
    assert unweave.LayerGrams.load(path).samples == 240


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_fit_does_not_overwrite_the_weights(project: Path, cli: Cli, force: list[str]) -> None:
    before = (project / "model.safetensors").read_bytes()
    refused = cli("fit", "--grams", "model.safetensors", *force)
    assert refused.code == 2
    assert "overwrite [model] weights" in refused.err
    assert "with --grams" in refused.err
    assert (project / "model.safetensors").read_bytes() == before


def test_force_forgets_in_place(fitted: Path, cli: Cli) -> None:
    before = (fitted / "model.safetensors").read_bytes()
    in_place = ("--out", "model.safetensors", "--grams-out", "grams.safetensors", "--force")
    assert cli("forget", "--ids", "ids.txt", *in_place).code == 0
    assert (fitted / "model.safetensors").read_bytes() != before
    (fitted / "more.txt").write_text("100\n101\n102\n103\n")
    assert cli("forget", "--ids", "more.txt", *in_place).code in (0, 3), "the pair belongs together"


def test_fit_replaces_grams_and_nothing_else_unless_told(fitted: Path, cli: Cli) -> None:
    assert cli("fit").code == 0
    (fitted / "other.safetensors").write_bytes((fitted / "model.safetensors").read_bytes())
    refused = cli("fit", "--grams", "other.safetensors")
    assert refused.code == 2
    assert "which is there already. Choose another place with --grams, or pass --force." in refused.err
    assert (fitted / "other.safetensors").read_bytes() == (fitted / "model.safetensors").read_bytes()
    assert cli("fit", "--grams", "other.safetensors", "--force").code == 0
    assert (fitted / "other.safetensors").read_bytes() != (fitted / "model.safetensors").read_bytes()


def test_a_crash_between_the_renames_is_noticed(fitted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the files of an earlier request the Grams are renamed last; without them the next request is refused."""
    assert cli("forget", "--ids", "ids.txt").code == 0
    (fitted / "more.txt").write_text("\n".join(map(str, range(100, 120))))
    replace, renamed = os.replace, []

    def crash(source: Any, target: Any) -> None:
        if str(source).endswith(".staged"):
            renamed.append(Path(target).name)
            if Path(target).name == "forgotten.grams.safetensors":
                raise RuntimeError("power cut")
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(RuntimeError, match="power cut"):
        cli("forget", "--ids", "more.txt", "--force")
    assert renamed == ["forgotten.safetensors", "forgotten.json", "forgotten.grams.safetensors"]
    monkeypatch.setattr(os, "replace", replace)
    chained = ("--weights", "forgotten.safetensors", "--grams", "forgotten.grams.safetensors", "--out", "2.safetensors")
    refused = cli("forget", "--ids", "more.txt", *chained)
    assert refused.code == 1
    assert "These Grams belong to model" in refused.err
    assert cli("forget", "--ids", "more.txt", "--force").code == 0, "running the command again repairs it"


@pytest.mark.parametrize("failing", ["a", "b"])
def test_a_file_that_cannot_be_staged_changes_nothing(tmp_path: Path, failing: str) -> None:
    def fail(path: Path) -> None:
        path.write_text("half of it")
        raise StoreError("disk full")

    def stage() -> None:
        with Staged() as staged:
            staged.add(tmp_path / "a", fail if failing == "a" else write_text("new"))
            staged.add(tmp_path / "b", fail)

    (tmp_path / "a").write_text("old")
    with pytest.raises(StoreError, match="disk full"):
        stage()
    assert files(tmp_path) == {"a"}
    assert (tmp_path / "a").read_text() == "old"


def test_a_rename_that_fails_says_what_is_in_place(tmp_path: Path) -> None:
    with Staged() as staged:
        staged.add(tmp_path / "a", write_text("new"))
        staged.add(tmp_path / "b", write_text("new"))
        (tmp_path / "b").mkdir()
        with pytest.raises(StoreError, match=r"already in place: .*/a\b"):
            staged.place()
    assert files(tmp_path) == {"a"}


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_waits_for_the_renames() -> None:
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_new_weights_with_old_grams_are_refused(fitted: Path, cli: Cli) -> None:
    assert cli("forget", "--ids", "ids.txt").code == 0
    mixed = cli("forget", "--ids", "ids.txt", "--weights", "forgotten.safetensors", "--out", "2.safetensors")
    assert mixed.code == 1
    assert "These Grams belong to model" in mixed.err


def test_outputs_have_places_of_their_own(fitted: Path, cli: Cli) -> None:
    (fitted / "unweave.toml").write_text(
        TOML + '[forget]\nout = "o.safetensors"\ngrams_out = "g.safetensors"\nresult = "r.json"\n'
    )
    done = cli("forget", "--ids", "ids.txt", "--json")
    assert done.record["written"] == ["o.safetensors", "r.json", "g.safetensors"]
    assert {"o.safetensors", "g.safetensors", "r.json"} <= files(fitted)
