"""fit() says so where a sample is another one each time it is read, or where it may depend on its batch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from helpers import images, small_cnn, token_classifier
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import unweave
from unweave.errors import DataError, MismatchError, UnweaveWarning
from unweave.fitting import steady
from unweave.ranks.shard import Picked

X, LABELS = images(8)


class Altered(Dataset):
    """Images that a function may change as they are read."""

    def __init__(self, change: Callable[[Tensor, int], Tensor]) -> None:
        self.change, self.read = change, []

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.read.append(i)
        return self.change(X[i], i), int(LABELS[i])


def plain(x: Tensor, i: int) -> Tensor:
    return x


AUGMENTATIONS = {
    "torch": lambda x, i: x + 0.01 * torch.randn(()),
    "numpy": lambda x, i: x + 0.01 * numpy.random.randn(),
    "python": lambda x, i: x + 0.01 * random.random(),
}


def randomness() -> tuple[Any, ...]:
    state = numpy.random.get_state()
    return torch.get_rng_state().tolist(), state[1].tolist(), state[2:], random.getstate()


# ---------------------------------------------------------------------------------------- the same each time it is read


@pytest.mark.parametrize("source", AUGMENTATIONS)
@pytest.mark.parametrize("workers", [0, 2])
def test_random_augmentation_is_told_before_the_pass(source: str, workers: int) -> None:
    heard: list[Any] = []
    loader = DataLoader(Altered(AUGMENTATIONS[source]), 4, num_workers=workers)
    with pytest.warns(
        UnweaveWarning, match=r"gives sample 0 otherwise each time.*augmentation.*Fit without it"
    ) as told:
        unweave.fit(small_cnn(), loader, progress=lambda *step: heard.append(len(told)))
    assert heard == [1, 1]


def test_a_sample_after_the_first_is_seen_too() -> None:
    loader = DataLoader(Altered(lambda x, i: x + (i == 2) * torch.randn(())), 4)
    with pytest.warns(UnweaveWarning, match="gives sample 2 otherwise"):
        unweave.fit(small_cnn(), loader)


def test_a_share_of_a_loader_is_seen_through() -> None:
    with pytest.warns(UnweaveWarning, match="gives sample 0 otherwise"):
        steady.warn_of_augmentation(Picked(DataLoader(Altered(AUGMENTATIONS["torch"]), 4), 1, 2))


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_stay_the_same_say_nothing(workers: int) -> None:
    net, dataset = small_cnn(), Altered(plain)
    grams = unweave.fit(net, DataLoader(dataset, 4, num_workers=workers))
    assert grams == unweave.fit(net, [(X[:4], LABELS[:4]), (X[4:], LABELS[4:])])
    assert dataset.read == ([] if workers else [0, 0, 1, 1, 2, 2, *range(8)]), "where workers read, nobody else does"


def test_values_that_are_no_numbers_are_the_same_twice() -> None:
    with pytest.raises(DataError, match="NaN"):
        unweave.fit(small_cnn(), DataLoader(Altered(lambda x, i: x * float("nan")), 4))


@pytest.mark.parametrize("source", AUGMENTATIONS)
@pytest.mark.parametrize("generator", [None, torch.Generator().manual_seed(3)])
def test_reading_twice_leaves_random_numbers_alone(source: str, generator: torch.Generator | None) -> None:
    loader = DataLoader(Altered(AUGMENTATIONS[source]), 4, shuffle=True, generator=generator)
    before, own = randomness(), None if generator is None else generator.get_state()
    with pytest.warns(UnweaveWarning):
        steady.warn_of_augmentation(loader)
    assert randomness() == before
    assert generator is None or torch.equal(generator.get_state(), own)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        yield from ((X[i] + 0.01 * torch.randn(()), int(LABELS[i])) for i in range(8))


class Keyed(Dataset):
    """Positions mean nothing to it."""

    def __getitem__(self, key: str) -> tuple[Tensor, int]:
        i = "abcdefgh".index(key)
        return X[i], int(LABELS[i])


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(), 4),
        DataLoader(Keyed(), batch_sampler=["abcd", "efgh"]),
        DataLoader(Altered(plain), batch_size=None, sampler=[slice(0, 4), slice(4, 8)], collate_fn=lambda pair: pair),
        DataLoader(Subset(Altered(plain), []), 4),
        iter([(X, LABELS)]),
        7,
    ],
)
def test_what_cannot_be_read_by_position_says_nothing(loader: Any) -> None:
    steady.warn_of_augmentation(loader)


def test_a_data_set_that_raises_raises_in_the_pass() -> None:
    def broken(x: Tensor, i: int) -> Tensor:
        raise OSError("no such image")

    dataset = Altered(broken)
    with pytest.raises(OSError, match="no such image"):
        unweave.fit(small_cnn(), DataLoader(dataset, 4))
    assert dataset.read == [0, 0]


def test_a_slow_data_set_is_read_twice_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "READING_SECONDS", 0.01)
    dataset = Altered(lambda x, i: time.sleep(0.01) or x)
    steady.warn_of_augmentation(DataLoader(dataset, 4))
    assert dataset.read == [0, 0]


# ---------------------------------------------------------------------------------------------- the same in every batch


def padded(lengths: list[int], batches: list[list[int]], length: int = 0, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Sentences of ids 1 to 10, filled up with zeros to a length, or to the longest of their batch."""
    words = torch.randint(1, 11, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    words *= torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    cut = [length or max(lengths[i] for i in batch) for batch in batches]
    return [(words[batch, :width], torch.tensor(batch) % 3) for batch, width in zip(batches, cut, strict=True)]


LENGTHS = [2, 3, 5, 2, 4, 6, 2]


def test_padding_by_batch_is_told_once_after_the_pass() -> None:
    heard: list[Any] = []
    loader = padded(LENGTHS, [[0, 1], [2, 3], [4, 5]])
    words = r"different shapes \(e\.g\. \[2, 3\] and \[2, 5\]\).*longest of their batch.*Pad to one length"
    with pytest.warns(UnweaveWarning, match=words) as told:
        unweave.fit(token_classifier(), loader, progress=lambda *step: heard.append(len(told)))
    assert heard == [0, 0, 0]
    assert len(told) == 1


class Named(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = token_classifier()

    def forward(self, ids: Tensor, whole: Tensor) -> Tensor:
        return self.net(ids) + 0 * whole.mean(1, keepdim=True)


def test_any_input_may_be_the_one_that_differs() -> None:
    loader = [
        ({"whole": torch.zeros(len(ids), 2, dtype=torch.float64), "ids": ids}, labels)
        for ids, labels in padded(LENGTHS, [[0, 1], [2, 3]])
    ]
    with pytest.warns(UnweaveWarning, match=r"\[2, 3\] and \[2, 5\]"):
        unweave.fit(Named(), loader)


@pytest.mark.parametrize(
    "loader",
    [
        padded(LENGTHS, [[0, 1, 2], [3, 4, 5], [6]], length=6),
        padded(LENGTHS, [[0, 1, 2, 3], [4, 5, 6]], length=6),
        padded(LENGTHS, [[i] for i in range(7)]),
        padded(LENGTHS, [[2, 3], [0], [1], [6]]),
    ],
    ids=["a last batch of one", "a shorter last batch", "one by one", "one by one but for the first"],
)
def test_batches_of_one_shape_or_of_one_sample_say_nothing(loader: Any) -> None:
    assert unweave.fit(token_classifier(), loader).samples in (5, 7)


def test_samples_to_forget_or_held_out_may_come_in_any_shape() -> None:
    net, batches = token_classifier(), [[0, 1], [2, 3], [4, 5, 6]]
    loader, held_out = padded(LENGTHS, batches), padded(LENGTHS, batches, seed=1)
    with pytest.warns(UnweaveWarning, match=r"\[2, 3\] and \[2, 5\]") as told:
        grams = unweave.fit(net, loader, val=held_out)
    assert len(told) == 1
    assert unweave.forget(net, loader[:2], grams, val=held_out).samples == 4


@pytest.mark.filterwarnings("ignore::unweave.errors.UnweaveWarning")
def test_sums_that_do_not_fit_name_padding_by_batch() -> None:
    net = token_classifier()
    grams = unweave.fit(net, padded(LENGTHS, [[0, 3], [1, 2], [4, 5, 6]]))
    with pytest.raises(MismatchError, match=r"not padded to the same length .*each batch is padded by itself"):
        _ = grams - unweave.fit(net, padded(LENGTHS, [[0, 5], [3, 4]]))
