"""The one training loop of all baselines that train.

A method is a generator of losses: for each epoch it walks over its data and yields what is to be descended, one loss a
step, with the name of the part it belongs to::

    def losses(epoch):
        for inputs, labels in training.batches(retain_loader, "retain"):
            yield "retain", F.cross_entropy(*training.logits(inputs, labels))

The loop takes one step of the optimiser for each loss. Whatever needs an answer from a GPU (are the values finite, are
the labels classes) is asked once an epoch.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unweave.baselines.contract import BaselineResult
from unweave.baselines.preparation import again, length, observed, seeded, trainable
from unweave.baselines.recipe import Recipe
from unweave.behaviour.outcomes import Outcomes
from unweave.errors import DataError, ModelError
from unweave.fit import Progress
from unweave.reading.batches import Doubts, Inputs, Loader, checked, device_of, require_logits, run
from unweave.reading.rest import only_moving

Losses = Callable[[int], Iterator[tuple[str, Tensor]]]
"""From the number of the epoch (the first is 0) to the losses of its steps, each with the name of its part."""

State = dict[str, Tensor]


class Training:
    """A network on its way: what is moved and what stays, how, and who is told.

    ``net`` is changed in place. ``still`` are modules that stay in eval mode, so that their running statistics do not
    move. ``moving`` are the weights that move; the others keep every bit. ``masks`` has, for some of them, a 1 where
    they may move and a 0 where not, in their own dtype.
    """

    def __init__(
        self, name: str, net: nn.Module, recipe: Recipe, val: Loader | None = None, progress: Progress | None = None
    ) -> None:
        self.began = time.perf_counter()
        self.name, self.net, self.recipe, self.progress = name, net, recipe, progress
        self.val = again(val)
        self.device = device_of(net)
        self.doubts = Doubts(later=self.device.type != "cpu")
        self.moving = list(trainable(net).values())
        self.still: set[nn.Module] = set()
        self.masks: dict[nn.Parameter, Tensor] = {}
        self.watch: Callable[[], dict[str, float]] | None = None
        """Called after every epoch whose values are finite; what it returns goes into the history."""

    # ------------------------------------------------------------------------------------- what a method's losses use

    def batches(self, loader: Loader, what: str) -> Iterator[tuple[Inputs, Tensor]]:
        """One pass over a loader: checked batches on the network's device."""
        return checked(loader, what, self.device, self.doubts)

    def logits(self, inputs: Inputs, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The network's logits [N, C], in float32 or better, and the labels, which are classes of it.

        Unlike :func:`unweave.reading.batches.logits_of`, values that are not finite are no error here: training may
        diverge.

        Raises:
            ModelError: no logits [N, C].
            DataError: a label outside 0 … C − 1 (at the end of the epoch on a GPU), or a sample that is alone in its
                batch where a norm layer would have to take statistics of it.
        """
        try:
            found = self.answer(self.net, inputs)
        except ValueError as error:  # how PyTorch's norm layers refuse one value per channel; a ModelError is none
            raise self._refusal(error, len(labels)) from error
        require_logits(found, labels, self.doubts)
        # A label that is still in doubt must not be looked up on a GPU, which would not survive it.
        return found, labels.clamp(0, found.shape[1] - 1)

    def _refusal(self, error: ValueError, count: int) -> Exception:
        """What a ValueError of the network means to the user."""
        norm = nn.modules.batchnorm._NormBase
        gathering = [name for name, m in self.net.named_modules() if isinstance(m, norm) and m.training]
        if count > 1 or not gathering:
            return ModelError(f"The model failed: {error}. Feed it what it was trained on.")
        return DataError(
            f"Invalid {self.doubts.place}: one sample alone, of which {gathering[0]!r} cannot take statistics "
            f"({error}). Use drop_last=True, another batch size, or norm='frozen'."
        )

    def answer(self, net: nn.Module, inputs: Inputs) -> Tensor:
        """What a network returns for a batch, under the recipe's precision; in float32 or better."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.bf16):
            found = run(net, inputs)
        return found.float() if found.dtype in (torch.bfloat16, torch.float16) else found

    def observe(self, loader: Loader, what: str) -> Outcomes:
        """How the network behaves on a loader as it is now, in eval mode."""
        return observed(self.net, loader, what)

    def state(self) -> State:
        """A copy of all weights and buffers."""
        return {name: tensor.detach().clone() for name, tensor in self._tensors()}

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Put back what :meth:`state` returned."""
        for name, tensor in self._tensors():
            tensor.copy_(state[name])

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.net.named_parameters()
        yield from self.net.named_buffers()

    # ----------------------------------------------------------------------------------------------------- the loop

    def run(self, losses: Losses, loaders: Iterable[Loader], extras: dict[str, Any] | None = None) -> BaselineResult:
        """Train for the recipe's epochs, or until values are not finite; then the last finite weights are kept.

        Args:
            losses: what to descend.
            loaders: those that an epoch walks over; their lengths tell how long it is, should the schedule ask.
            extras: for the result.
        """
        steps = self._steps(loaders)
        if self.val is not None:
            self.observe(self.val, "val")  # what is wrong with it is to be said now, and not taken for divergence later
        history: list[dict[str, float]] = []
        stopped, ok = f"all {self.recipe.epochs} epochs done", True
        with (
            seeded(self.recipe.seed, self.device),
            _repeatable(),
            torch.enable_grad(),
            only_moving(self.net, self.moving),
        ):
            optimiser, kept = self._optimiser(), self.state()
            for epoch in range(self.recipe.epochs):
                entry, finite = self._epoch(epoch, losses, optimiser, steps)
                seen = self._seen() if finite else None
                if seen is None:
                    self.restore(kept)
                    stopped, ok = f"values were not finite in epoch {epoch + 1}; kept those of epoch {epoch}", False
                    break
                kept = self.state()
                history.append(entry | seen)
                if self.progress is not None:
                    self.progress(self.name, epoch + 1, self.recipe.epochs)
        self.net.eval()
        seconds = time.perf_counter() - self.began
        return BaselineResult(self.net, history, stopped, ok, self.recipe, seconds, extras or {})

    def _epoch(
        self, epoch: int, losses: Losses, optimiser: torch.optim.Optimizer, steps: int | None
    ) -> tuple[dict[str, float], bool]:
        """One epoch: its entry in the history, and whether losses and weights are finite after it."""
        began = time.perf_counter()
        self._train_mode()
        totals: dict[str, Tensor] = {}
        counts: Counter[str] = Counter()
        rate = self.recipe.rate(epoch)
        for step, (part, loss) in enumerate(losses(epoch)):
            if steps is not None:
                rate = self.recipe.rate(epoch, min(step / steps, 1.0))
            self._step(optimiser, loss, rate)
            totals[part] = totals[part] + loss.detach() if part in totals else loss.detach()
            counts[part] += 1
        self.doubts.settle()
        sound = [torch.isfinite(tensor).all() for _, tensor in self._tensors() if tensor.is_floating_point()]
        answers = torch.stack([torch.stack(sound).all().double(), *(total.double() for total in totals.values())])
        sound_weights, *sums = answers.tolist()
        finite = bool(sound_weights) and all(map(math.isfinite, sums))
        means = {f"{part}_loss": total / counts[part] for part, total in zip(totals, sums, strict=True)}
        entry = {"epoch": float(epoch + 1), "lr": rate, **means, "seconds": time.perf_counter() - began}
        return entry, finite

    def _step(self, optimiser: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        loss.backward()
        if self.masks:
            self._mask()
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.moving, self.recipe.clip)
        if self.masks and self.recipe.weight_decay:
            self._decay()
        optimiser.step()

    @torch.no_grad()
    def _mask(self) -> None:
        """The gradient, only where the mask is 1: what is 0 from the start gathers no momentum."""
        moved = [(p.grad, self.masks[p]) for p in self.moving if p.grad is not None]
        torch._foreach_mul_([gradient for gradient, _ in moved], [mask for _, mask in moved])

    @torch.no_grad()
    def _decay(self) -> None:
        """Weight decay only where the mask is 1; like the optimiser's own, it comes after the clipping."""
        moved = [(p.grad, p, self.masks[p]) for p in self.moving if p.grad is not None]
        weights, masks = [weight.detach() for _, weight, _ in moved], [mask for *_, mask in moved]
        pulls = torch._foreach_mul(weights, masks)
        torch._foreach_add_([gradient for gradient, *_ in moved], pulls, alpha=self.recipe.weight_decay)

    def _optimiser(self) -> torch.optim.Optimizer:
        recipe = self.recipe
        decay = 0.0 if self.masks else recipe.weight_decay  # with masks it is part of the masked gradient
        if recipe.optimizer == "adam":
            return torch.optim.Adam(self.moving, recipe.lr, weight_decay=decay, fused=self.device.type == "cuda")
        return torch.optim.SGD(
            self.moving, recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov, weight_decay=decay
        )

    def _train_mode(self) -> None:
        self.net.train()
        for module in self.net.modules():
            frozen = self.recipe.norm == "frozen" and isinstance(module, nn.modules.batchnorm._NormBase)
            if frozen or module in self.still:
                module.training = False  # and not its children

    def _seen(self) -> dict[str, float] | None:
        """What there is to see after an epoch; None where finite weights give outputs that are not."""
        try:
            found = {} if self.val is None else {"val_error": self.observe(self.val, "val").error}
            return found | (self.watch() if self.watch is not None else {})
        except ModelError:
            return None

    def _steps(self, loaders: Iterable[Loader]) -> int | None:
        """How many steps an epoch has, if the schedule asks."""
        if self.recipe.schedule != "one-cycle":
            return None
        return sum(length(loader, "schedule='one-cycle'") for loader in loaders)


@contextmanager
def _repeatable() -> Iterator[None]:
    """Convolutions that give the same bits again, and attention that a teacher computes as its student does.

    TF32 is the user's choice.
    """
    cudnn, mha = torch.backends.cudnn, torch.backends.mha
    before, fastpath = (cudnn.deterministic, cudnn.benchmark), mha.get_fastpath_enabled()
    try:
        cudnn.deterministic, cudnn.benchmark = True, False
        mha.set_fastpath_enabled(False)
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
        mha.set_fastpath_enabled(fastpath)
