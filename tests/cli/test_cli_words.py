"""Remedies and settings in words of the shell; the library keeps its own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toy_project import Cli

import unweave
from unweave.cli.record import rows_of
from unweave.cli.words import as_flags, as_ids, without_positions
from unweave.errors import StoreError
from unweave.reading.samples import listed

MORE = ("--ids", "more.txt", "--weights", "forgotten.safetensors", "--out", "2.safetensors")


@pytest.fixture
def forgotten(fitted: Path, cli: Cli) -> Path:
    assert cli("forget", "--ids", "ids.txt").code == 0
    (fitted / "more.txt").write_text("\n".join(map(str, range(100, 120))))
    return fitted


def test_forget_before_fit(project: Path, cli: Cli) -> None:
    early = cli("forget", "--ids", "ids.txt")
    assert early.code == 2
    assert "Run 'unweave fit' first, or name the file that it wrote with --grams" in early.err
    assert "grams.save()" not in early.err
    with pytest.raises(StoreError, match=r"Pass the file that grams\.save\(\) wrote\."):
        unweave.LayerGrams.load("grams.safetensors")


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_another_file_in_place_of_the_grams(project: Path, cli: Cli, name: str) -> None:
    torch.save({"x": torch.zeros(1)}, project / "model.pt")
    wrong = cli("forget", "--ids", "ids.txt", "--grams", name)
    assert wrong.code == 1
    assert "name the file that it wrote with --grams" in wrong.err
    assert "grams.save()" not in wrong.err


def test_a_second_request_without_its_grams(forgotten: Path, cli: Cli) -> None:
    mixed = cli("forget", *MORE)
    assert mixed.code == 1
    assert "pass --grams forgotten.grams.safetensors." in mixed.err
    assert "result.grams" not in mixed.err
    assert cli("forget", *MORE, "--grams", "forgotten.grams.safetensors").code == 0


@pytest.mark.parametrize("flags", [[], ["--weights", "model.safetensors", "--grams", "forgotten.grams.safetensors"]])
def test_a_pair_of_which_nothing_is_known(forgotten: Path, cli: Cli, flags: list[str]) -> None:
    if not flags:
        (forgotten / "forgotten.grams.safetensors").unlink()
    mixed = cli("forget", *MORE, *flags)
    assert mixed.code == 1
    assert "--weights forgotten.safetensors goes with --grams forgotten.grams.safetensors" in mixed.err


def test_damaged_grams_of_a_request_do_not_send_the_audit_to_fit(forgotten: Path, cli: Cli) -> None:
    (forgotten / "forgotten.grams.safetensors").write_bytes(b"nonsense")
    failed = cli("audit", "--ids", "ids.txt")
    assert failed.code == 1
    assert "move it away" in failed.err
    assert "fit again" not in failed.err


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--protect", "soft", "--rank-rule", "le"], ["--rank-rule le counts", "Use --protect hard"]),
        (["--objective", "match", "--lam", "1"], ["Use --objective paper"]),
        (["--stop", "paper", "--val="], ["--stop paper compares", "--val"]),
    ],
)
def test_settings_that_contradict_each_other_are_named_as_flags(
    fitted: Path, cli: Cli, flags: list[str], words: list[str]
) -> None:
    wrong = cli("forget", "--ids", "ids.txt", *flags)
    assert wrong.code in (1, 2)
    for word in words:
        assert word in wrong.err


def test_several_warnings_stand_on_lines_of_their_own() -> None:
    look = SimpleNamespace(forget_error=0.0, val_error=None)
    result = SimpleNamespace(
        history=[look],
        final=look,
        goal=SimpleNamespace(at_least=False, error=1.0, words="w"),
        stopped="done",
        samples=3,
        seconds=0.1,
        warnings=["one", "two"],
        worst_class=lambda: None,
        way_gone=lambda: "1 epoch",
    )
    assert rows_of(result, [])["warnings"] == "- one\n- two"  # type: ignore[arg-type]
    result.warnings = ["one"]
    assert rows_of(result, [])["warnings"] == "one"  # type: ignore[arg-type]


def test_warnings_name_flags(fitted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["unweave.request.remarks"], "LARGE_SHIFT", 0.0)
    done = cli("forget", "--ids", "ids.txt", "--json")
    (felt,) = (warning for warning in done.record["warnings"] if "retained samples feel" in warning)
    assert felt.endswith("from the original, --protect soft may do less")
    table = " ".join(cli("forget", "--ids", "ids.txt", "--force").out.replace("│", " ").split())
    assert "--protect soft may do less" in table


def test_as_flags() -> None:
    assert as_flags("from here, protect='soft' or rank_rule='le'") == "from here, --protect soft or --rank-rule le"
    assert as_flags("batch_size='3', transform='a' and 'soft'") == "--forget-batch-size 3, transform='a' and 'soft'"


def test_strangers_are_refused_with_the_flag_that_tells_of_them(fitted: Path, cli: Cli) -> None:
    made = dict(np.load(fitted / "train.npz"))
    np.savez(fitted / "wrong.npz", **{**made, "y": (made["y"] + 1) % (made["y"].max() + 1)})
    refused = cli("forget", "--ids", "ids.txt", "--forget", "wrong.npz")
    assert refused.code == 1
    assert "only be told: --strangers tell." in refused.err
    told = cli("forget", "--ids", "ids.txt", "--forget", "wrong.npz", "--strangers", "tell", "--json")
    assert any("were not fitted as they are here" in words for words in told.record["warnings"])


def test_settings_without_a_value_are_flags_too() -> None:
    gentler = "What may help: to leave lr out; protect='soft'; a larger max_damage, which accepts more harm."
    assert as_flags(gentler) == (
        "What may help: to leave --lr out; --protect soft; a larger --max-damage, which accepts more harm."
    )
    assert as_flags("Lower gamma, or more epochs or layers.") == "Lower --gamma, or more epochs or layers."
    others = "layer 'lr', lr.weight, net.gamma, [data] batch_size: 3, batch_size=2, runs/lr/x, gamma-ray, --lr"
    assert as_flags(others) == others


def test_why_it_ended_names_flags(fitted: Path, cli: Cli) -> None:
    """On the screen, in the record and on stderr."""
    missed = ("forget", "--ids", "ids.txt", "--epochs", 1, "--lr", 1e-9)
    table, told, quiet = cli(*missed), cli(*missed, "--json"), cli(*missed, "--quiet")
    assert "--gamma" in " ".join(table.out.replace("│", " ").split())
    assert "--gamma" in told.record["stopped"]
    assert "--gamma" in told.err
    assert "--gamma" in quiet.err


def test_samples_that_were_forgotten_before_are_named_by_their_ids(forgotten: Path, cli: Cli) -> None:
    (forgotten / "more.txt").write_text("# a letter\n100\n\n43\n7\n20\n")
    chained = ("--grams", "forgotten.grams.safetensors")
    refused = cli("forget", *MORE, *chained)
    assert refused.code == 1
    assert "2 of these 4 samples were forgotten before (ids: 43, 20)" in refused.err
    (forgotten / "own.py").write_text(
        "import numpy as np, torch\n"
        "def stream():\n"
        "    made = np.load('train.npz')\n"
        "    return iter([(torch.from_numpy(made['x'].transpose(0, 3, 1, 2) / 255).float(), made['y'])])\n"
    )
    refused = cli("forget", *MORE, *chained, "--train", "own:stream")
    assert "(ids: 20, 43)" in refused.err, "a stream's samples come in its own order"


def test_positions_are_ids_where_the_request_has_such() -> None:
    words = "3 of 4 (in the order of the loader, from 0: 1, 3, …): gone"
    assert as_ids(words, ["a.png", "b.png", "c.png", "d.png"]) == "3 of 4 (ids: b.png, d.png, …): gone"
    assert as_ids(words, []) == words
    assert as_ids(f"of 12 ({listed(range(12))})", [str(i + 70) for i in range(12)]).endswith("78, 79, …)")


@pytest.mark.parametrize("count", [1, 2, 10, 30])
def test_any_number_of_positions(count: int) -> None:
    ids = [f"{i}.png" for i in range(100, 130)]
    shown = ", ".join(ids[:count][:10]) + (", …" if count > 10 else "")
    assert as_ids(f"gone ({listed(range(count))}): so", ids) == f"gone (ids: {shown}): so"
    assert as_ids(f"gone ({listed([7])}, {listed([12])}).", ids) == "gone (ids: 107.png, ids: 112.png)."
    assert without_positions(f"gone ({listed(range(count))}): so") == "gone: so"
    assert without_positions(f"gone (2 for certain, {listed(range(count))}): so") == "gone (2 for certain): so"


def test_warnings_name_ids_on_the_screen_and_neither_those_nor_positions_in_the_record(
    fitted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four strangers of a request of which some may be."""
    monkeypatch.setattr(sys.modules["unweave.behaviour.strangers"], "BY_CHANCE", 1.0)
    with np.load(fitted / "train.npz") as train:
        x, y = train["x"], train["y"]
    y[40:44] = (y[40:44] + 1) % 4
    np.savez(fitted / "altered.npz", x=x, y=y)
    asked = ("forget", "--ids", "ids.txt", "--train", "altered.npz", "--keep-anyway")
    done = cli(*asked)
    table = " ".join(done.out.replace("│", " ").split())
    assert "were not fitted as they are here (4 for certain, ids: 40, 41, 42, 43)" in table
    assert "in the order of the loader" not in table
    told = cli(*asked, "--force", "--json").record
    (found,) = (words for words in told["warnings"] if "were not fitted" in words)
    assert "(4 for certain): no fitted sample" in found
    assert "in the order of the loader" not in (fitted / "forgotten.json").read_text()


def test_an_audit_before_any_request(fitted: Path, cli: Cli) -> None:
    early = cli("audit", "--ids", "ids.txt")
    assert early.code == 2
    assert "There is no forgotten.safetensors, the network to be audited. Run 'unweave forget' first" in early.err
