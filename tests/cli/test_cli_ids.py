"""Which samples: files of ids, classes, and the mistakes in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_project import Cli, files

from unweave.cli.ids import read_ids
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
