"""Walk: the single movements of a request: an epoch, a look, an undo, the choice of a step."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unweave.behaviour.outcomes import Outcomes, membership_auc
from unweave.config import ForgetConfig
from unweave.distributed import broadcast
from unweave.errors import DataError, ModelError
from unweave.fit import Progress
from unweave.losses import among, elsewhere_loss, match_loss, paper_loss, poison_loss, second_choice
from unweave.ranks.pool import observe_shares, observe_together
from unweave.reading.batches import Inputs, Loader, run
from unweave.reading.samples import Samples
from unweave.result import Look
from unweave.stopping import SAID, Goal, collapsed
from unweave.walking.descent import Descent, EpochReport, State
from unweave.walking.solving import Solving

FIRST_STEP = 1e-4
"""The search for a step starts where an epoch moves the weights by this share of their length …"""
PROBE = 6
"""… or after so many doublings of it, if those are too few, as they mostly are …"""
TRIALS = 14
"""… doubles it so often at most …"""
DOUBLINGS = 4
"""… leaves out so many of them at a time that should be too short, for a step goes about as far as it is long …"""
FIRST_MOVE = 0.1
"""… and takes the first step that brings an epoch this share of the way."""
LEAST_MOVE = 0.001
"""… or, where none does, the one that comes nearest, if by this share of the way at least."""
MAX_RUINS = 5
"""How often a ruin is undone and retried at half the step before the request gives up."""
LEAST_STEP = 1e-3
"""A step shrunk to this share of the first one brings nothing any more."""
ASTRAY = 2.0
"""A step after which the margins are so many times as far from their targets as at first is a ruin."""


@dataclass(frozen=True)
class Seen:
    """A look together with the outcomes and the weights it was taken at."""

    look: Look
    outcomes: Outcomes
    state: State


@dataclass(frozen=True)
class _Trial:
    """The first epoch with a step that was tried: what it reported, and where it led."""

    size: float
    report: EpochReport
    state: State
    order: Tensor


class Walk:
    """The walk of the weights so far: where it is, what it aims at, and what was seen on the way."""

    def __init__(
        self,
        descent: Descent,
        samples: Samples,
        goal: Goal,
        config: ForgetConfig,
        val: Loader | None,
        choices: set[int] | None,
        progress: Progress | None,
        first_val: Outcomes | None = None,
        began: float | None = None,
    ) -> None:
        self.descent = descent
        self.samples = samples
        self.goal = goal
        self.config = config
        self.val = val
        self.choices = choices
        self._first_val = first_val
        self.progress = progress
        self.history: list[Look] = []
        self.size = 0.0
        self._first_size = 0.0
        self._order = torch.Generator().manual_seed(config.seed)
        self._began = time.perf_counter() if began is None else began
        self._told = 0
        self._watching = config.watch == "epochs" or config.stop in ("paper", "poison")
        self._ruined = False
        self._fault = ""
        self._tried: _Trial | None = None
        self._solving = Solving(descent, samples, config.batch_size) if config.way == "solve" else None
        self._targets: Tensor | None = None
        self._among_others: Tensor | None = None
        self._second_choices: Tensor | None = None
        self._aim_at(goal)

    def _aim_at(self, goal: Goal) -> None:
        """Descend to a goal from now on."""
        if goal.margins is None or self._targets is None:
            self._targets = None if goal.margins is None else goal.margins.to(self.samples.labels.device, copy=True)
        else:
            self._targets.copy_(goal.margins)  # in place, for a captured step knows them by address

    def _see_what_is_left(self) -> None:
        """What the model says where what is to be forgotten is no choice: classes, or wrong labels; before a step."""
        if self.config.objective != "match" or self.config.task == "samples":
            return
        assert self.choices is not None
        choices = torch.tensor(sorted(self.choices), device=self.samples.labels.device)
        poison = self.config.task == "poison"

        def left(inputs: Inputs, labels: Tensor) -> Tensor:
            said = among(_precise(run(self.descent.model(), inputs)), choices)
            return second_choice(said, labels) if poison else said

        with torch.no_grad():
            batches = self.samples.pairs(self.samples.look_size(self.config.batch_size))
            found = torch.cat([left(inputs, labels) for inputs, labels in batches])
        if poison:
            self._second_choices = broadcast(found, 0)  # ranks may disagree where two choices are as good
        else:
            self._among_others = found

    def _advance(self, now: Seen) -> Seen | None:
        """One epoch; a ruin is undone and tried again at half the step. None when that was of no use.

        A learning rate that the user gave is not changed behind their back: there the first ruin is the last.
        """
        for _ in range(MAX_RUINS if self.config.lr is None else 1):
            if self.size < LEAST_STEP * self._first_size:
                return None
            report = self._epoch()
            after = self.look(self.history[-1].epoch + 1, report, with_val=self._watching)
            self._fault = "made values infinite" if after is None else self._fault
            if after is not None and not self._collapsed(after.look):
                self.history.append(after.look)
                self._tell()
                return after
            self._undo_step(now)
        return None

    def _tell(self) -> None:
        """Report progress, but not the same epoch twice when one was undone."""
        done = self.history[-1].epoch
        if self.progress is not None and done > self._told:
            self._told = done
            self.progress("forget", done, self.config.epochs)

    def _undo_step(self, now: Seen) -> None:
        """Back to a look, and half the step from there; or as long a one, if it had been solved for by old J and K."""
        aged = self._solving if self._solving is not None and self._solving.old else None
        if aged is not None:
            aged.look_anew()
        self._undo(now, 0.5 if aged is None else 1.0)

    def _undo(self, now: Seen, shrink: float) -> None:
        """Back to a look, which is then the last one, with a smaller step from there."""
        while self.history[-1].epoch > now.look.epoch:
            self.history.pop()
        self.descent.restore(now.state)
        self.descent.reset_moments()
        self.size *= shrink

    def _epoch(self) -> EpochReport:
        """Take an epoch of steps, or go where it is known to lead: the step that was chosen was tried before."""
        if self._solving is not None:
            assert self._targets is not None
            return self._solving.step(self._targets, self.size)
        tried, self._tried = self._tried, None
        if tried is None or tried.size != self.size or self.history[-1].epoch > 0:
            return self._steps()
        self.descent.restore(tried.state)
        self._order.set_state(tried.order)
        return tried.report

    def _steps(self) -> EpochReport:
        config = self.config
        size = self.size
        if config.lr is not None and config.lr_end is not None:
            done = self.history[-1].epoch + config.idle_first_epoch
            size *= (config.lr_end / config.lr) ** (done / config.epochs)
        order = self._order if config.shuffle else None
        with _dropout(self.descent.net, config.dropout):
            relative = config.lr is None
            return self.descent.epoch(self.samples, self._loss, size, config.batch_size, order, relative)

    def _loss(self, logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        config = self.config
        logits = _precise(logits)
        if self._targets is not None:
            return match_loss(logits, labels, self._targets[positions])
        if self._among_others is not None:
            assert config.odds is not None
            return elsewhere_loss(logits, self._among_others[positions], config.odds)
        if self._second_choices is not None:
            return F.cross_entropy(logits, self._second_choices[positions])
        assert config.lam is not None
        assert config.eps is not None
        return (poison_loss if config.task == "poison" else paper_loss)(logits, labels, config.lam, config.eps)

    def _choose_size(self, start: Seen) -> float:
        """The first of doubling steps whose epoch goes a tenth of the way, else the best of them; 0.0 if none helps."""
        steps = math.ceil(len(self.samples) / self.config.batch_size)
        unit = FIRST_STEP * self.descent.size() / steps
        if self.descent.rule == "adam":  # its steps have a length of about lr · √(number of weights)
            unit /= sum(w.numel() for w in self.descent.weights.values()) ** 0.5
        return unit * choose_doubling(lambda k: self._left_after(unit * 2**k, start))

    def _left_after(self, size: float, start: Seen) -> float | None:
        """The share of the way that an epoch of such steps leaves; None where it is a ruin. Nothing has moved then."""
        self.size, order = size, self._order.get_state()
        report = self._steps()
        after = self.look(1, report, with_val=False)
        if after is not None and self.descent.rule == "sgd":  # adam would need its moments of then as well
            self._tried = _Trial(size, report, after.state, self._order.get_state())
        self._order.set_state(order)  # however many steps are tried, the walk is the same
        self.descent.restore(start.state)
        self.descent.reset_moments()
        if after is None:
            return None
        return after.look.distance / start.look.distance if start.look.distance else 1.0 - (not after.look.distance)

    def look(self, epoch: int, report: EpochReport, with_val: bool = True) -> Seen | None:
        """Where the forget set and the validation set stand at the present weights; None where they are not finite."""
        self.descent.align()
        if not self.descent.finite() or (epoch > 0 and not math.isfinite(report.loss)):
            return None
        with torch.no_grad():
            model = self.descent.model()
            try:
                outcomes = observe_together(model, self.samples, self.samples.look_size(self.config.batch_size))
                val = self._look_at_val(model, epoch == 0) if with_val else None
            except ModelError:
                if epoch == 0:
                    raise
                return None
        look = Look(
            epoch=epoch,
            loss=report.loss,
            forget_error=outcomes.error,
            val_error=None if val is None else val.error,
            val_error_by_class=None if val is None else val.error_by_class(),
            distance=self.goal.distance(outcomes),
            auc=None if val is None else membership_auc(outcomes, val),
            lr=report.lr,
            seconds=time.perf_counter() - self._began,
        )
        return Seen(look, outcomes, self.descent.snapshot())

    def _look_at_val(self, model: nn.Module, first: bool) -> Outcomes | None:
        if self.val is None:
            return None
        known = self._first_val if first else None  # nothing has moved yet, and a look at it takes time
        outcomes = known or observe_shares(model, self.val, "validation", self.samples.labels.device)
        if self.choices is None:  # of a class that is gone every sample is wrong, and that is no damage
            return outcomes
        kept = torch.isin(outcomes.labels, torch.tensor(sorted(self.choices)))
        if not bool(kept.any()):
            raise DataError(
                "The validation loader has only classes that are to be forgotten, or were. Add those that stay."
            )
        return outcomes.where(kept)

    def _collapsed(self, look: Look) -> bool:
        first = self.history[0]
        astray = self.goal.margins is not None and look.distance > ASTRAY * first.distance
        worse = None if look.val_error is None else look.val_error - self.due(first, look)
        ruined = collapsed(worse, first.val_error, self.config.max_damage)
        self._ruined |= ruined
        if ruined:
            self._fault = f"raised the validation error by more than {self.config.max_damage:g} points"
            if max(self.goal.due.values(), default=0.0) > SAID:
                self._fault += " beside what fewer samples of its classes cost"
        elif astray:
            self._fault = "drove the outputs far off their targets"
        return astray or ruined

    def due(self, first: Look, look: Look) -> float:
        """How much of a rise of the validation error retraining would have cost too: each class has its own share."""
        before, after = first.val_error_by_class or {}, look.val_error_by_class or {}
        there = {c: due for c, due in self.goal.due.items() if c in before and c in after}
        if self._first_val is None or not there:
            return 0.0
        counts = self._first_val.labels.bincount(minlength=1 + max(before))
        shares = counts / counts[sorted(before)].sum()  # of those that are watched: classes that are gone are not
        return sum(shares[c].item() * min(max(after[c] - before[c], 0.0), due) for c, due in there.items())


def choose_doubling(trial: Callable[[int], float | None]) -> float:
    """Of steps 1, 2, 4 …, what trying one after the other would choose, with fewer tries.

    That is the first that goes far enough, else the best before a ruin; half a ruin if none helps, 0.0 if there is
    none. What was left out on the way is tried after all as soon as a try does not get further than the one before it.

    Args:
        trial: from k, the share of the way that step 2**k leaves, or None for a ruin. Asked once for a k at most.
    """
    left = functools.cache(trial)
    too_short, k, least = -1, 0, math.inf
    if (share := left(PROBE)) is not None and 1 - FIRST_MOVE < share < 1:
        too_short, k, least = PROBE, PROBE + _doublings_to_go(share), share
    while k < TRIALS and (share := left(k)) is not None and 1 - FIRST_MOVE < share <= least:
        too_short, k, least = k, k + _doublings_to_go(share), share
    for k in range(too_short + 1, TRIALS):
        if (share := left(k)) is None:
            break
        if share <= 1 - FIRST_MOVE:
            return 2.0**k
    return _one_by_one(left)


def _doublings_to_go(left: float) -> int:
    """How many doublings away a step is that is still too short, if a step goes as far as it is long."""
    moved = max(1 - left, 1e-9)
    return min(max(math.floor(math.log2(FIRST_MOVE / moved)) - 1, 1), DOUBLINGS)


def _one_by_one(left: Callable[[int], float | None]) -> float:
    best, least = 0.0, 1 - LEAST_MOVE
    for k in range(TRIALS):
        share = left(k)
        if share is None:
            return best or 0.5 * 2**k
        if share <= 1 - FIRST_MOVE:
            return 2.0**k
        if share < least:
            best, least = 2.0**k, share
    return best


def _precise(logits: Tensor) -> Tensor:
    """Logits of half precision are too coarse to tell one margin from the next."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.half) else logits


@contextmanager
def _dropout(net: nn.Module, active: bool) -> Iterator[None]:
    """Turn the dropout modules of a network in eval mode on for a while."""
    modules = [m for m in net.modules() if isinstance(m, nn.modules.dropout._DropoutNd)] if active else []
    for module in modules:
        module.train()
    try:
        yield
    finally:
        for module in modules:
            module.eval()
