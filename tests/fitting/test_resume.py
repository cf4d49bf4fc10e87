"""A pass that was interrupted, and goes on: the same sums to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import gap, images, in_batches, small_cnn
from torch.utils.data import DataLoader, TensorDataset

import unweave
from unweave.errors import ConfigError, DataError, MismatchError, StoreError


class PowerCutError(Exception):
    pass


def cut_after(batches: Any, count: int) -> Iterator[Any]:
    for i, batch in enumerate(batches):
        if i == count:
            raise PowerCutError
        yield batch


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


TRAIN = in_batches(*images(29), 3)


@pytest.mark.parametrize("done", [1, 3, 4, 5, 9])
def test_an_interrupted_pass_ends_with_the_same_bits(tmp_path: Path, done: int) -> None:
    net = small_cnn()
    whole = unweave.fit(net, TRAIN, resume=tmp_path / "never stopped", save_every=3)
    with pytest.raises(PowerCutError):
        unweave.fit(net, cut_after(TRAIN, done), resume=tmp_path / "sums", save_every=3)
    assert saved(tmp_path / "sums") == (["fit-0-of-1.safetensors"] if done >= 3 else [])
    seen: list[tuple[int, int | None]] = []
    found = unweave.fit(
        net,
        TRAIN,
        resume=tmp_path / "sums",
        save_every=3,
        progress=lambda stage, at, total: seen.append((at, total)),
    )
    assert found == whole
    assert seen == [(i + 1, 10) for i in range(done - done % 3, 10)], "what was done is not done again"
    assert saved(tmp_path / "sums") == []
    plain = unweave.fit(net, TRAIN)
    assert found.origin == plain.origin
    assert found.layers == plain.layers
    assert found.margins == plain.margins
    assert all(gap(found[name], plain[name]) < 1e-10 for name in plain)


def test_a_pass_may_be_interrupted_more_than_once(tmp_path: Path) -> None:
    net = small_cnn()
    for done in (3, 5, 8, 9):
        with pytest.raises(PowerCutError):
            unweave.fit(net, cut_after(TRAIN, done), resume=tmp_path, save_every=2)
    assert unweave.fit(net, TRAIN, resume=tmp_path, save_every=2) == unweave.fit(
        net, TRAIN, resume=tmp_path / "other", save_every=2
    )


def test_a_validation_set_that_fails_costs_no_sums(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        unweave.fit(small_cnn(), TRAIN, val=[], resume=tmp_path, save_every=3)
    assert saved(tmp_path) == ["fit-0-of-1.safetensors"]


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The sums of six batches."""
    with pytest.raises(PowerCutError):
        unweave.fit(small_cnn(), cut_after(TRAIN, 7), resume=tmp_path, save_every=3, transform="plain")
    return tmp_path


@pytest.mark.parametrize(
    "other, words",
    [
        ({"model": small_cnn(seed=1)}, "model"),
        ({"layers": ["0"]}, "layers"),
        ({"stride": "one"}, "stride"),
        ({"transform": "flipped"}, "transform"),
        ({"loader": in_batches(*images(29, seed=1), 3)}, "first batch"),
        ({"loader": in_batches(*images(29), 4)}, "first batch: .*another order of them, or another batch size"),
        ({"save_every": 2}, r"save_every: 3 there, 2 here\. "),
    ],
)
def test_sums_of_something_else_are_refused(begun: Path, other: dict[str, Any], words: str) -> None:
    before = (begun / "fit-0-of-1.safetensors").read_bytes()
    call = {"model": small_cnn(), "loader": TRAIN, "resume": begun, "save_every": 3, "transform": "plain"} | other
    with pytest.raises(MismatchError, match=words):
        unweave.fit(**call)
    assert (begun / "fit-0-of-1.safetensors").read_bytes() == before


def test_sums_of_another_number_of_ranks_are_refused(begun: Path) -> None:
    (begun / "fit-0-of-1.safetensors").rename(begun / "fit-0-of-2.safetensors")
    with pytest.raises(MismatchError, match="fit-0-of-2"):
        unweave.fit(small_cnn(), TRAIN, resume=begun, save_every=3)


def test_a_damaged_file_is_refused(begun: Path) -> None:
    path = begun / "fit-0-of-1.safetensors"
    blob = bytearray(path.read_bytes())
    blob[-3] ^= 1
    path.write_bytes(blob)
    with pytest.raises(StoreError, match="altered"):
        unweave.fit(small_cnn(), TRAIN, resume=begun, save_every=3, transform="plain")


def test_a_loader_that_shuffles_cannot_be_resumed(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(*images(9)), 3, shuffle=True)
    with pytest.raises(DataError, match="shuffle=False"):
        unweave.fit(small_cnn(), loader, resume=tmp_path)


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_save_every_is_a_number_of_batches(tmp_path: Path, every: Any) -> None:
    with pytest.raises(ConfigError, match="save_every"):
        unweave.fit(small_cnn(), TRAIN, resume=tmp_path, save_every=every)


def test_an_empty_loader_is_still_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="empty"):
        unweave.fit(small_cnn(), [], resume=tmp_path)
