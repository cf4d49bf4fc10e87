"""Fine-tune: go on training on the retain set, and hope that the rest fades.

The defaults are those of the authors of SCRUB (Kurmanji et al., NeurIPS 2023) for this baseline on a small part of
CIFAR-10 (there in eval mode, ``norm="frozen"`` here); for all of CIFAR-10 they take a learning rate of 0.04.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.preparation import needed, own_randomness, settings, untouched
from unweave.baselines.recipe import Recipe
from unweave.baselines.retrain import on_retained
from unweave.baselines.training import Training
from unweave.fit import Progress
from unweave.reading.batches import Loader
from unweave.reading.rest import duplicate


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig(Recipe):
    """SGD without momentum."""

    epochs: int = 10
    lr: float = 0.01
    momentum: float = 0.0


@own_randomness
def fine_tune(
    model: nn.Module,
    forget_loader: Loader | None = None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: FineTuneConfig | None = None,
    *,
    progress: Progress | None = None,
) -> BaselineResult:
    """Minimise the cross-entropy on the retain set, from where the model is. The forget set is not looked at.

    Raises:
        DataError: no retain set.
    """
    config = settings(config, FineTuneConfig)
    retain = needed(retain_loader, "retain", "fine_tune")
    training = Training("fine_tune", duplicate(untouched(model)), config, val, progress)
    return training.run(on_retained(training, retain), [retain])


FINE_TUNE = Method(
    "fine_tune",
    "Fine-tune",
    fine_tune,
    FineTuneConfig,
    frozenset({"retain"}),
    "settings of Kurmanji et al., NeurIPS 2023",
)
