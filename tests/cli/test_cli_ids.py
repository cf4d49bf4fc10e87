"""Which samples: files of ids, classes, and the mistakes in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_project import Cli, files

from unweave.cli.configfile import Values
from unweave.cli.data import open_source
from unweave.cli.ids import read_ids
from unweave.cli.imports import own_modules
from unweave.cli.sources import StreamSource, TensorSource
from unweave.errors import DataError


def source(names: list[str] | None = None) -> TensorSource:
    made = TensorSource("[data] train", torch.arange(10.0)[:, None], torch.arange(10) % 2, 4)
    made.names = names
    return made


def test_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("# request 17\n\n  3\n1 # second\n\t\n9\t#third\n")
    assert read_ids(path, source()) == [3, 1, 9]


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([4, 2], dtype=np.uint8))
    assert read_ids(tmp_path / "ids.npy", source()) == [4, 2]


def test_file_names(tmp_path: Path) -> None:
    names = [f"cat/{i}.png" for i in range(9)] + ["cat/a #1.png"]
    (tmp_path / "ids.txt").write_text("cat/3.png\n1\ncat/a #1.png\ncat/2.png # a comment\n")
    assert read_ids(tmp_path / "ids.txt", source(names)) == [3, 1, 9, 2]


@pytest.mark.parametrize(
    "content, words",
    [
        ("10", ["Id 10 (line 1) is out of range", "0 to 9"]),
        ("-1", ["Id -1", "out of range"]),
        ("1\n2\n1", ["line 3", "line 1", "once"]),
        ("", ["holds no ids"]),
        ("# nothing\n\n", ["holds no ids"]),
        ("abc", ["Invalid id 'abc' (line 1)", "integers from 0"]),
        ("1.5", ["Invalid id '1.5'"]),
        (b"\xff\xfe", ["UTF-8"]),
        (None, ["Cannot read the ids in", "No such file"]),
    ],
)
def test_mistakes_in_text(tmp_path: Path, content: str | bytes | None, words: list[str]) -> None:
    path = tmp_path / "ids.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        read_ids(path, source())
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "ids, words",
    [
        (np.array([1.0]), "float64"),
        (np.array([[1]]), "[1, 1]"),
        (np.array([], dtype=int), "holds no ids"),
        (np.array([3, 3]), "element 1"),
        (np.array([None]), "Cannot read the ids"),
    ],
)
def test_mistakes_in_npy(tmp_path: Path, ids: np.ndarray, words: str) -> None:
    np.save(tmp_path / "ids.npy", ids)
    with pytest.raises(DataError) as caught:
        read_ids(tmp_path / "ids.npy", source())
    assert words in str(caught.value)


def test_mistakes_in_file_names(tmp_path: Path) -> None:
    names = [f"cat/{i}.png" for i in range(10)]
    (tmp_path / "ids.txt").write_text("cat/3.pgn\n")
    with pytest.raises(DataError, match=r"Unknown file name 'cat/3.pgn' \(line 1\).*Did you mean 'cat/3.png'"):
        read_ids(tmp_path / "ids.txt", source(names))
    (tmp_path / "ids.txt").write_text("cat/3.png\n3\n")
    with pytest.raises(DataError, match=r"line 2 \(3\) is the sample that line 1 \(cat/3.png\)"):
        read_ids(tmp_path / "ids.txt", source(names))


def test_a_stream_knows_its_length_only_at_the_end(tmp_path: Path) -> None:
    stream = StreamSource("[data] train", ((torch.full((3, 1), float(i)), torch.full((3,), i)) for i in range(4)))
    (tmp_path / "ids.txt").write_text("11\n0\n4\n5\n")
    loader = list(stream.only(read_ids(tmp_path / "ids.txt", stream)))
    assert torch.cat([labels for _, labels in loader]).tolist() == [0, 1, 1, 3]
    (tmp_path / "ids.txt").write_text("1\n12\n")
    with pytest.raises(DataError, match=r"Id 12 is out of range.*0 to 11"):
        stream.only(read_ids(tmp_path / "ids.txt", stream))


@pytest.mark.parametrize(
    "code, words, found",
    [
        (2, ["--classes", "7"], "Class 7 has no sample"),
        (2, ["--classes", "-1"], "Class -1 has no sample"),
        (2, ["--classes", "cow"], "Unknown class 'cow'"),
        (2, ["--classes", "0,1,2,3"], "all 4 classes"),
        (2, ["--all"], "[data] forget, which is not set"),
        (2, ["--ids", "nowhere.txt"], "nowhere.txt"),
        (1, ["--ids", "everything.txt"], "Nothing would be retained"),
        (1, ["--ids", "ids.txt", "--forget", "strangers.npz"], "were not fitted as they are here"),
        (1, ["--ids", "ids.txt", "--weights", "other.safetensors"], "These Grams belong to model"),
        (1, ["--ids", "ids.txt", "--grams", "model.safetensors"], "something else"),
        (2, ["--ids", "ids.txt", "--grams", "nowhere.safetensors"], "Cannot read nowhere.safetensors"),
        (2, ["--ids", "ids.txt", "--layers", "nothing"], "Unknown layer 'nothing'"),
        (2, ["--ids", "ids.txt", "--layers", "0"], "Invalid layers=0"),
        (2, ["--ids", "ids.txt", "--gamma", "nothing=0.5,default=0.9"], "unknown layers: nothing"),
        (2, ["--ids", "ids.txt/x"], "Cannot read the ids in ids.txt/x"),
        (2, ["--ids", "nowhere.npy"], "nowhere.npy"),
    ],
)
def test_requests_that_cannot_be_carried_out(fitted: Path, cli: Cli, code: int, words: list[str], found: str) -> None:
    (fitted / "everything.txt").write_text("\n".join(map(str, range(240))))
    np.savez(
        fitted / "strangers.npz", x=np.full((50, 3, 8, 8), 200.0) * np.random.rand(50, 3, 8, 8), y=np.arange(50) % 4
    )
    save_file({k: v + 1 for k, v in load_file(fitted / "model.safetensors").items()}, fitted / "other.safetensors")
    before = files(fitted)
    failed = cli("forget", *words)
    assert failed.code == code
    assert found in failed.err
    assert files(fitted) == before


def test_every_class_of_a_forget_source(fitted: Path, cli: Cli) -> None:
    """A source that holds one class only may be forgotten whole; one that holds all of them is refused."""
    with np.load(fitted / "train.npz") as train:
        x, y = train["x"], train["y"]
    np.savez(fitted / "twos.npz", x=x[y == 2], y=y[y == 2])
    assert cli("forget", "--classes", "2", "--forget", "twos.npz").code == 0
    np.savez(fitted / "some.npz", x=x[:100], y=y[:100])
    refused = cli("forget", "--classes", "0,1,2,3", "--forget", "some.npz", "--force")
    assert refused.code == 2
    assert "all 4 classes" in refused.err


def without(fitted: Path, rows: object, name: str = "train.npz") -> None:
    """The training set with some rows deleted."""
    with np.load(fitted / "train.npz") as train:
        left = {part: np.delete(train[part], rows, axis=0) for part in train.files}
    np.savez(fitted / name, **left)


@pytest.mark.parametrize("flag", ["--ids", "--poisoned"])
def test_positions_in_another_file_than_was_fitted(fitted: Path, cli: Cli, flag: str) -> None:
    without(fitted, range(10), "fewer.npz")
    there = files(fitted)
    refused = cli("forget", flag, "ids.txt", "--train", "fewer.npz")
    assert refused.code == 2
    assert "[data] train has 230 samples, 240 were fitted" in refused.err
    assert "--all --forget FILE" in refused.err
    assert files(fitted) == there
    assert cli("forget", "--classes", "2", "--train", "fewer.npz").code == 0, "names no positions"


def test_rows_deleted_between_requests(fitted: Path, cli: Cli) -> None:
    """As many as are still in the Grams, which is not what positions count; with those that are out it goes on."""
    assert cli("forget", "--ids", "ids.txt").code == 0
    without(fitted, range(20, 44), "fewer.npz")
    (fitted / "more.txt").write_text("\n".join(map(str, range(100, 120))))
    chained = ("--weights", "forgotten.safetensors", "--grams", "forgotten.grams.safetensors", "--out", "2.safetensors")
    refused = cli("forget", "--ids", "more.txt", *chained, "--train", "fewer.npz")
    assert refused.code == 2
    assert "has 216 samples, 240 were fitted" in refused.err
    assert cli("forget", "--ids", "more.txt", *chained).code == 0


def test_an_id_beyond_what_was_deleted_is_told_of_the_deletion(fitted: Path, cli: Cli) -> None:
    without(fitted, range(200))
    refused = cli("forget", "--ids", "ids.txt")
    assert "has 40 samples, 240 were fitted" in refused.err


@pytest.mark.parametrize(
    "loader, rows",
    [
        ("DataLoader(data, 4)", 10),
        ("DataLoader(data, 4, shuffle=True)", 10),
        ("DataLoader(data, 4, sampler=SubsetRandomSampler([1, 2, 3]))", 3),
        ("DataLoader(data, 4, drop_last=True)", None),
        ("DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 4, True))", None),
        ("data", 10),
        ("iter([(torch.zeros(3, 1), torch.zeros(3).long())])", None),
    ],
)
def test_how_many_samples_a_function_of_ones_own_yields(here: Path, loader: str, rows: int | None) -> None:
    (here / "own_rows.py").write_text(
        "import torch\nfrom torch.utils.data import *\n"
        "data = TensorDataset(torch.zeros(10, 1), torch.zeros(10).long())\n"
        f"def made(): return {loader}\n"
    )
    values = Values({("data", "train"): "own_rows:made", ("data", "batch_size"): 4}, None)
    with own_modules():
        assert open_source(values, "train").rows == rows
