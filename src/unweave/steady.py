"""Whether a sample's outputs depend on the batch it comes in, which they must not where Grams are to be subtracted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unweave.batches import Inputs, map_tensors, run, tensors_of
from unweave.errors import ConfigError

STEADY_SAMPLES = 64
"""How few samples must still be rounded as they are in a full batch."""


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
