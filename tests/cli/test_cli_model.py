"""[model]: factories and weights that cannot be used, and tied weights that can."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from toy_project import Cli, Toy

from unweave.cli.model import load_weights
from unweave.cli.outputs import weights_bytes
from unweave.errors import MismatchError


@pytest.mark.parametrize(
    "factory, code, words",
    [
        ("toy_net", 2, ["Invalid [model] factory", "package.module:function"]),
        ("toy_net:", 2, ["Invalid [model] factory"]),
        ("no_such_module:build", 2, ["no module 'no_such_module'", "run from the folder"]),
        ("toy_net:biuld", 2, ["no 'biuld'", "Did you mean 'build'?"]),
        ("toy_net:nope", 2, ["no 'nope'. Supported: build, number, broken.\n"]),
        ("toy_net:WIDTH.x", 2, ["no 'x'", "nothing that can be called"]),
        ("toy_net:WIDTH", 2, ["is a int", "cannot be called"]),
        ("toy_net:number", 1, ["returned a int", "torch.nn.Module"]),
        ("toy_net:broken", 2, ["failed with ZeroDivisionError"]),
        ("broken_module:build", 2, ["importing 'broken_module' failed with SyntaxError"]),
        ("needs_more:build", 2, ["importing 'needs_more' failed", "no_such_dependency"]),
    ],
)
def test_factories(project: Path, cli: Cli, factory: str, code: int, words: list[str]) -> None:
    with open(project / "toy_net.py", "a") as file:
        file.write("import numpy as np\nfrom torch.nn import Linear\n")
        file.write("WIDTH = 3\ndef number(): return 3\ndef broken(): return 1 / 0\n")
    (project / "broken_module.py").write_text("def build(:\n")
    (project / "needs_more.py").write_text("import no_such_dependency\n")
    failed = cli("fit", "--factory", factory)
    assert failed.code == code
    for word in words:
        assert word in failed.err


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_weights_from_either_kind_of_file(project: Path, toy: Toy, cli: Cli, name: str) -> None:
    torch.save(toy.weights, project / "model.pt")
    assert cli("fit", "--weights", name).code == 0


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda s: {**s, "3.weight": torch.zeros(5, 64)}, ["'3.weight'", "[5, 64]", "[4, 64]"]),
        (lambda s: {k: v for k, v in s.items() if k != "1.bias"}, ["no '1.bias'", "[64]", "1 missing, 0 unexpected"]),
        (lambda s: {**s, "extra": torch.zeros(2)}, ["'extra' [2]", "which the model has not"]),
        (lambda s: {f"module.{k}": v for k, v in s.items()}, ["no '1.weight'", "'module.1.weight' [64, 192]"]),
    ],
)
def test_weights_of_another_network(project: Path, toy: Toy, cli: Cli, change: object, words: list[str]) -> None:
    save_file(change(toy.weights), project / "other.safetensors")  # type: ignore[operator]
    failed = cli("fit", "--weights", "other.safetensors")
    assert failed.code == 1
    for word in words:
        assert word in failed.err


def test_weights_whose_classes_were_dropped(project: Path, toy: Toy, cli: Cli) -> None:
    cut = {name: value[:3].clone() if name.startswith("3.") else value for name, value in toy.weights.items()}
    save_file(cut, project / "c.dropped.safetensors")
    failed = cli("fit", "--weights", "c.dropped.safetensors")
    assert failed.code == 1
    assert "[3, 64], the model as [4, 64]. If --drop has cut its classes off, name the weights" in failed.err
    narrower = cli("fit", "--argument", "width=65")
    assert narrower.code == 1
    assert "--drop" not in narrower.err, "it is another layer too that differs"


class Code:
    """A pickle that would leave a file behind if it were loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch was_here",)


@pytest.mark.parametrize("dump", [torch.save, lambda obj, path: Path(path).write_bytes(pickle.dumps(obj))])
@pytest.mark.parametrize("setting", ["--weights", "--train"])
def test_a_pickle_with_code_in_it(project: Path, cli: Cli, dump: object, setting: str) -> None:
    dump({"x": Code(), "y": Code()}, project / "evil.pt")  # type: ignore[operator]
    failed = cli("fit", setting, "evil.pt")
    assert failed.code == 1
    assert "was not loaded" in failed.err
    assert "code" in failed.err
    assert not (project / "was_here").exists()


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("nowhere.safetensors", None, ["Cannot read nowhere.safetensors"]),
        ("nowhere.pt", None, ["Cannot read nowhere.pt"]),
        ("bad.safetensors", b"nonsense", ["bad.safetensors is damaged"]),
        ("bad.pt", b"nonsense", ["bad.pt was not loaded"]),
        ("empty.pt", b"", ["empty.pt is damaged"]),
        ("cut.pt", "half", ["cut.pt is damaged"]),
        ("nested.pt", {"state_dict": {"a": torch.zeros(1)}, "epoch": 3}, ["keys state_dict, epoch", "state dict"]),
        ("list.pt", [torch.zeros(1)], ["holds a list"]),
    ],
)
def test_files_that_are_no_weights(
    project: Path, toy: Toy, cli: Cli, name: str, content: object, words: list[str]
) -> None:
    path = project / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "half":
        torch.save(toy.weights, path)
        path.write_bytes(path.read_bytes()[:5000])
    elif content is not None:
        torch.save(content, path)
    failed = cli("fit", "--weights", name)
    assert failed.code == (2 if content is None else 1)
    for word in words:
        assert word in failed.err


class Tied(nn.Module):
    """An embedding whose weight is that of the head too, and a buffer that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("crossed", torch.arange(6.0).reshape(2, 3).T)


def test_tied_weights_are_written_and_read_again(tmp_path: Path) -> None:
    net, other = Tied(), Tied()
    (tmp_path / "tied.safetensors").write_bytes(weights_bytes(net.state_dict()))
    load_weights(other, tmp_path / "tied.safetensors")
    assert list(other.state_dict()) == list(net.state_dict())
    for name, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert other.head.weight is other.embed.weight


def test_a_file_may_leave_out_the_second_name_of_a_tied_weight(tmp_path: Path) -> None:
    net, other = Tied(), Tied()
    state = {name: value.contiguous() for name, value in net.state_dict().items() if name != "head.weight"}
    save_file(state, tmp_path / "tied.safetensors")
    load_weights(other, tmp_path / "tied.safetensors")
    assert torch.equal(other.head.weight, net.embed.weight)
    del state["embed.weight"]
    save_file(state, tmp_path / "less.safetensors")
    with pytest.raises(MismatchError, match=r"embed\.weight"):
        load_weights(other, tmp_path / "less.safetensors")


def test_only_duplicates_are_copied() -> None:
    net = nn.Linear(2, 2)
    before = {name: value.data_ptr() for name, value in net.state_dict().items()}
    assert len(weights_bytes(net.state_dict())) < 400
    assert {name: value.data_ptr() for name, value in net.state_dict().items()} == before
