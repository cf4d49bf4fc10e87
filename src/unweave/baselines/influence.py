"""The step of an influence function on a network: summed gradients, Hessian products, and the loop over steps.

Gradients and products are sums over samples, in float64, as dicts by parameter name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from unweave.baselines.contract import BaselineResult
from unweave.baselines.lissa import Change
from unweave.baselines.one_step import LOOK, look, moved
from unweave.baselines.preparation import again, needed, trainable, untouched
from unweave.errors import DataError, LayerError
from unweave.fit import Progress
from unweave.gradients.per_sample import at_most
from unweave.layers import find_layers
from unweave.reading.batches import Inputs, Loader, device_of, logits_of, tensors_of
from unweave.reading.rest import at_rest, duplicate, only_moving
from unweave.reading.samples import Samples

Moving = dict[str, nn.Parameter]
Direction = Callable[[nn.Module, Moving, int], tuple[Change, str | None]]
"""(net, what may move, step) → what to subtract, or why that cannot be."""


class Steps(Protocol):
    """The settings that the loop reads."""

    @property
    def steps(self) -> int: ...
    @property
    def layers(self) -> Sequence[str] | int | None: ...


def gradient(net: nn.Module, moving: Mapping[str, nn.Parameter], samples: Samples, size: int) -> Change:
    """Σ ∇L over the samples, float64. Call it inside ``at_rest(net, gradients=True)``."""
    total = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in moving.items()}
    for inputs, labels, _ in at_most(samples, size):
        loss = F.cross_entropy(logits_of(net, inputs, labels), labels, reduction="sum")
        found = torch.autograd.grad(loss, list(moving.values()), materialize_grads=True)
        for name, part in zip(moving, found, strict=True):
            total[name] += part
    return total


def hessian_product(
    net: nn.Module, moving: Mapping[str, nn.Parameter], inputs: Inputs, labels: Tensor, u: Change
) -> Change:
    """H u for the Hessian H of the batch's summed loss, float64: the gradient of ⟨∇L, u⟩."""
    weights = list(moving.values())
    with sdpa_kernel(SDPBackend.MATH):  # the only attention with a second derivative
        loss = F.cross_entropy(logits_of(net, inputs, labels), labels, reduction="sum")
        slopes = torch.autograd.grad(loss, weights, create_graph=True, materialize_grads=True)
        inner = sum((slope * u[name].to(slope.dtype)).sum() for name, slope in zip(moving, slopes, strict=True))
        assert isinstance(inner, Tensor)
        found = torch.autograd.grad(inner, weights, materialize_grads=True)
    return {name: part.double() for name, part in zip(moving, found, strict=True)}


def chosen(net: nn.Module, layers: Sequence[str] | int | None) -> Moving:
    """The parameters that may move, by the rule of ``FirstOrderConfig``.

    Raises:
        LayerError: an unknown layer, none at all, or k < 1.
    """
    every = trainable(net)
    if layers is None:
        return every
    found = find_layers(net, layers)
    owners = {owner for layer in found.values() for owner in layer.owners}
    own = [name for name in every if name.rpartition(".")[0] in owners]
    if isinstance(layers, int) and own:
        names = list(every)
        own = names[names.index(own[0]) :]
    if not own:
        raise LayerError(f"No parameter of {', '.join(found)} requires gradients. Choose other layers=.")
    return {name: every[name] for name in own}


class Correction:
    """What both orders share: the samples, the difference of gradients, and the loop over steps."""

    def __init__(
        self, model: nn.Module, forget: Loader, correct: Loader | None, val: Loader | None, method: str
    ) -> None:
        self.began = time.perf_counter()
        self.method = method
        self.original = untouched(model)
        device = device_of(self.original)
        self.forget = Samples.load(needed(forget, "forget", method), "forget", device)
        self.correct = None if correct is None else Samples.load(correct, "true_labels", device)
        self.val = again(val)
        if self.correct is not None:
            require_same_inputs(self.forget, self.correct)

    def difference(self, net: nn.Module, moving: Moving, size: int) -> Change:
        """v = Σ ∇L(z̃) − Σ ∇L(z), or −Σ ∇L(z)."""
        away = gradient(net, moving, self.forget, size)
        towards = None if self.correct is None else gradient(net, moving, self.correct, size)
        return {name: (0 if towards is None else towards[name]) - part for name, part in away.items()}

    def run(
        self,
        config: Steps,
        direction: Direction,
        progress: Progress | None,
        extras: dict[str, Any] | None = None,
    ) -> BaselineResult:
        """Take the steps; one that cannot be taken gives the weights back as they were, with ``ok=False``."""
        net = duplicate(self.original)
        moving = chosen(net, config.layers)
        watched = list(self.forget.pairs(LOOK))
        history = [look(net, 0, watched, self.val)]
        failed = None
        for step in range(config.steps):
            with at_rest(net, gradients=True), only_moving(net, moving.values()):
                change, failed = direction(net, moving, step)
            seen = None
            if failed is None:
                seen = moved(net, {name: -part for name, part in change.items()}, step + 1, watched, self.val)
            if seen is None:
                failed = failed or f"weights or outputs were not finite after step {step + 1}; take smaller steps"
                net = duplicate(self.original)
                break
            history.append(seen)
            if progress is not None:
                progress(self.method, step + 1, config.steps)
        return BaselineResult(
            model=net.eval(),
            history=history,
            stopped=f"{config.steps} step{'s' * (config.steps > 1)} done" if failed is None else failed,
            ok=failed is None,
            config=config,
            seconds=time.perf_counter() - self.began,
            extras={
                "moved": list(moving),
                "task": "removal" if self.correct is None else "correction",
                **(extras or {}),
            },
        )


def require_same_inputs(forget: Samples, correct: Samples) -> None:
    """Compares whole batches and reads one number at the end, so that a GPU is waited for once.

    Raises:
        DataError: another number of samples, or the first sample whose inputs differ.
    """
    if len(forget) != len(correct):
        raise DataError(
            f"true_labels has {len(correct)} samples, the forget loader {len(forget)}. Pass the same inputs in order."
        )
    differs = torch.cat([_differs(here, there, count) for here, there, count in _side_by_side(forget, correct)])
    if differs.any():
        raise DataError(
            f"Sample {int(differs.int().argmax())} of true_labels has other inputs than the forget loader's. Pass the "
            "same inputs in the same order, without random augmentation."
        )


def _side_by_side(forget: Samples, correct: Samples) -> Iterator[tuple[list[Tensor], list[Tensor], int]]:
    """The tensors of the same samples in both, and how many: as far as both have them in one batch."""
    feeds = [((list(tensors_of(x)), len(y)) for x, y, _ in samples.batches(LOOK)) for samples in (forget, correct)]
    (here, here_left), (there, there_left) = (next(feed) for feed in feeds)
    done = 0
    while True:
        count = min(here_left, there_left)
        yield [t[:count] for t in here], [t[:count] for t in there], count
        done += count
        if done == len(forget):
            return
        here, here_left = ([t[count:] for t in here], here_left - count) if here_left > count else next(feeds[0])
        there, there_left = ([t[count:] for t in there], there_left - count) if there_left > count else next(feeds[1])


def _differs(here: list[Tensor], there: list[Tensor], count: int) -> Tensor:
    """Which of some samples have other inputs on the two sides: bool [count], all of them where shapes differ."""
    if [t.shape for t in here] != [t.shape for t in there]:
        return torch.ones(count, dtype=torch.bool, device=here[0].device)
    each = [(a != b)[:, None].flatten(1).any(1) for a, b in zip(here, there, strict=True)]
    return torch.stack(each).any(0)
