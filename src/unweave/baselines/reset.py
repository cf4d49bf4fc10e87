"""Give modules the weights and running statistics that they had before any training."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from unweave.baselines.training import seeded
from unweave.errors import ModelError


def reset(modules: Mapping[str, nn.Module], seed: int, device: torch.device) -> None:
    """Call ``reset_parameters()`` of every module that has weights of its own, children first.

    That of a batch norm resets its running statistics too. Buffers of modules that cannot be reset are taken for
    constants.

    Raises:
        ModelError: a module with weights that has no ``reset_parameters()``, or one that leaves some of them.
    """
    with seeded(seed, device), torch.no_grad():
        for name, module in reversed(list(modules.items())):
            own = dict(module.named_parameters(recurse=False))
            how = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if how is None:
                if own:
                    raise ModelError(_message(name, module, "has no reset_parameters()"))
                continue
            # What a reset leaves out (a weight that is computed from others, say) would keep what it has learnt.
            for weight in own.values():
                weight.fill_(float("nan"))
            how()
            left = [key for key, weight in own.items() if not bool(torch.isfinite(weight).all())]
            if left:
                raise ModelError(_message(name, module, f"does not reset its {', '.join(left)}"))


def _message(name: str, module: nn.Module, what: str) -> str:
    return (
        f"Module {name!r} ({type(module).__name__}) {what}, so the network cannot be started afresh. Give it a "
        "reset_parameters() that does, or use retrain(..., build=) with a function that returns a new network."
    )
