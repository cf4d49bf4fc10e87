"""Samples: a small set, as the one to be forgotten, held on one device and walked over many times."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from torch import Tensor

from unweave.reading.batches import Inputs, Loader, checked, map_tensors, tensors_of

LOOK_ELEMENTS = 1 << 24
"""How many numbers of inputs a GPU looks at together, where nothing has to be kept for a backward pass."""

DIGESTED = 64
"""Samples that a thread digests at a time."""


LISTED = 10
"""How many positions a message lists."""


def listed(positions: Sequence[int]) -> str:
    """Which samples of a request are meant, in words."""
    shown = ", ".join(map(str, positions[:LISTED])) + (", …" if len(positions) > LISTED else "")
    return f"in the order of the loader, from 0: {shown}"


class Samples:
    """A small set of samples held in memory on one device, to be walked over many times.

    Batches whose tensors have equal shapes beyond the first axis are joined, so that any batch size and order can be
    had; batches of varying width (padded text) stay as the loader made them.
    """

    def __init__(self, batches: list[tuple[Inputs, Tensor]]) -> None:
        self.labels = torch.cat([labels for _, labels in batches])
        shapes = {tuple((t.shape[1:], t.dtype) for t in tensors_of(inputs)) for inputs, _ in batches}
        self._joined = _join([inputs for inputs, _ in batches]) if len(shapes) == 1 else None
        self._batches = batches if self._joined is None else [(self._joined, self.labels)]  # held once

    @staticmethod
    def load(loader: Loader, what: str, device: torch.device) -> Samples:
        """Read a whole loader, checked."""
        return Samples(list(checked(loader, what, device)))

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[tuple[Inputs, Tensor, Tensor]]:
        """Yield (inputs, labels, positions in the set), in order, or shuffled by a generator."""
        device = self.labels.device
        if self._joined is None:
            yield from self._ragged(generator)
            return
        order = torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
        for chosen in order.to(device).split(size):
            yield map_tensors(self._joined, lambda t, chosen=chosen: t[chosen]), self.labels[chosen], chosen  # type: ignore[misc]

    def _ragged(self, generator: torch.Generator | None) -> Iterator[tuple[Inputs, Tensor, Tensor]]:
        starts = [0]
        for _, labels in self._batches:
            starts.append(starts[-1] + len(labels))
        count = len(self._batches)
        order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
        for i in order.tolist():
            inputs, labels = self._batches[i]
            yield inputs, labels, torch.arange(starts[i], starts[i + 1], device=labels.device)

    def look_size(self, size: int) -> int:
        """How many samples to look at together: on a GPU more than in a step, as long as the inputs stay small.

        Not where they are ids, which say nothing of how large what is made of them will be.
        """
        if self._joined is None or self.labels.device.type == "cpu":
            return size
        if not all(t.is_floating_point() for t in tensors_of(self._joined)):
            return size
        each = sum(t.numel() for t in tensors_of(self._joined)) // len(self)
        return max(size, LOOK_ELEMENTS // max(each, 1))

    def pairs(self, size: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield (inputs, labels) in order: a loader of this set."""
        return ((inputs, labels) for inputs, labels, _ in self.batches(size))

    def apart(self, count: int) -> tuple[Samples, Tensor]:
        """At most so many of them, as far from each other as can be, and their positions."""
        positions = torch.arange(0, len(self), -(-len(self) // count), device=self.labels.device)
        parts, start = list[tuple[Inputs, Tensor]](), 0
        for inputs, labels in self._batches:
            own = positions[(positions >= start) & (positions < start + len(labels))] - start
            if len(own):
                parts.append((map_tensors(inputs, lambda t, own=own: t[own]), labels[own]))  # type: ignore[misc]
            start += len(labels)
        return Samples(parts), positions

    def digests(self, key: str) -> tuple[str, ...]:
        """A digest of each sample under a key: the same for the same inputs and label, wherever they stand."""
        found: list[str] = []
        with ThreadPoolExecutor() as threads:  # hashing large samples leaves the interpreter free
            for inputs, labels in self._batches:
                columns = [_bytes_by_row(t) for t in (*tensors_of(inputs), labels)]
                some = [range(i, min(i + DIGESTED, len(labels))) for i in range(0, len(labels), DIGESTED)]
                for part in threads.map(partial(_digests, key.encode()[:64], columns), some):
                    found += part
        return tuple(found)


def _digests(key: bytes, columns: Sequence[tuple[bytes, np.ndarray]], rows: range) -> list[str]:
    """The digests of some rows of columns, each with what it is."""
    found = []
    for i in rows:
        sample = hashlib.blake2b(key=key, digest_size=16)
        for kind, content in columns:
            sample.update(kind)
            sample.update(content[i])
        found.append(sample.hexdigest())
    return found


def _bytes_by_row(values: Tensor) -> tuple[bytes, np.ndarray]:
    """What each row of a tensor [N, …] is (shape and type), and the bytes of all of them, uint8 [N, bytes]."""
    rows = values.detach().cpu().contiguous()
    kind = f"{tuple(rows.shape[1:])}{rows.dtype}".encode()
    flat = rows[:, None] if rows.dim() == 1 else rows.flatten(1)
    return kind, flat.view(torch.uint8).numpy()


def _join(parts: list[Inputs]) -> Inputs:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, Mapping):
        return {key: _join([part[key] for part in parts]) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(_join([part[i] for part in parts]) for i in range(len(first)))
    return first
