"""Give modules the weights and running statistics that they had before any training."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from unweave.baselines.preparation import seeded
from unweave.errors import ModelError


def reset(modules: Mapping[str, nn.Module], seed: int, device: torch.device) -> None:
    """Call ``reset_parameters()`` of every module that has one, children before their parents.

    That of a batch norm resets its running statistics too. Buffers of modules that cannot be reset are taken for
    constants. Weights that require no gradient were not trained and will not be: they stay, and a module that has no
    others stays as a whole.

    Raises:
        ModelError: a weight that no ``reset_parameters()`` reaches, which would keep what it has learnt.
    """
    every = {name: dict(module.named_parameters(recurse=False)) for name, module in modules.items()}
    weights = {name: {key: p for key, p in own.items() if p.requires_grad} for name, own in every.items()}
    frozen = [(p, p.detach().clone()) for own in every.values() for p in own.values() if not p.requires_grad]
    with seeded(seed, device), torch.no_grad():
        for own in weights.values():
            for weight in own.values():
                weight.fill_(float("nan"))  # whatever still is so afterwards was not reset
        for name, module in reversed(list(modules.items())):
            how = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if how is not None and (weights[name] or not every[name]):
                how()
        for weight, value in frozen:
            weight.copy_(value)
    for name, own in weights.items():
        left = [key for key, weight in own.items() if not bool(torch.isfinite(weight).all())]
        if left:
            raise ModelError(
                f"No reset_parameters() resets {', '.join(left)} of {name!r} ({type(modules[name]).__name__}), so the "
                "network cannot be started afresh. Give that type a reset_parameters(), or use retrain(..., build=) "
                "with a function that returns a new network."
            )
