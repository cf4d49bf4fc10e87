"""Whether a sample is the same each time it is read and in every batch, as it must be where Grams are subtracted."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from unweave.errors import ConfigError, UnweaveWarning
from unweave.ranks.shard import Picked, by_batches, digest_of
from unweave.reading.batches import Inputs, Loader, map_tensors, run, tensors_of

STEADY_SAMPLES = 64
"""How few samples must still be rounded as they are in a full batch."""

READ_TWICE = 3
"""So many samples of a training set are read twice before the pass …"""

READING_SECONDS = 2.0
"""… or fewer, where that takes so long."""


def require_steady(net: nn.Module, inputs: Inputs) -> None:
    """Refuse TF32 where a sample's outputs depend on its batch: what a request subtracts would not be what was added.

    Kernels are chosen by the shape of a batch, and another kernel rounds otherwise. (A batch of a few samples may well
    be rounded otherwise; those few weigh too little to matter.)
    """
    samples = next(tensors_of(inputs))
    if samples.device.type != "cuda":
        raise ConfigError("tf32=True is for a model on a GPU; this one is on the CPU. Leave tf32 out.")
    whole = run(net, inputs)
    for count in (max(1, len(samples) // 2), min(len(samples), STEADY_SAMPLES)):  # as many on every rank
        require_same_outputs(net, inputs, whole, count)


def require_same_outputs(net: nn.Module, inputs: Inputs, whole: Tensor, count: int) -> None:
    """Refuse a model whose outputs on the last samples of a batch are others when these are run alone."""
    part = run(net, map_tensors(inputs, lambda t: t[-count:]))
    if not torch.equal(part, whole[-count:]):
        off = ((part - whole[-count:]).abs().max() / whole.abs().max()).item()
        raise ConfigError(
            f"tf32=True: on this GPU the outputs of {count} samples differ by {off:.0e} when they are run without the "
            f"other {len(whole) - count} of their batch, so subtracting would not be exact. Leave tf32 out."
        )


class Shapes:
    """The shapes that inputs come in: those of the first batch of several samples, and of the first unlike it."""

    def __init__(self) -> None:
        self._first: list[torch.Size] = []
        self._other: list[torch.Size] = []

    def note(self, inputs: Inputs) -> None:
        """Look at a batch; one with a single sample has nothing to pad it to."""
        shapes = [] if self._other else [tensor.shape for tensor in tensors_of(inputs)]
        if not shapes or shapes[0][0] < 2:
            return
        self._first = self._first or shapes
        if [shape[1:] for shape in shapes] != [shape[1:] for shape in self._first]:
            self._other = shapes

    def warn(self) -> None:
        """Warn where the samples of one batch were of another shape than those of another."""
        for here, there in zip(self._first, self._other, strict=False):
            if here[1:] != there[1:]:
                warnings.warn(
                    f"batches came in different shapes (e.g. {list(here)} and {list(there)}): if samples are padded to "
                    "the longest of their batch, what one adds depends on its batch. Pad to one length.",
                    UnweaveWarning,
                    stacklevel=2,
                )
                return


def warn_of_augmentation(loader: Loader) -> bool:
    """Warn where one of the first samples of a DataLoader is another when it is read again; whether that is so.

    Of what cannot be read by position nothing is known: a stream, or a data set that raises.
    """
    changed = sample_that_changes(loader)
    if changed is not None:
        warnings.warn(
            f"the training set gives sample {changed} otherwise each time it is read (random augmentation?): what a "
            "request subtracts would not be what was added. Fit without it.",
            UnweaveWarning,
            stacklevel=4,  # the caller of fit(), and that is by_itself's
        )
    return changed is not None


def sample_that_changes(loader: Loader) -> int | None:
    """The position of the first sample that two reads tell apart; None where there is none, or nobody can tell."""
    while isinstance(loader, Picked):
        loader = loader.loader
    if not isinstance(loader, DataLoader) or not by_batches(loader):
        return None
    began = time.perf_counter()
    try:
        with _random_state_kept():
            count = min(len(loader.dataset), READ_TWICE)  # type: ignore[arg-type]
            batches = iter(_one_by_one(loader, [[i] for i in range(count) for _ in range(2)]))
            for i in range(count):
                if digest_of(next(batches)) != digest_of(next(batches)):
                    return i
                if time.perf_counter() - began > READING_SECONDS:
                    break
    except Exception:  # a data set may raise anything; what matters is raised again in the pass, with its batch
        return None
    return None


def _one_by_one(loader: DataLoader[Any], chosen: list[list[int]]) -> DataLoader[Any]:
    """A DataLoader of some samples, each read as another one would: by a process of its own, if that has such.

    A data set may open a file with its first sample, which processes that are forked afterwards must not share.
    """
    return DataLoader(
        loader.dataset,
        batch_sampler=chosen,
        num_workers=min(1, loader.num_workers),
        collate_fn=loader.collate_fn,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Whatever is drawn inside, the random numbers of PyTorch, NumPy and Python go on as if it had not been."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
