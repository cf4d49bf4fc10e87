"""A rank's share of the data: every sample on one rank and on one rank only.

Samples that are counted twice are forgotten by half, and samples that nobody counts cannot be forgotten at all. So
shares are cut without padding, whole batches at a time: rank r of n takes the batches r, r + n, r + 2n, …, the very
batches that one process would see.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from unweave.distributed import exchange, rank, ranks
from unweave.errors import DataError
from unweave.reading.batches import Loader, tensors_of
from unweave.reading.rest import bytes_of


def shard(loader: Loader) -> Loader:
    """This rank's share of a loader that is the same on every rank; on one process, the loader itself.

    A DataLoader reads only the batches of its share. Of anything else every rank reads all batches and keeps its own.

    Raises:
        DataError: a DataLoader that shuffles, so that every rank would cut another order, or that is a share already.
    """
    if isinstance(loader, DataLoader) and isinstance(loader.sampler, DistributedSampler):
        raise DataError("This loader has a DistributedSampler, so it is a share already. Pass one without it.")
    if ranks() == 1:
        return loader
    require_order(loader, "Each rank would shuffle for itself, and take samples of the others' shares")
    return Picked(loader, rank(), ranks())


class Picked:
    """The batches ``start``, ``start + step``, … of a loader."""

    def __init__(self, loader: Loader, start: int, step: int = 1) -> None:
        self.loader, self.start, self.step = loader, start, step
        # A DataLoader is told which samples to read; its own iterator would read them all.
        self.reads_only_its_own = isinstance(loader, DataLoader) and by_batches(loader)

    def __len__(self) -> int:
        return max(0, -(-(len(self.loader) - self.start) // self.step))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if not self.reads_only_its_own:
            return itertools.islice(iter(self.loader), self.start, None, self.step)
        batches: Any = self.loader.batch_sampler  # type: ignore[attr-defined]
        return iter(_reading(self.loader, list(itertools.islice(batches, self.start, None, self.step))))

    def after(self, count: int) -> Picked:
        """The same without the first so many."""
        return Picked(self.loader, self.start + count * self.step, self.step)


def by_batches(loader: DataLoader[Any]) -> bool:
    """Whether a DataLoader reads samples by their positions, a batch of them at a time."""
    return not isinstance(loader.dataset, IterableDataset) and loader.batch_sampler is not None


def _reading(loader: Any, chosen: list[list[int]]) -> DataLoader[Any]:
    """A DataLoader like another one, over some batches of indices."""
    return DataLoader(
        loader.dataset,
        batch_sampler=chosen,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
    )


def require_order(loader: Loader, why: str) -> None:
    """Refuse a DataLoader that shuffles.

    Raises:
        DataError: it does; ``why`` says what would come of it.
    """
    sampler = loader.sampler if isinstance(loader, DataLoader) else None
    inner = loader.batch_sampler if isinstance(loader, DataLoader) else None
    if isinstance(sampler, RandomSampler) or (
        isinstance(inner, BatchSampler) and isinstance(inner.sampler, RandomSampler)
    ):
        raise DataError(f"This loader shuffles. {why}. Pass one with shuffle=False.")


def check_share(loader: Loader, what: str) -> None:
    """Refuse a share that is known to be wrong.

    Raises:
        DataError: a DistributedSampler that repeats samples to make shares even, or leaves some out.
    """
    sampler = loader.sampler if isinstance(loader, DataLoader) else None
    if not isinstance(sampler, DistributedSampler) or not isinstance(sampler.dataset, Sized):
        return
    samples, shares = len(sampler.dataset), sampler.num_replicas
    if samples % shares:
        does = "leaves samples out" if sampler.drop_last else "repeats samples"
        raise DataError(
            f"The {what} loader has a DistributedSampler, which {does} to cut {samples} samples into {shares} even "
            "shares. Every sample must count once: pass unweave.shard(loader) of a loader without that sampler."
        )


def require_each_once(loader: Loader, what: str) -> None:
    """Refuse a DataLoader that is known to leave samples out or to draw some twice, as one for training may.

    Raises:
        DataError: a sampler that draws with replacement or too few, or ``drop_last=True`` where a batch is not full.
    """
    loader = loader.loader if isinstance(loader, Picked) else loader
    if not isinstance(loader, DataLoader) or not by_batches(loader):
        return
    inner = loader.batch_sampler
    sampler = inner.sampler if isinstance(inner, BatchSampler) else loader.sampler
    if isinstance(sampler, (RandomSampler, WeightedRandomSampler)):
        known = len(sampler.weights if isinstance(sampler, WeightedRandomSampler) else sampler.data_source)
        if sampler.replacement or sampler.num_samples != known:
            raise DataError(
                f"The {what} loader has a {type(sampler).__name__} that draws {sampler.num_samples} of {known} samples"
                f"{' with replacement' if sampler.replacement else ''}. Every sample must count once: pass a loader "
                "without that sampler."
            )
    if isinstance(inner, BatchSampler) and inner.drop_last and isinstance(sampler, Sized):
        left = len(sampler) % inner.batch_size
        if left:
            raise DataError(
                f"The {what} loader leaves {left} of {len(sampler)} samples out (drop_last=True). Every sample must "
                "count once: pass a loader with drop_last=False."
            )


class Opened:
    """A share whose first batch was looked at: ``digest`` (None where there is none). It can be walked over once.

    ``taken`` counts the batches handed out, those before the start included.
    """

    def __init__(self, loader: Loader, what: str) -> None:
        if not isinstance(loader, Iterable):
            raise DataError(
                f"The {what} loader is a {type(loader).__name__}, which cannot be iterated. Pass a DataLoader."
            )
        self._loader = loader
        self._iterator = iter(loader)
        self._first = list(itertools.islice(self._iterator, 1))
        self.digest = digest_of(self._first[0]) if self._first else None
        self.taken = 0

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def skip(self, count: int) -> None:
        """Begin after so many batches."""
        picked = self._loader if isinstance(self._loader, Picked) else Picked(self._loader, 0)
        if count and picked.reads_only_its_own:
            self._iterator, self._first = iter(picked.after(count)), []
        elif count:
            self._iterator, self._first = itertools.islice(self._iterator, count - 1, None), []
        self.taken = count

    def __iter__(self) -> Iterator[Any]:
        for batch in itertools.chain(self._first, self._iterator):
            self.taken += 1
            yield batch


def digest_of(batch: Any) -> str:
    """A digest of every tensor in a batch: shapes, types and bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors_of(batch):
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()


def require_shares(share: Opened, what: str) -> None:
    """Refuse ranks that were given the same data.

    Raises:
        DataError: on every rank, if two shares begin with the same batch.
    """
    seen: dict[str, int] = {}
    for other, digest in enumerate(exchange(f"the {what} data", share.digest)):
        if digest is not None and seen.setdefault(digest, other) != other:
            raise DataError(
                f"The {what} loaders of ranks {seen[digest]} and {other} begin with the same batch. Every rank streams "
                "its own share: pass unweave.shard(loader), or a loader that differs by rank."
            )
