from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from unweave.demo import data, network, requests, story
from unweave.demo.data import Images
from unweave.errors import StoreError

COUNTS = {"train": 3000, "val": 1000, "test": 1000}


# -------------------------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("split", COUNTS)
def test_the_embedded_images_are_what_they_claim_to_be(split: str) -> None:
    raw = data.pixels(split)
    assert raw.shape == (COUNTS[split], 32, 32, 3)
    assert hashlib.sha256(raw.tobytes()).hexdigest() == data.SHEETS[split][1]
    images = data.load(split)
    assert images.x.shape == (COUNTS[split], 3, 32, 32)
    assert images.x.dtype == torch.float32
    assert images.y.bincount().tolist() == [COUNTS[split] // 10] * 10


def test_the_training_images_are_normalised() -> None:
    x = data.load("train").x
    assert abs(x.mean().item()) < 0.01
    assert abs(x.std().item() - 1) < 0.01


def test_no_image_is_in_two_splits() -> None:
    digests = [{hashlib.sha256(image.tobytes()).digest() for image in data.pixels(split)} for split in COUNTS]
    assert not digests[0] & digests[1]
    assert not digests[0] & digests[2]
    assert not digests[1] & digests[2]


def test_damaged_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    names, _ = data.SHEETS["val"]
    monkeypatch.setitem(data.SHEETS, "val", (names, "0" * 64))
    with pytest.raises(StoreError, match=r"cifar10-val\.webp.*Install"):
        data.load("val")


# ------------------------------------------------------------------------------------------------------- the requests


@pytest.fixture(scope="module")
def train_set() -> Images:
    return data.load("train")


def test_the_requests_split_the_training_set(train_set: Images) -> None:
    poisoned, wrong, truth = requests.poison(train_set)
    for split, count in (
        (requests.samples(train_set), 200),
        (requests.one_class(train_set), 300),
        (wrong, 300),
    ):
        assert len(split.forget) == count
        assert len(split.retain) == 3000 - count
    assert requests.samples(train_set).forget.y.bincount().tolist() == [20] * 10
    assert set(requests.one_class(train_set).forget.y.tolist()) == {requests.CLASS}
    assert requests.CLASS not in requests.one_class(train_set).retain.y
    assert torch.equal(wrong.forget.x, truth.x)
    assert [requests.PAIRS[int(y)] for y in truth.y] == wrong.forget.y.tolist()
    assert int((poisoned.y != train_set.y).sum()) == 300


# ------------------------------------------------------------------------------------------------------- the network


def test_the_network_learns_in_one_epoch_and_the_same_each_time(train_set: Images) -> None:
    some = train_set.where(torch.arange(0, 3000, 6))
    ticks: list[int] = []
    nets = [network.train(some, seed=0, epochs=1, tick=ticks.append) for _ in range(2)]
    untrained = network.error(network.build().eval(), some)
    assert network.error(nets[0], some) < untrained - 5
    assert ticks == [1, 1]
    assert not nets[0].training
    for one, two in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(one, two)


# -------------------------------------------------------------------------------------------------------- the story


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the images, two epochs, a network of two layers."""
    whole = data.load

    def some(split: str) -> Images:
        images = whole(split)
        return images.where(torch.arange(0, len(images), 10))

    monkeypatch.setattr(data, "load", some)
    monkeypatch.setattr(
        network,
        "build",
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(5), nn.Flatten(), nn.Linear(288, 10)),
    )
    monkeypatch.setattr(network, "EPOCHS", 2)
    monkeypatch.setattr(requests, "PER_CLASS", 4)
    monkeypatch.setattr(requests, "POISONED", 4)


@pytest.mark.usefixtures("tiny")
def test_the_story_is_told_to_the_end_without_the_training_set(tmp_path: Path) -> None:
    said: list[str] = []
    working = tmp_path / "training-set.safetensors"
    there: dict[str, bool] = {}

    def say(text: str) -> None:
        there[text.split()[0] if text.strip() else ""] = working.exists()
        said.append(text)

    chapters = story.Story(tmp_path, 0, say, lambda *_: None).tell()
    assert there["learn"]
    assert not any(there[word] for word in ("lose", "forget", "clean", "compare"))
    assert [chapter.title for chapter in chapters] == ["40 samples", "class airplane", "40 wrong labels"]
    assert all(chapter.retrained is not None and chapter.stopped for chapter in chapters)
    assert any("only now the training set is read again" in text for text in said)
    assert not working.exists()

    written = json.loads((tmp_path / "result.json").read_text())
    assert [chapter["title"] for chapter in written["chapters"]] == [chapter.title for chapter in chapters]
    assert written["made_by"]["seed"] == 0
    assert set(written["chapters"][0]["margins"]) == {"original", "unlearned", "retrained"}
    for chapter in written["chapters"]:
        for name in ("original", "unlearned", "retrained"):
            assert all(0 <= value <= 100 for value in chapter[name].values())


@pytest.mark.usefixtures("tiny")
def test_a_training_set_that_somebody_still_holds_stops_the_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    fit = story.Story.train_and_fit

    def hold(self: story.Story, train: Images, what: str) -> story.Network:
        held.append(train.x)
        return fit(self, train, what)

    monkeypatch.setattr(story.Story, "train_and_fit", hold)
    with pytest.raises(RuntimeError, match="still in memory"):
        story.Story(tmp_path, 0, lambda text: None, lambda *_: None).learn()


def test_memory_is_in_use_while_a_view_of_it_lives() -> None:
    tensor = torch.zeros(1000)
    view, address = tensor[10:20], tensor.untyped_storage().data_ptr()
    del tensor
    assert story._in_use(address)
    del view
    assert not story._in_use(address)


def test_a_wrapper_of_torch_func_that_lives_on_holds_no_memory_of_its_own() -> None:
    kept = list[torch.Tensor]()

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x + 1

    tensor = torch.zeros(3, 1000)
    torch.func.vmap(keep)(tensor)
    address = tensor.untyped_storage().data_ptr()
    assert story._in_use(address)
    assert not story._in_use(1), "every tensor was looked at, the wrapper too"
