"""Descent: the walk of the movable weights along projected gradients.

Only the weights of the chosen layers move. Every step is projected off the core space, so where an epoch ends, and at
each point between two such places, the weights differ from the start by something the retained inputs do not see (or,
where the protection is soft, see little of).

Two rules turn a gradient g into a step. P is the projection; P P = P where it is hard, and a soft one is applied twice:

    sgd    −lr · P g                        as in the paper; with a length, −length · P g / ‖P g‖
    adam   −lr · P (m̂ / (√v̂ + 1e-8))        moments of P g; projected again, for preconditioning leaves the complement

Where a step has a length of its own, what rounding leaves of the core part is stretched with the rest: small beside the
gradient, it may not be so beside P g, should nearly all of g lie in the core. So where a layer is protected hard, its
whole way from the start is projected once more after every epoch. Its steps may then be projected in fewer digits: on a
GPU, unless nearly all of the first gradient lies in the core, in TF32 if that is what convolutions are done in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unweave.distributed import broadcast, part_of, ranks, sum_over_ranks
from unweave.errors import ModelError
from unweave.reading.batches import Inputs, map_tensors, run
from unweave.reading.rest import products_as_convolutions
from unweave.reading.samples import Samples
from unweave.space import CoreSpace
from unweave.trust import RESCALING, TrustRegion
from unweave.walking.captured import Captured

BatchLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From logits [N, C], labels [N] and the samples' positions in the forget set to a number."""

State = dict[str, Tensor]
"""A copy of everything that moves."""

FEW_DIGITS = 0.03
"""Steps are projected in TF32 where the first keeps this share of its gradient: rounding turns them by a hundredth."""


@dataclass(frozen=True)
class EpochReport:
    """Mean loss over an epoch's batches, and the mean factor that multiplied a gradient."""

    loss: float
    lr: float


class Descent:
    """The movable part of a model, and how it takes one epoch of steps."""

    def __init__(
        self,
        net: nn.Module,
        weights: dict[str, nn.Parameter],
        space: CoreSpace,
        rule: str,
        trust: TrustRegion | None = None,
        trust_path: str = "",
    ) -> None:
        self.net = net
        self.weights = weights
        self.space = space
        self.rule = rule
        self.trust = trust
        self.trust_path = trust_path
        # Low-precision weights would round small steps away: walk in float32, show the model the rounded values.
        self._masters = {n: w.detach().float() for n, w in weights.items() if w.dtype in (torch.bfloat16, torch.half)}
        device = next((w.device for w in weights.values()), None)
        self._first: State = {}
        self._second: State = {}
        self._hard = frozenset(name for name in weights if space.layers[name].hard)
        self._few_digits: bool | None = None
        self._start: State = {}
        self._steps = torch.zeros((), dtype=torch.float64, device=device)
        self._size = torch.zeros((), dtype=torch.float64, device=device)
        self._captured: dict[tuple[BatchLoss, bool], Captured] = {}

    def reset_moments(self) -> None:
        """Forget the moments of adam; the next step is the first. In place: a captured step knows them by address."""
        for moment in (*self._first.values(), *self._second.values(), self._steps):
            moment.zero_()

    def moving(self) -> dict[str, Tensor]:
        """Every tensor that a step changes."""
        moving: dict[str, Tensor] = dict(self.weights)
        if self.trust is not None:
            moving["trust scale"] = self.trust.scale
        return moving

    def model(self) -> nn.Module:
        """The network at the present weights, to be called."""
        return self.net if self.trust is None else _Overridden(self.net, {self.trust_path: self.trust.effective()})

    def require_gradients(self, samples: Samples, batch_size: int) -> None:
        """Refuse a network that no gradient comes through, as a step would find out; the first batch is run.

        Raises:
            ModelError: the outputs do not depend on anything that moves.
        """
        if not self.weights:
            return
        inputs, _, _ = next(samples.batches(batch_size))
        with torch.enable_grad():
            logits = run(self.model(), inputs)
        if not logits.requires_grad:
            raise ModelError(
                f"No gradient comes from the model's outputs to the layers that are to move ({', '.join(self.weights)})"
                ": its forward runs them under torch.no_grad() or torch.inference_mode(), or detaches what they give. "
                "Take that out of forward and put it around the calls that want no gradients; or move other layers "
                "with layers= (--layers)."
            )

    def epoch(
        self,
        samples: Samples,
        loss: BatchLoss,
        size: float,
        batch_size: int,
        order: torch.Generator | None,
        relative: bool,
    ) -> EpochReport:
        """One pass over the forget set.

        Args:
            samples: the forget set.
            loss: what to descend.
            size: the learning rate, or with ``relative`` the length of every step of sgd.
            batch_size: samples a step.
            order: shuffles the samples; None keeps their order.
            relative: make every step of sgd as long as ``size``, however small the gradient.
        """
        # Numbers stay on the device until the end: to read one earlier would make the host wait in every step.
        self._size.fill_(size)
        stretched = self._is_stretched(relative)
        if stretched and not self._start:
            self._start = {name: value for name, value in self.snapshot().items() if name in self._hard}

        def step(inputs: Inputs, labels: Tensor, positions: Tensor) -> Tensor:
            value, grads = self._gradient(loss, inputs, labels, positions)
            return torch.stack([value, self._step(grads, relative)])

        taken = self._captured.setdefault((loss, relative), Captured(step)) if self._can_be_replayed() else step
        reports = [taken(*batch) for batch in samples.batches(batch_size, order)]
        if stretched:
            self._keep_clear_of_the_core()
        mean_loss, mean_factor = torch.stack(reports).mean(0).tolist()
        return EpochReport(mean_loss, mean_factor if relative and self.rule == "sgd" else size)

    def _is_stretched(self, relative: bool) -> bool:
        """Whether steps have a length of their own, and some layers' way is cleared of what rounding leaves."""
        return relative and self.rule == "sgd" and bool(self._hard)

    def _can_be_replayed(self) -> bool:
        """Not where dropout draws anew or where ranks talk in every step."""
        return not any(module.training for module in self.net.modules()) and ranks() == 1

    def _gradient(self, loss: BatchLoss, inputs: Inputs, labels: Tensor, positions: Tensor) -> tuple[Tensor, State]:
        """The loss of a batch, a mean over its samples, and its gradients; each rank sees to some of the samples."""
        moving = self.moving()
        own, share = part_of(len(labels))
        value = torch.zeros((), device=labels.device) if share == 0 else None
        grads: tuple[Tensor | None, ...] = (None,) * len(moving)
        if value is None:
            with torch.enable_grad():
                chosen = map_tensors(inputs, lambda t: t[own])
                value = share * loss(run(self.model(), chosen), labels[own], positions[own])
            grads = torch.autograd.grad(value, list(moving.values()), allow_unused=True)
        found = {
            name: self._exact(name, torch.zeros_like(w) if g is None else g)
            for (name, w), g in zip(moving.items(), grads, strict=True)
        }
        value = value.detach().double()
        sum_over_ranks([*found.values(), value])
        return value, found

    def _step(self, grads: State, relative: bool) -> Tensor:
        moving = self.moving()
        steps = self._projected(grads, self._is_stretched(relative))
        factor = self._size
        if self.rule == "adam":
            steps = self._precondition(steps)
        else:
            steps = {name: self._left_of_soft(name, step) for name, step in steps.items()}
        if self.rule == "sgd" and relative:
            length = torch.stack([steps[name].double().norm() for name in self.weights]).norm()
            factor = torch.where(length > 0, self._size / length, 0.0)
        for name, step in steps.items():
            scale = -factor * (1.0 if name in self.weights else RESCALING)
            self._move(name, moving[name], scale.to(step.dtype) * step)
        return factor

    def _projected(self, grads: State, stretched: bool) -> State:
        """What is left of gradients; of the first ones it is seen how much, before any step is recorded."""
        few = stretched and self._few_digits
        with products_as_convolutions(self._size.device) if few else nullcontext():
            steps = {name: self._project(name, grad) for name, grad in grads.items() if name in self._hard}
        steps = {name: steps[name] if name in steps else self._project(name, grad) for name, grad in grads.items()}
        if stretched and self._few_digits is None:
            left, whole = (torch.stack([of[n].norm() for n in self._hard]).norm() for of in (steps, grads))
            self._few_digits = bool(left > FEW_DIGITS * whole)
        return steps

    @torch.no_grad()
    def go(self, change: State) -> None:
        """Change the weights by what is left of this, [their shapes]; a soft protection is applied twice."""
        moving = self.moving()
        for name, part in change.items():
            left = self._project(name, part.to(self._masters.get(name, moving[name]).dtype))
            self._move(name, moving[name], self._left_of_soft(name, left))

    def _keep_clear_of_the_core(self) -> None:
        """Project the way gone so far: of what rounding has left in the core space, nothing stays."""
        for name, start in self._start.items():
            weight = self.weights[name]
            here = self._masters.get(name, weight.detach())
            here.copy_(start + self._project(name, here - start))
            weight.detach().copy_(here)

    def _project(self, name: str, grad: Tensor) -> Tensor:
        if name not in self.weights:
            return grad
        return self.space.project(name, grad)

    def _left_of_soft(self, name: str, step: Tensor) -> Tensor:
        """A step once projected, projected once more where that makes a difference."""
        return step if name in self._hard else self._project(name, step)

    def _exact(self, name: str, grad: Tensor) -> Tensor:
        """A gradient in the precision the walk is in."""
        return grad.float() if name in self._masters else grad

    def _precondition(self, grads: State) -> State:
        self._steps.add_(1)
        rate, unbias = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        steps: State = {}
        for name, g in grads.items():
            m = self._first.setdefault(name, torch.zeros_like(g)).mul_(0.9).add_(g, alpha=0.1)
            v = self._second.setdefault(name, torch.zeros_like(g)).mul_(0.999).addcmul_(g, g, value=0.001)
            unbiased = (v / unbias).sqrt_().add_(1e-8)
            steps[name] = self._project(name, m / rate / unbiased)
        return steps

    @torch.no_grad()
    def _move(self, name: str, value: Tensor, step: Tensor) -> None:
        master = self._masters.get(name)
        if master is None:
            value.add_(step)
        else:
            value.copy_(master.add_(step))

    @torch.no_grad()
    def align(self) -> None:
        """Go where rank 0 is. Equal gradients do not make equal steps: a product's last bit depends on where its
        operands happen to lie in memory, on one machine even."""
        if ranks() > 1:
            self.restore({name: broadcast(value, 0) for name, value in self.snapshot().items()})

    @torch.no_grad()
    def fold(self) -> None:
        """Write the trust region's scaling into its layer, and into what the layer is walked in if that is finer."""
        if self.trust is None:
            return
        self.trust.fold()
        if self.trust.name in self._masters:
            self._masters[self.trust.name].copy_(self.trust.weight)

    def let_go(self) -> None:
        """Free what recorded steps hold on to: they know this descent, and it knows them, so nobody else would."""
        self._captured.clear()

    def snapshot(self) -> State:
        """A copy of everything that moves."""
        return {name: self._masters.get(name, value).detach().clone() for name, value in self.moving().items()}

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Go back to a snapshot."""
        for name, value in self.moving().items():
            if name in self._masters:
                self._masters[name].copy_(state[name])
            value.copy_(state[name])

    def between(self, start: State, end: State, share: float) -> None:
        """Go to a point of the segment between two snapshots."""
        self.restore({name: torch.lerp(start[name], end[name], share) for name in start})

    def size(self) -> float:
        """The length of all movable weights together."""
        return float(torch.stack([w.detach().double().norm() for w in self.weights.values()]).norm())

    def finite(self) -> bool:
        answers = [torch.isfinite(value).all() for value in self.moving().values()]
        return not answers or bool(torch.stack(answers).all())


class _Overridden(nn.Module):
    """A module called with some of its parameters replaced."""

    def __init__(self, net: nn.Module, replaced: dict[str, Tensor]) -> None:
        super().__init__()
        self._net = [net]  # in a list, so that it is not registered as a child
        self._replaced = replaced

    def forward(self, *args: Tensor, **kwargs: Tensor) -> object:
        return functional_call(self._net[0], self._replaced, args, kwargs)
