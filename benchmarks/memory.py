"""How much memory a piece of work takes at its peak, beyond what was there before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tracing(TorchDispatchMode):
    """Follows every storage that an operator returns for as long as it lives; ``peak`` is the most bytes at once.

    What an operator allocates and frees inside itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch has no types for it
        self.peak = 0
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            pointer = tensor.untyped_storage().data_ptr()
            if pointer not in self.live:
                self.known.add(pointer)  # there before the work began
        result = func(*args, **(kwargs or {}))
        self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.known:
                self.live[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def peak_bytes(work: Callable[[], Any], device: str) -> int:
    """The most bytes that were held at once during the work; on the CPU by tracing, on a GPU by its allocator."""
    if device == "cpu":
        tracing = Tracing()
        with tracing:
            work()
        return tracing.peak
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
