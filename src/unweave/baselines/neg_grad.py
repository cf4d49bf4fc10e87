"""NegGrad (gradient ascent) and NegGrad+: climb the loss on the forget set, alone or while descending the retained one.

    NegGrad     minimise  −CE(forget)
    NegGrad+    minimise  a · CE(retain) − (1 − a) · CE(forget),   one batch of each a step

Both are unbounded: too long or too fast, and the network is ruined. ``clip=`` and ``val=`` help.

NegGrad's optimiser is that of the authors of SalUn (Fan et al., ICLR 2024) for this baseline. They search the learning
rate anew each time, between 1e-5 and 1e-3, and take 5 epochs (from memory of their paper; their code leaves both to the
user). NegGrad+ is as its authors have it for all of CIFAR-10 (Kurmanji et al., NeurIPS 2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from unweave.baselines.checks import number
from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.preparation import needed, own_randomness, settings, untouched
from unweave.baselines.recipe import Recipe
from unweave.baselines.training import Training
from unweave.fit import Progress
from unweave.reading.batches import Inputs, Loader
from unweave.reading.rest import duplicate


@dataclass(frozen=True, kw_only=True)
class NegGradConfig(Recipe):
    """SGD with momentum, and weight decay as in training."""

    epochs: int = 5
    lr: float = 1e-4
    weight_decay: float = 5e-4


@dataclass(frozen=True, kw_only=True)
class NegGradPlusConfig(Recipe):
    """SGD without momentum."""

    epochs: int = 5
    lr: float = 0.01
    momentum: float = 0.0
    a: float = 0.9999
    """Weight of the retain set; that of the forget set is 1 − a."""

    def __post_init__(self) -> None:
        super().__post_init__()
        number(self, "a", lambda v: 0 <= v <= 1, "a number in [0, 1]")


@own_randomness
def neg_grad(
    model: nn.Module,
    forget_loader: Loader | None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: NegGradConfig | None = None,
    *,
    progress: Progress | None = None,
) -> BaselineResult:
    """Maximise the cross-entropy on the forget set. The retain set is not looked at.

    Raises:
        DataError: no forget set.
    """
    config = settings(config, NegGradConfig)
    forget = needed(forget_loader, "forget", "neg_grad")
    training = Training("neg_grad", duplicate(untouched(model)), config, val, progress)

    def losses(epoch: int) -> Iterator[tuple[str, Tensor]]:
        for inputs, labels in training.batches(forget, "forget"):
            yield "forget", -F.cross_entropy(*training.logits(inputs, labels))

    return training.run(losses, [forget])


@own_randomness
def neg_grad_plus(
    model: nn.Module,
    forget_loader: Loader | None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: NegGradPlusConfig | None = None,
    *,
    progress: Progress | None = None,
) -> BaselineResult:
    """Minimise a · CE(retain) − (1 − a) · CE(forget). An epoch is a pass over the retain set.

    The forget loader is started anew whenever it ends, so that one that shuffles or augments does so each time.

    Raises:
        DataError: no forget set, or no retain set.
    """
    config = settings(config, NegGradPlusConfig)
    forget = needed(forget_loader, "forget", "neg_grad_plus")
    retain = needed(retain_loader, "retain", "neg_grad_plus")
    training = Training("neg_grad_plus", duplicate(untouched(model)), config, val, progress)
    others = _forever(training, forget)

    def losses(epoch: int) -> Iterator[tuple[str, Tensor]]:
        for inputs, labels in training.batches(retain, "retain"):
            kept = F.cross_entropy(*training.logits(inputs, labels))
            gone = F.cross_entropy(*training.logits(*next(others)))
            yield "joint", config.a * kept - (1 - config.a) * gone

    return training.run(losses, [retain])


def _forever(training: Training, forget: Loader) -> Iterator[tuple[Inputs, Tensor]]:
    while True:
        yield from training.batches(forget, "forget")


NEG_GRAD = Method(
    "neg_grad", "NegGrad", neg_grad, NegGradConfig, frozenset({"forget"}), "settings of Fan et al., ICLR 2024"
)
NEG_GRAD_PLUS = Method(
    "neg_grad_plus",
    "NegGrad+",
    neg_grad_plus,
    NegGradPlusConfig,
    frozenset({"forget", "retain"}),
    "Kurmanji et al., NeurIPS 2023",
)
