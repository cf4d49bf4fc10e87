"""Samples in a fixed order, whatever they come from: walk over all of them, or only over some positions.

Every source yields batches ``(inputs, labels)`` and never shuffles: a position must mean the same sample every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from unweave.errors import DataError
from unweave.reading.batches import Loader, checked, map_tensors, reusable, why_not_indices


class Source(Protocol):
    """Samples in a fixed order."""

    what: str
    """What the user called it, for messages."""
    names: Sequence[str] | None
    """The file names of the samples, where they have such."""
    class_names: Sequence[str] | None
    """The names of the classes, where they have such."""

    @property
    def size(self) -> int | None:
        """How many samples; None where that is known only at the end."""

    @property
    def rows(self) -> int | None:
        """How many of them :meth:`loader` yields; None where that is known only at the end."""

    def loader(self) -> Loader:
        """All samples in batches."""

    def labels(self) -> Tensor:
        """The label of every sample, [N]."""

    def only(self, positions: Sequence[int]) -> Loader:
        """The samples at some positions in batches; raises DataError where one is not there."""


class Slices:
    """Batches cut from a pair of tensors."""

    def __init__(self, inputs: Tensor, labels: Tensor, batch_size: int) -> None:
        self.inputs, self.targets, self.batch_size = inputs, labels, batch_size

    def __len__(self) -> int:
        return -(-len(self.targets) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.inputs.split(self.batch_size), self.targets.split(self.batch_size), strict=True)


class TensorSource:
    """A pair of tensors held in memory."""

    names: Sequence[str] | None = None
    class_names: Sequence[str] | None = None

    def __init__(self, what: str, inputs: Tensor, labels: Tensor, batch_size: int) -> None:
        problem = why_not_indices(labels)
        if problem is not None:
            raise DataError(f"{what}: invalid labels, {problem}")
        if inputs.dim() == 0 or len(inputs) != len(labels) or len(labels) == 0:
            raise DataError(
                f"{what}: inputs of shape {list(inputs.shape)} with {len(labels)} labels. Supported: as many inputs as "
                "labels, at least one, with the samples along the first axis."
            )
        self.what, self._inputs, self._labels, self._batch_size = what, inputs, labels.long(), batch_size

    @property
    def size(self) -> int:
        return len(self._labels)

    @property
    def rows(self) -> int:
        return self.size

    def loader(self) -> Loader:
        return Slices(self._inputs, self._labels, self._batch_size)

    def labels(self) -> Tensor:
        return self._labels

    def only(self, positions: Sequence[int]) -> Loader:
        chosen = torch.tensor(positions)
        return Slices(self._inputs[chosen], self._labels[chosen], self._batch_size)


class DatasetSource:
    """A map-style data set; positions are its indices. ``whole`` is the user's own loader over it, if there is one."""

    def __init__(
        self,
        what: str,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        whole: Loader | None = None,
        labels: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.what, self.names, self.class_names = what, names, class_names
        self._dataset, self._batch_size, self._collate = dataset, batch_size, collate
        self._whole, self._labels = whole, labels
        if self.size == 0:
            raise DataError(f"{what} is an empty data set. Supported: at least one sample.")

    @property
    def size(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    @property
    def rows(self) -> int | None:
        if not isinstance(self._whole, DataLoader):
            return self.size
        plain = self._whole.batch_size is not None and not self._whole.drop_last  # else a sampler of batches decides
        return len(self._whole.sampler) if plain and isinstance(self._whole.sampler, Sized) else None

    def loader(self) -> Loader:
        return self._whole if self._whole is not None else self._batches(self._dataset)

    def labels(self) -> Tensor:
        if self._labels is not None:
            return torch.tensor(self._labels)
        return torch.cat([labels for _, labels in checked(self._batches(self._dataset), self.what)])

    def only(self, positions: Sequence[int]) -> Loader:
        return self._batches(Subset(self._dataset, list(positions)))

    def _batches(self, dataset: Dataset[Any]) -> Loader:
        return DataLoader(dataset, self._batch_size, shuffle=False, collate_fn=self._collate)


class StreamSource:
    """Anything else that yields batches; positions count its samples in the order they come."""

    names: Sequence[str] | None = None
    class_names: Sequence[str] | None = None
    size = None
    rows = None

    def __init__(self, what: str, batches: Iterable[Any]) -> None:
        self.what, self._batches = what, batches

    def loader(self) -> Loader:
        return self._batches

    def labels(self) -> Tensor:
        return torch.cat([labels for _, labels in self._walk()])

    def only(self, positions: Sequence[int]) -> Loader:
        wanted, chosen, count = torch.tensor(sorted(positions)), [], 0
        for inputs, labels in self._walk():
            here = wanted[(wanted >= count) & (wanted < count + len(labels))] - count
            if len(here):
                chosen.append((map_tensors(inputs, lambda t, here=here: t[here]), labels[here]))  # type: ignore[misc]
            count += len(labels)
        if int(wanted[-1]) >= count:
            raise DataError(f"Id {int(wanted[-1])} is out of range: {self.what} has the samples 0 to {count - 1}.")
        return chosen

    def _walk(self) -> Iterator[tuple[Any, Tensor]]:
        self._batches = reusable(self._batches)
        return checked(self._batches, self.what)
