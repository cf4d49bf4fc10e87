"""SalUn: random labels, but only the weights that the forget set pulls at hardest may move.

    mask = 1 for the share of all weights with the largest |Σ over batches of ∇ CE(forget batch)|, ranked together

in eval mode at the original weights; 0 for the others, which keep every bit: neither weight decay nor momentum reaches
them. Running statistics of batch norm are no weights, and move.

The defaults are those of the authors (Fan et al., ICLR 2024) for a tenth of CIFAR-10 and ResNet-18.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unweave.baselines.checks import number
from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.preparation import needed, own_randomness, settings, untouched
from unweave.baselines.random_label import RelabelConfig, relabelled, walked
from unweave.baselines.training import Training
from unweave.fit import Progress
from unweave.reading.batches import Loader
from unweave.reading.rest import at_rest, duplicate


@dataclass(frozen=True, kw_only=True)
class SalUnConfig(RelabelConfig):
    """SGD with momentum; labels over all classes, drawn anew each time, forget set first."""

    epochs: int = 10
    lr: float = 0.013
    weight_decay: float = 5e-4
    labels: str = "any"
    drawn: str = "epoch"
    order: str = "passes"
    share: float = 0.5
    """Of all weights, how many may move."""

    def __post_init__(self) -> None:
        super().__post_init__()
        number(self, "share", lambda v: 0 < v <= 1, "a number in (0, 1]")


@own_randomness
def salun(
    model: nn.Module,
    forget_loader: Loader | None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: SalUnConfig | None = None,
    *,
    progress: Progress | None = None,
) -> BaselineResult:
    """Random labels under a mask of the most salient weights. ``extras["moving"]`` is how many of them there are.

    Raises:
        DataError: no forget set or no retain set.
    """
    config = settings(config, SalUnConfig)
    forget = needed(forget_loader, "forget", "salun")
    retain = needed(retain_loader, "retain", "salun")
    training = Training("salun", duplicate(untouched(model)), config, val, progress)
    training.masks = saliency_masks(training, forget, config.share)
    moving = int(sum(mask.count_nonzero() for mask in training.masks.values()))
    losses = relabelled(training, forget, retain, config)
    return training.run(losses, walked(forget, retain, config), {"moving": moving})


def saliency_masks(training: Training, forget: Loader, share: float) -> dict[nn.Parameter, Tensor]:
    """For each moving weight a mask of its shape and dtype; int(share · all of them), at least one, are 1.

    Of weights that are pulled at equally (not at all, say), the first come first.
    """
    weights = training.moving
    pulls = [torch.zeros_like(p) for p in weights]
    with at_rest(training.net, gradients=True, convolutions=None):
        for inputs, labels in training.batches(forget, "forget"):
            loss = F.cross_entropy(*training.logits(inputs, labels))
            found = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
            torch._foreach_add_(pulls, found)
    training.doubts.settle()
    flat = torch.cat([pull.abs().flatten() for pull in pulls])
    count = max(1, int(share * len(flat)))
    chosen = flat.argsort(descending=True, stable=True)[:count]
    ones = torch.zeros_like(flat).index_fill_(0, chosen, 1.0)
    parts = ones.split([p.numel() for p in weights])
    return {p: part.view(p.shape).to(p.dtype) for p, part in zip(weights, parts, strict=True)}


SALUN = Method("salun", "SalUn", salun, SalUnConfig, frozenset({"forget", "retain"}), "Fan et al., ICLR 2024")
