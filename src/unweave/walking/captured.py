"""A step of a walk as a CUDA graph: recorded once for a shape of batch, and replayed without the host's help.

A step of a small network is a few hundred kernels of some microseconds; starting them one by one takes the host several
times as long as the GPU needs to run them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from unweave.errors import ModelError
from unweave.reading.batches import Inputs, map_tensors, tensors_of

Step = Callable[[Inputs, Tensor, Tensor], Tensor]
"""Takes a step on (inputs, labels, positions) and returns what is to be reported; changes tensors in place only."""

EAGER = 2
"""Steps of a shape that are taken one kernel at a time first: they choose algorithms and make every buffer there is."""


class Captured:
    """Steps that are captured once they were taken a few times; where that is not possible they go on as they were."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._taken: dict[object, int] = {}
        self._graphs: dict[object, _Recording | None] = {}

    def __call__(self, inputs: Inputs, labels: Tensor, positions: Tensor) -> Tensor:
        if not labels.is_cuda:
            return self.step(inputs, labels, positions)
        shape = tuple((tuple(t.shape), t.dtype) for t in (*tensors_of(inputs), labels))
        if shape not in self._graphs:
            self._taken[shape] = self._taken.get(shape, 0) + 1
            if self._taken[shape] <= EAGER:
                return self.step(inputs, labels, positions)
            self._graphs[shape] = _Recording.of(self.step, inputs, labels, positions)
        graph = self._graphs[shape]
        return self.step(inputs, labels, positions) if graph is None else graph.replay(inputs, labels, positions)


class _Recording:
    """One captured step and the places its batch is copied to."""

    def __init__(self, inputs: Inputs, labels: Tensor, positions: Tensor) -> None:
        self.inputs = map_tensors(inputs, torch.clone)
        self.labels, self.positions = labels.clone(), positions.clone()
        self.graph = torch.cuda.CUDAGraph()
        self.report = torch.empty(0)

    @classmethod
    def of(cls, step: Step, inputs: Inputs, labels: Tensor, positions: Tensor) -> _Recording | None:
        """Record a step without taking it; None where the model does what cannot be recorded, as reading a value."""
        made = cls(inputs, labels, positions)
        device = labels.device
        stream = torch.cuda.current_stream(device)
        torch.cuda.synchronize(device)
        try:
            # Of the current GPU, that is: what runs on another would be taken now, and never again.
            with torch.cuda.device(device), torch.cuda.graph(made.graph, stream=_stream_for(device)):
                made.report = step(made.inputs, made.labels, made.positions)
        except (RuntimeError, ModelError):  # the second is what run() makes of the first
            torch.cuda.set_stream(stream)  # a recording that fails may leave the process on its own
            torch.cuda.synchronize(device)
            return None
        return made

    def replay(self, inputs: Inputs, labels: Tensor, positions: Tensor) -> Tensor:
        for here, given in zip(tensors_of(self.inputs), tensors_of(inputs), strict=True):
            here.copy_(given)
        self.labels.copy_(labels)
        self.positions.copy_(positions)
        self.graph.replay()
        return self.report.clone()


@functools.cache
def _stream_for(device: torch.device) -> torch.cuda.Stream:
    """The stream that steps are recorded on. One for a GPU: cuBLAS keeps a workspace for every stream it has seen."""
    return torch.cuda.Stream(device)
