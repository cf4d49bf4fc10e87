from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import problems
import pytest
import torch
from helpers import images, in_batches
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import unweave
from unweave.errors import DataError
from unweave.ranks import shard as shard_module
from unweave.ranks.shard import Opened, check_share, require_each_once


class Watched(Dataset[tuple[Tensor, Tensor]]):
    """Knows which samples were read."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, list[int]()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.append(index)
        return torch.tensor([float(index)]), torch.tensor(index % 3)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(Watched(10)[i] for i in range(10))


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    def become(rank: int, ranks: int) -> None:
        monkeypatch.setattr(shard_module, "rank", lambda: rank)
        monkeypatch.setattr(shard_module, "ranks", lambda: ranks)

    return become


def seen(loader: Any) -> list[int]:
    return [int(x) for inputs, _ in loader for x in inputs]


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("kind", ["map", "stream", "list"])
def test_every_sample_is_in_one_share_and_in_one_only(as_rank: Any, kind: str, ranks: int) -> None:
    found = []
    for rank in range(ranks):
        as_rank(rank, ranks)
        whole: Any = DataLoader(Watched(10), 2) if kind == "map" else DataLoader(Stream(), 2)
        share = unweave.shard(list(whole) if kind == "list" else whole)
        found.append(seen(share))
        if kind != "stream":
            assert len(share) == -(-len(found[-1]) // 2)
    assert sorted(itertools.chain(*found)) == list(range(10))
    assert found[0][:2] == [0, 1], "whole batches, as one process sees them"


def test_a_share_reads_nothing_of_the_others(as_rank: Any) -> None:
    as_rank(1, 3)
    data = Watched(10)
    assert seen(unweave.shard(DataLoader(data, 2))) == data.read == [2, 3, 8, 9]


def test_on_one_process_the_share_is_the_loader_itself() -> None:
    loader = DataLoader(Watched(4), 2, shuffle=True)
    assert unweave.shard(loader) is loader


def test_a_loader_that_shuffles_is_refused(as_rank: Any) -> None:
    as_rank(0, 2)
    with pytest.raises(DataError, match="shuffle=False"):
        unweave.shard(DataLoader(Watched(4), 2, shuffle=True))


def test_a_share_is_not_cut_again() -> None:
    data = Watched(4)
    with pytest.raises(DataError, match="share already"):
        unweave.shard(DataLoader(data, 2, sampler=DistributedSampler(data, 2, 0)))


@pytest.mark.parametrize("drop_last, words", [(False, "repeats samples"), (True, "leaves samples out")])
def test_a_padded_share_is_refused(drop_last: bool, words: str) -> None:
    data = Watched(5)
    sampler = DistributedSampler(data, 2, 0, drop_last=drop_last)
    with pytest.raises(DataError, match=words):
        check_share(DataLoader(data, 2, sampler=sampler), "training")
    even = DistributedSampler(data, 5, 0, drop_last=drop_last)
    check_share(DataLoader(data, 2, sampler=even), "training")


def loaders() -> dict[str, tuple[Any, str]]:
    data, equal = Watched(5), torch.ones(5)
    return {
        "the rest dropped": (DataLoader(data, 2, drop_last=True), r"leaves 1 of 5 samples out \(drop_last=True\)"),
        "shuffled, dropped": (DataLoader(data, 3, shuffle=True, drop_last=True), "leaves 2 of 5 samples out"),
        "batches of one's own": (
            DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 4, drop_last=True)),
            "leaves 1 of 5",
        ),
        "a share of a loader": (shard_module.Picked(DataLoader(data, 2, drop_last=True), 0, 2), "leaves 1 of 5"),
        "weighed": (
            DataLoader(data, 2, sampler=WeightedRandomSampler(equal, 5)),
            "WeightedRandomSampler that draws 5 of 5 samples with replacement",
        ),
        "weighed, too few": (
            DataLoader(data, 2, sampler=WeightedRandomSampler(equal, 3, replacement=False)),
            r"draws 3 of 5 samples\. Every sample",
        ),
        "drawn again": (DataLoader(data, 2, sampler=RandomSampler(data, replacement=True)), "with replacement"),
        "drawn too few": (DataLoader(data, 2, sampler=RandomSampler(data, num_samples=4)), "draws 4 of 5 samples"),
    }


@pytest.mark.parametrize("name", loaders())
def test_a_loader_that_leaves_samples_out_or_repeats_some_is_refused(name: str) -> None:
    loader, words = loaders()[name]
    with pytest.raises(DataError, match=f"The training loader .*{words}"):
        require_each_once(loader, "training")


def test_loaders_that_yield_every_sample_once_are_not() -> None:
    data = Watched(6)
    for loader in (
        DataLoader(data, 4),
        DataLoader(data, 4, shuffle=True),
        DataLoader(data, 3, drop_last=True),
        DataLoader(data, 4, sampler=SubsetRandomSampler([1, 3])),
        DataLoader(data, 4, sampler=WeightedRandomSampler(torch.ones(6), 6, replacement=False)),
        DataLoader(data, batch_size=None),
        DataLoader(Stream(), 4, drop_last=True),  # nobody knows how many there are
        [(torch.ones(2, 1), torch.zeros(2))],
    ):
        require_each_once(loader, "training")


def test_fit_and_forget_refuse_such_loaders() -> None:
    problem = problems.points()
    asked = TensorDataset(*(torch.cat(part) for part in zip(*problem.forgotten, strict=True)))
    dropping = DataLoader(asked, len(asked) - 1, drop_last=True)
    with pytest.raises(DataError, match="The training loader leaves 1 of"):
        unweave.fit(problem.model, dropping)
    with pytest.raises(DataError, match="The forget loader leaves 1 of"):
        unweave.forget(problem.model, dropping, problem.grams, problem.val)


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_what_was_read_is_skipped(as_rank: Any, count: int) -> None:
    as_rank(1, 2)
    data = Watched(20)
    for loader in (unweave.shard(DataLoader(data, 2)), unweave.shard(list(DataLoader(Watched(20), 2)))):
        rest = Opened(loader, "training")
        rest.skip(count)
        data.read.clear()
        whole = [2, 3, 6, 7, 10, 11, 14, 15, 18, 19]
        assert seen(rest) == whole[2 * count :]
        assert rest.taken == 5
    assert len(data.read) <= len(whole) - 2 * count


def test_a_generator_is_skipped_over_too() -> None:
    rest = Opened((batch for batch in in_batches(*images(8), 2)), "training")
    rest.skip(2)
    assert [len(y) for _, y in rest] == [2, 2]


def test_the_digest_tells_first_batches_apart() -> None:
    x, y = images(4)
    one, same, other = (Opened(in_batches(z, y, 2), "training") for z in (x, x.clone(), x + 1))
    assert one.digest == same.digest != other.digest
    assert Opened([], "training").digest is None
    assert Opened(DataLoader(TensorDataset(x, y), 2), "training").digest == one.digest
