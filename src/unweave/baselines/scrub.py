"""SCRUB and SCRUB+R: a student that obeys its teacher on the retain set and disobeys it on the forget set.

With the original model as teacher t (frozen, eval mode) and the student s, which starts as a copy of it, each epoch is

    in the first ``forget_epochs``: a pass over the forget set minimising   −KL_T(t ‖ s)
    a pass over the retain set minimising                                   γ · CE + α · KL_T(t ‖ s)

where KL_T is T² times the mean KL divergence of softmaxes at temperature T. With ``rewind`` (SCRUB+R) the weights of
the epoch are taken whose error on the forget set is nearest to the error of the *last* epoch's on held-out samples of
the same classes: forgotten, but not suspiciously so.

The defaults are those of the authors (Kurmanji et al., NeurIPS 2023) for removing 100 samples of one class of CIFAR-10
from a ResNet, where their batches are 16 (forget) and 32 (retain). For a whole class and AllCNN they use γ = 0.99,
α = 0.001, forget_epochs = 2, epochs = 3 and batches of 512 and 256.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unweave.baselines.checks import above_zero, integer, number, one_of
from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.preparation import needed, own_randomness, settings, teacher_of, untouched
from unweave.baselines.recipe import Recipe
from unweave.baselines.training import Losses, State, Training
from unweave.errors import DataError
from unweave.fit import Progress
from unweave.reading.batches import Inputs, Loader
from unweave.reading.rest import duplicate


@dataclass(frozen=True, kw_only=True)
class ScrubConfig(Recipe):
    """SGD with momentum, the learning rate a tenth after epochs 3, 5 and 9."""

    epochs: int = 5
    lr: float = 5e-4
    schedule: str = "steps"
    decay_epochs: tuple[int, ...] = (3, 5, 9)
    weight_decay: float = 5e-4
    gamma: float = 1.0
    """Weight of the cross-entropy on the retain set."""
    alpha: float = 0.5
    """Weight of the distance to the teacher on the retain set."""
    temperature: float = 4.0
    forget_epochs: int = 3
    """In how many of the first epochs the forget set is walked over."""
    rewind: bool = False
    """SCRUB+R; needs ``val``, and room for the weights of every epoch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma", "alpha"):
            number(self, name, lambda v: v >= 0, "a number from 0")
        above_zero(self, "temperature")
        integer(self, "forget_epochs", 0)
        one_of(self, "rewind", (False, True))


@own_randomness
def scrub(
    model: nn.Module,
    forget_loader: Loader | None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: ScrubConfig | None = None,
    *,
    progress: Progress | None = None,
) -> BaselineResult:
    """SCRUB, or SCRUB+R with ``config.rewind``; then ``extras`` says which epoch was taken, and why.

    Raises:
        DataError: no forget set or no retain set; with ``rewind``, no held-out sample of the classes to forget.
    """
    config = settings(config, ScrubConfig)
    forget = needed(forget_loader, "forget", "scrub")
    retain = needed(retain_loader, "retain", "scrub")
    held_out = needed(val, "val", "scrub with rewind=True") if config.rewind else val
    original = untouched(model)
    training = Training("scrub", duplicate(original), config, held_out, progress)
    losses = _losses(training, teacher_of(original), forget, retain, config)
    if not config.rewind or held_out is None:
        return training.run(losses, [forget, retain])

    rewinding = _Rewind(training, forget, held_out)
    training.watch = rewinding.look
    result = training.run(losses, [forget, retain])
    return rewinding.choose(result) if result.ok else result


def kl_at(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """KL_T(t ‖ s) = T² · mean over samples of Σ_c p_c (log p_c − log q_c); p, q: softmaxes of logits [N, C] / T."""
    p, q = (teacher / temperature).log_softmax(1), (student / temperature).log_softmax(1)
    return temperature**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)


def _losses(training: Training, teacher: nn.Module, forget: Loader, retain: Loader, config: ScrubConfig) -> Losses:
    def apart(inputs: Inputs, student: Tensor) -> Tensor:
        with torch.no_grad():
            known = training.answer(teacher, inputs)
        return kl_at(known, student, config.temperature)

    def losses(epoch: int) -> Iterator[tuple[str, Tensor]]:
        if epoch < config.forget_epochs:
            for inputs, labels in training.batches(forget, "forget"):
                yield "forget", -apart(inputs, training.logits(inputs, labels)[0])
        for inputs, labels in training.batches(retain, "retain"):
            student, labels = training.logits(inputs, labels)
            loss = config.alpha * apart(inputs, student)
            yield "retain", loss + config.gamma * F.cross_entropy(student, labels) if config.gamma else loss

    return losses


class _Rewind:
    """Keeps the weights of every epoch, and takes those that stand where held-out samples do."""

    def __init__(self, training: Training, forget: Loader, held_out: Loader) -> None:
        self.training, self.forget, self.held_out = training, forget, held_out
        self.classes = training.observe(forget, "forget").labels.unique()
        self.states: list[State] = []
        self.errors: list[float] = []
        self.target()  # refuses a val without these classes before the work is done, not after

    def look(self) -> dict[str, float]:
        self.states.append(self.training.state())
        self.errors.append(self.training.observe(self.forget, "forget").error)
        return {"forget_error": self.errors[-1]}

    def target(self) -> float:
        """Percent wrong of the held-out samples whose class is one to forget, with the weights as they are."""
        seen = self.training.observe(self.held_out, "val")
        own = torch.isin(seen.labels, self.classes)
        missing = sorted(set(self.classes.tolist()) - set(seen.labels.tolist()))
        if missing:
            raise DataError(
                f"No held-out sample of class {', '.join(map(str, missing))}, which the forget set contains, so there "
                "is nothing to rewind to. Pass a val= that has that class."
            )
        return seen.where(own).error

    def choose(self, result: BaselineResult) -> BaselineResult:
        aim = self.target()
        # Of epochs that are equally near, the latest: it has repaired the most.
        index = min(range(len(self.errors)), key=lambda i: (abs(self.errors[i] - aim), -i))
        self.training.restore(self.states[index])
        return replace(
            result,
            stopped=f"{result.stopped}; rewound to epoch {index + 1}",
            seconds=time.perf_counter() - self.training.began,
            extras={"epoch": index + 1, "aim": aim, "forget_errors": list(self.errors)},
        )


SCRUB = Method(
    "scrub",
    "SCRUB",
    scrub,
    ScrubConfig,
    frozenset({"forget", "retain"}),
    "Kurmanji et al., NeurIPS 2023",
    also={"rewind": "val"},
)
