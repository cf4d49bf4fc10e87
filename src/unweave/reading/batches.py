"""What a loader yields and what a model returns, checked once at the door.

A batch is a pair ``(inputs, labels)``: inputs are a tensor, or a tuple, list or dict of tensors, with the samples along
the first axis; labels are integers [N]. A model returns logits [N, C], or an object or dict that has ``logits``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unweave.errors import DataError, ModelError
from unweave.memory import is_gpu_full

Inputs = Any
"""A tensor, or a tuple, list or dict of tensors."""

Loader = Iterable[Any]
"""Anything that yields ``(inputs, labels)``."""


def map_tensors(inputs: Inputs, fn: Callable[[Tensor], Tensor]) -> Inputs:
    """Apply a function to every tensor of an input, keeping its structure."""
    if isinstance(inputs, Tensor):
        return fn(inputs)
    if isinstance(inputs, Mapping):
        return {key: map_tensors(value, fn) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(map_tensors(value, fn) for value in inputs)
    return inputs


def copies_of_one(inputs: Inputs, count: int) -> Inputs:
    """The first sample so many times."""
    return map_tensors(inputs, lambda t: t[:1].repeat(count, *[1] * (t.dim() - 1)))


def tensors_of(inputs: Inputs) -> Iterator[Tensor]:
    """Every tensor of an input, in a fixed order."""
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, Mapping):
        for key in sorted(inputs, key=str):
            yield from tensors_of(inputs[key])
    elif isinstance(inputs, (tuple, list)):
        for value in inputs:
            yield from tensors_of(value)


class Doubts:
    """Checks of values, raised at once or, where asking would make the host wait for a GPU, once a pass is done.

    A GPU works through what it was given while the host goes on; reading one number from it waits for all of that.
    """

    def __init__(self, later: bool = False) -> None:
        self.later = later
        self.place = ""
        self._open: list[tuple[Tensor, Callable[[], Exception]]] = []

    def require(self, holds: Tensor, error: Callable[[], Exception]) -> None:
        """Raise the error unless the tensor (one truth value) is true; where the answer is on a GPU, in ``settle``.

        The error says at which batch of which loader, where that is known.
        """
        place = self.place
        if self.later:
            self._open.append((holds, lambda: _placed(error(), place)))
        else:
            _require(holds, lambda: _placed(error(), place))

    def settle(self) -> None:
        """Raise the first error that is open, if there is one."""
        opened, self._open = self._open, []
        if opened and not bool(torch.stack([holds for holds, _ in opened]).all()):
            for holds, error in opened:
                _require(holds, error)


def _require(holds: Tensor, error: Callable[[], Exception]) -> None:
    if not bool(holds):
        raise error()


def _placed(error: Exception, place: str) -> Exception:
    """The error with the place where it belongs, unless it says so itself."""
    return error if not place or place in str(error) else type(error)(f"In {place}: {error}")


def checked(
    loader: Loader,
    what: str,
    device: torch.device | None = None,
    doubts: Doubts | None = None,
    *,
    may_be_empty: bool = False,
) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield the batches of a loader, each checked and moved to the device.

    Raises:
        DataError: not iterable, empty, a batch that is no pair, labels that are not integers [N], inputs of another
            length than the labels, or values that are not finite (those may wait in ``doubts``).
    """
    doubts = Doubts() if doubts is None else doubts
    # A copy to a GPU need not be waited for, where the loader pins its memory; a copy from a GPU must be.
    ahead = device is not None and device.type == "cuda"
    if not isinstance(loader, Iterable):
        raise DataError(f"The {what} loader is a {type(loader).__name__}, which cannot be iterated. Pass a DataLoader.")
    if isinstance(loader, (tuple, list)) and [isinstance(part, Tensor) for part in loader] == [True, True]:
        raise DataError(
            f"The {what} loader is a pair of tensors, and should yield such pairs. Wrap it: [(x, y)] for one batch, or "
            "DataLoader(TensorDataset(x, y), batch_size=256)."
        )
    count = 0
    for index, batch in enumerate(loader):
        doubts.place = f"batch {index} of the {what} loader"
        inputs, labels = _check_batch(batch, doubts.place)
        count += len(labels)
        if len(labels):
            moved = map_tensors(inputs, lambda t: _ordinary(t.to(device, non_blocking=ahead)))
            _check_values(moved, doubts)
            yield moved, _ordinary(labels.to(device, non_blocking=ahead))
    if count == 0 and not may_be_empty:
        raise DataError(f"The {what} loader is empty. Pass a loader with at least one sample; a generator runs once.")


def _ordinary(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it was made in inference mode: no backward pass may keep one of those."""
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor


def _as_a_pair(batch: Any) -> str:
    """The way to make one of what other loops are fed with, if it is known."""
    if isinstance(batch, Mapping) and "labels" in batch:
        return " Of this dict: [({k: v for k, v in b.items() if k != 'labels'}, b['labels']) for b in loader]."
    if isinstance(batch, (tuple, list)) and len(batch) > 2:
        return " Inputs are one thing, as in ((ids, mask), labels): [(tuple(b[:-1]), b[-1]) for b in loader]."
    return ""


def _check_batch(batch: Any, where: str) -> tuple[Inputs, Tensor]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        got = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, (tuple, list)) else type(batch).__name__
        raise DataError(f"Invalid {where}: {got}. Supported: a pair (inputs, labels).{_as_a_pair(batch)}")
    inputs, labels = batch
    try:
        labels = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"Invalid labels in {where}: {type(labels).__name__} ({error}). Supported: integer class indices [N]."
        ) from error
    problem = why_not_indices(labels)
    if problem is not None:
        raise DataError(f"Invalid labels in {where}: {problem}")
    tensors = list(tensors_of(inputs))
    if not tensors:
        raise DataError(f"Invalid inputs in {where}: {type(inputs).__name__} holds no tensor. Use torch.as_tensor.")
    for tensor in tensors:
        if tensor.dim() == 0 or len(tensor) != len(labels):
            raise DataError(
                f"Invalid {where}: inputs of shape {list(tensor.shape)} with {len(labels)} labels. "
                "The samples go along the first axis of every input."
            )
    return inputs, labels.long()


def why_not_indices(labels: Tensor) -> str | None:
    """What labels are and what to do about it, for a message; None where they are integer class indices [N]."""
    if labels.dim() == 1 and _are_integers(labels):
        return None
    found = f"{labels.dtype} of shape {list(labels.shape)}"
    return f"{found}. Supported: integer class indices of shape [N]; {_way_to_indices(labels)}."


def _are_integers(labels: Tensor) -> bool:
    return not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)


def _way_to_indices(labels: Tensor) -> str:
    """How labels become class indices, where they mean one class a sample; else that they are not supported.

    A remedy that does not fit would end in a run with wrong labels and without an error.
    """
    column = labels.dim() == 2 and labels.shape[1] == 1
    if labels.dim() == 1 or column:
        if not _are_whole(labels):
            return "values that are no whole numbers are no classes, and not supported"
        return f"pass labels{'.squeeze(1)' if column else ''}{'' if _are_integers(labels) else '.long()'}"
    if labels.dim() == 2 and _are_one_hot(labels):
        integers = "labels.int()" if labels.dtype == torch.bool else "labels"  # argmax takes no truth values
        return f"each row here has exactly one 1: if it is so for all samples, pass {integers}.argmax(1)"
    if labels.dim() == 2:
        return "several classes a sample and shares of classes (multi-label, soft labels) are not supported"
    if labels.dim() == 0:
        return "a loader yields batches, not single samples"
    return "one class a sample; classes of pixels or words are not supported"


def _are_whole(labels: Tensor) -> bool:
    if labels.is_complex():
        return False
    values = labels.double()
    return bool((torch.isfinite(values) & (values == values.round())).all())


def _are_one_hot(labels: Tensor) -> bool:
    """Whether every row [C] is a single 1 and otherwise 0."""
    return bool((((labels == 0) | (labels == 1)).all(1) & ((labels == 1).sum(1) == 1)).all())


def _check_values(inputs: Inputs, doubts: Doubts) -> None:
    where = doubts.place
    for tensor in tensors_of(inputs):
        if tensor.is_floating_point():
            fine = torch.isfinite(tensor).reshape(len(tensor), -1).all(1)  # what waits to be asked should not be large
            doubts.require(fine.all(), partial(_not_finite, where, fine))


def _not_finite(where: str, fine: Tensor) -> DataError:
    return DataError(
        f"Invalid inputs in {where}: NaN or infinite values {_where_not(fine)}. Clean or drop those samples."
    )


def _where_not(fine: Tensor) -> str:
    """In words, which samples of a batch are not, by truth values [N]."""
    first, count = int((~fine).nonzero()[0]), int((~fine).sum())
    return f"in its sample {first}" if count == 1 else f"in {count} of its samples, the first of which is {first}"


def logits_of(model: nn.Module, inputs: Inputs, labels: Tensor, doubts: Doubts | None = None) -> Tensor:
    """Run the model on one batch and return its logits [N, C].

    Raises:
        ModelError: the output is not [N, C] of finite floating-point numbers with C >= 2, or is probabilities.
        DataError: a label outside 0 … C − 1. What concerns values may wait in ``doubts``.
    """
    doubts = Doubts() if doubts is None else doubts
    logits = run(model, inputs)
    require_logits(logits, labels, doubts)
    doubts.require(
        torch.isfinite(logits).all(),
        lambda: ModelError("The model's logits are NaN or infinite on finite inputs. Check its weights and its dtype."),
    )
    doubts.require(
        ~_are_probabilities(logits),
        lambda: ModelError(
            "The model returns probabilities: no output is below 0 and every row adds up to 1. Margins and losses need "
            "logits; pass the model without its last softmax or sigmoid."
        ),
    )
    return logits


def require_logits(outputs: Tensor, labels: Tensor, doubts: Doubts) -> None:
    """See that outputs are logits [N, C] for labels [N] that are classes of them.

    Raises:
        ModelError: not [N, C] of floating-point numbers with C >= 2.
        DataError: a label outside 0 … C − 1; it may wait in ``doubts``.
    """
    shape, count = list(outputs.shape), len(labels)
    if len(shape) != 2 or shape[0] != count or shape[1] < 2 or not outputs.is_floating_point():
        way = "wrap a model that returns something else"
        if shape in ([count], [count, 1]) and outputs.is_floating_point():
            join = "stack" if len(shape) == 1 else "cat"
            way = f"where it is one logit z (before any sigmoid), return torch.{join}([torch.zeros_like(z), z], 1)"
        raise ModelError(
            f"The model returned {outputs.dtype} of shape {shape} for {count} samples. Supported: logits [N, C] with "
            f"C >= 2; {way}."
        )
    low, high = labels.aminmax()
    fine = (labels >= 0) & (labels < shape[1])
    doubts.require(
        fine.all(),
        lambda: DataError(
            f"Labels from {int(low)} to {int(high)} with {shape[1]} classes, wrong ones {_where_not(fine)}. "
            "Supported: 0 to C - 1."
        ),
    )


def _are_probabilities(outputs: Tensor) -> Tensor:
    """Whether every row is a distribution, which no logits are but by a very unlikely chance; one truth value."""
    off = 1e-2 if outputs.dtype in (torch.bfloat16, torch.half) else 1e-4
    return (outputs >= 0).all() & ((outputs.sum(1) - 1).abs() <= off).all()


def run(model: nn.Module, inputs: Inputs) -> Tensor:
    """Call the model as its inputs ask for: ``model(x)``, ``model(*xs)`` or ``model(**named)``.

    Raises:
        ModelError: the model fails on these inputs (its own error is the cause), or returns no tensor.
    """
    try:
        if isinstance(inputs, Mapping):
            output = model(**inputs)
        elif isinstance(inputs, (tuple, list)):
            output = model(*inputs)
        else:
            output = model(inputs)
    except (RuntimeError, TypeError) as error:
        if is_gpu_full(error):
            raise
        given = ", ".join(f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in tensors_of(inputs))
        called = {True: "model(**inputs)", False: "model(*inputs)"}[isinstance(inputs, Mapping)]
        called = "model(inputs)" if isinstance(inputs, Tensor) else called
        raise ModelError(
            f"The model failed on inputs {given}, called as {called}: {str(error).rstrip('.')}. Feed it what it was "
            "trained on, or wrap it so that it can be called this way."
        ) from error
    logits = logits_in(output)
    if not isinstance(logits, Tensor):
        raise ModelError(
            f"The model returned a {type(output).__name__}, not logits. Wrap it so that it returns a tensor [N, C], or "
            "an object or a dict that has one as 'logits'."
        )
    return logits


def logits_in(output: Any) -> Any:
    """The logits in what a model returned: its ``.logits``, its ``["logits"]``, or else the output itself."""
    found = getattr(output, "logits", output)
    return found.get("logits", found) if isinstance(found, Mapping) else found


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter is; its inputs go there."""
    for parameter in model.parameters():
        return parameter.device
    raise ModelError(f"{type(model).__name__} has no parameters, so there is nothing it could have learnt.")


def reusable(loader: Loader) -> Loader:
    """A loader that can be walked over more than once: itself, or a list of what a generator yields."""
    return list(loader) if isinstance(loader, Iterator) else loader
