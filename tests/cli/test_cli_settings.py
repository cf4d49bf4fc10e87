"""unweave.toml: written by init, read with its mistakes named, overruled by flags."""

from __future__ import annotations

import argparse
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
from toy_project import TOML, Cli

import unweave
from unweave.cli import bench, reproduce
from unweave.cli.init import template
from unweave.cli.settings import FORGET_CONFIG, SETTINGS


def test_every_field_of_the_config_is_a_setting() -> None:
    known = {field.name for field in fields(unweave.ForgetConfig)} - {"notes"}
    assert {setting.key for setting in FORGET_CONFIG} == known | {"preset"}


def test_the_samples_in_the_file_are_the_defaults() -> None:
    """Taking a comment sign away changes nothing, where a default can be written down at all, but for the loss."""
    defaults, of_the_papers_loss = unweave.ForgetConfig().resolved(), unweave.ForgetConfig(objective="paper").resolved()
    of_classes = unweave.ForgetConfig(task="classes").resolved()
    for setting in FORGET_CONFIG:
        value = tomllib.loads(f"v = {setting.sample}")["v"]
        if setting.key in ("lam", "eps"):
            assert value == getattr(of_the_papers_loss, setting.key), setting
        elif setting.key == "odds":
            assert value == of_classes.odds
        elif setting.key not in ("preset", "lr", "lr_end", "layers"):
            assert value == getattr(defaults, setting.key), setting


def test_flags_are_unique_in_each_command() -> None:
    for command in ("fit", "forget"):
        flags = [setting.flag for setting in SETTINGS if command in setting.used_by]
        assert len(flags) == len(set(flags))


def test_the_page_explains_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    missing = [str(s) for s in SETTINGS if not re.search(rf"`{s.key}`", page) or f"`{s.flag}`" not in page]
    assert not missing


@pytest.mark.parametrize("command", [reproduce, bench], ids=["reproduce", "bench"])
def test_the_page_has_a_row_for_every_flag_of_the_commands_without_settings(command: ModuleType) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    name = command.__name__.rpartition(".")[2]
    section = page.partition(f"### `unweave {name} ")[2].partition("\n#")[0]
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert set(re.findall(r"^\| `(--[a-z0-9-]+)` \|", section, re.MULTILINE)) == flags
    for flag in parser._actions:
        for choice in flag.choices or ():
            assert f"`{choice}`" in section


def test_init_writes_every_setting(here: Path, cli: Cli) -> None:
    done = cli("init")
    assert done.code == 0
    text = (here / "unweave.toml").read_text()
    table = tomllib.loads(text)
    uncommented = tomllib.loads(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE))
    for setting in SETTINGS:
        assert setting.key in uncommented[setting.section], setting
        assert (setting.key in table[setting.section]) is setting.shown
        assert setting.kind.fits(uncommented[setting.section][setting.key])


def test_init_does_not_overwrite(here: Path, cli: Cli) -> None:
    (here / "unweave.toml").write_text("mine")
    refused = cli("init")
    assert refused.code == 2
    assert "--force" in refused.err
    assert (here / "unweave.toml").read_text() == "mine"
    assert cli("init", "--force").code == 0
    assert (here / "unweave.toml").read_text() == template()


def test_init_elsewhere(here: Path, cli: Cli) -> None:
    (here / "sub").mkdir()
    assert cli("init", "sub").code == 0
    assert (here / "sub" / "unweave.toml").exists()
    assert cli("init", "sub/other.toml").code == 0
    assert (here / "sub" / "other.toml").exists()
    missing = cli("init", "nowhere/unweave.toml")
    assert missing.code == 2
    assert "Cannot write" in missing.err


@pytest.mark.parametrize(
    "text, words",
    [
        ("[model]\nfactory = \n", ["not valid TOML", "line 2"]),
        ("[model]\nfactroy = 'a:b'\n", ["'factroy'", "[model]", "Did you mean 'factory'?"]),
        ("[forget]\ngama = 1\n", ["'gama'", "Did you mean 'gamma'?"]),
        ("[modle]\nfactory = 'a:b'\n", ["'modle'", "Did you mean 'model'?"]),
        ("factory = 'a:b'\n", ["'factory'", "Supported: model, data, fit, forget, audit."]),
        ("[forget]\nepochs = 'ten'\n", ["[forget] epochs", "'ten'", "Supported: an integer."]),
        ("[forget]\nepochs = true\n", ["[forget] epochs", "Supported: an integer."]),
        ("[forget]\nlayers = [1, 2]\n", ["[forget] layers", "the last k layers"]),
        ("[forget]\ngamma = {conv = 'x'}\n", ["[forget] gamma", "one number per layer"]),
        ("[data]\nresize = [32]\n", ["[data] resize", "[height, width]"]),
        ("[forget]\ngamma = 1.5\n", ["Invalid gamma"]),
        ("[forget]\ntask = 'sample'\n", ["Invalid task", "samples, classes, poison"]),
        ("[data]\nbatch_size = 0\n", ["[data] batch_size", "from 1"]),
        ("[fit]\ndtype = 'float16'\n", ["[fit] dtype", "float64, float32"]),
        ("[model]\ndevice = 'gpu'\n", ["[model] device", "'gpu'", "cpu"]),
    ],
)
def test_mistakes_in_the_file(fitted: Path, cli: Cli, text: str, words: list[str]) -> None:
    (fitted / "bad.toml").write_text(text)
    flags = ("--factory", "toy_net:build", "--weights", "model.safetensors", "--train", "train.npz")
    failed = cli("forget", "--config", "bad.toml", "--ids", "ids.txt", *flags)
    assert failed.code == 2
    for word in words:
        assert word in failed.err
    assert not (fitted / "forgotten.safetensors").exists()


def test_missing_file(here: Path, cli: Cli) -> None:
    named = cli("fit", "--config", "nowhere.toml")
    assert named.code == 2
    assert "nowhere.toml" in named.err
    assert "unweave init" in named.err
    unnamed = cli("fit")
    assert unnamed.code == 2
    assert "[model] factory" in unnamed.err
    assert "unweave init" in unnamed.err
    assert "--factory" in unnamed.err


def test_a_file_that_is_no_text(here: Path, cli: Cli) -> None:
    (here / "unweave.toml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in cli("fit").err


def test_flags_win_over_the_file(project: Path, cli: Cli) -> None:
    more = '\n[fit]\ngrams = "a.safetensors"\nlayers = ["1"]\n[forget]\nout = "b.safetensors"\nseed = 1\nepochs = 7\n'
    (project / "unweave.toml").write_text(TOML + more)
    fit = cli("fit", "--grams", "c.safetensors", "--layers", "1,3", "--json")
    assert fit.code == 0, fit.err
    assert set(fit.record["layers"]) == {"1", "3"}
    assert not (project / "a.safetensors").exists()
    done = cli("forget", "--ids", "ids.txt", "--grams", "c.safetensors", "--seed", 3, "--no-shuffle", "--json")
    assert done.code in (0, 3), done.err
    config = done.record["config"]
    assert (config["seed"], config["epochs"], config["shuffle"]) == (3, 7, False)


def test_an_empty_flag_takes_a_setting_back(project: Path, cli: Cli) -> None:
    (project / "unweave.toml").write_text(TOML + '[fit]\nlayers = ["1"]\n')
    fit = cli("fit", "--layers=", "--val=", "--json")
    assert set(fit.record["layers"]) == {"1", "3"}
    assert fit.record["held_out"] is False


def test_gamma_and_layers_as_flags(fitted: Path, cli: Cli) -> None:
    done = cli("forget", "--ids", "ids.txt", "--gamma", "default=0.9,1=0.5", "--layers", "2", "--json")
    assert done.record["config"]["gamma"] == {"default": 0.9, "1": 0.5}
    assert done.record["config"]["layers"] == 2
    more = cli("forget", "--ids", "ids.txt", "--layers", "3", "--json", "--force")
    assert set(more.record["ranks"]) == {"1", "3"}, "the last 3"


def test_arguments_of_the_factory(project: Path, cli: Cli) -> None:
    (project / "unweave.toml").write_text(TOML + "[model.arguments]\nwidth = 7\n")
    mismatch = cli("fit")
    assert mismatch.code == 1
    assert "[7, 192]" in mismatch.err
    assert cli("fit", "--argument", "width=64").code == 0, "the flag wins, and 64 is a number"
    unknown = cli("fit", "--argument", "depth=3")
    assert unknown.code == 2
    assert "depth" in unknown.err


def test_paths_in_the_file_are_relative_to_it(project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    sub = project / "sub"
    sub.mkdir()
    (sub / "toy_net.py").write_text((project / "toy_net.py").read_text())
    monkeypatch.chdir(sub)
    fit = cli("fit", "--config", "../unweave.toml")
    assert fit.code == 0, fit.err
    assert (project / "grams.safetensors").exists()
    done = cli("forget", "--config", "../unweave.toml", "--ids", "../ids.txt", "--out", "here.safetensors")
    assert done.code == 0, done.err
    assert (sub / "here.safetensors").exists()
    assert (sub / "here.grams.safetensors").exists()


def test_transform_label(project: Path, cli: Cli) -> None:
    assert cli("fit", "--transform", "plain").code == 0
    assert cli("forget", "--ids", "ids.txt", "--transform", "plain").code == 0
    other = cli("forget", "--ids", "ids.txt", "--transform", "cropped", "--force")
    assert other.code == 1
    assert "'plain'" in other.err
    assert "'cropped'" in other.err


def test_grams_in_float32_are_half_the_size(project: Path, cli: Cli) -> None:
    assert cli("fit").code == 0
    assert cli("fit", "--grams", "small.safetensors", "--dtype", "float32").code == 0
    sizes = [(project / name).stat().st_size for name in ("small.safetensors", "grams.safetensors")]
    assert sizes[0] < 0.6 * sizes[1]
