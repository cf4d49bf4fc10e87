"""DELETE (decoupled distillation to erase): learn what the original model would say without the true class.

With the original model as teacher (frozen, eval mode), p its softmax with the true class's logit set to −∞, so that the
other classes share what it had, and q the student's softmax: minimise KL(p ‖ q) on the forget set, and nothing else.

The defaults are those of the authors' code (Zhou et al., CVPR 2025) for a class of CIFAR-10 and ResNet-18, where their
batches are 128 and the forget set is augmented as in training. Made for classes; for single samples it aims at "every
class but this one", which a network that never saw the sample need not say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.preparation import needed, own_randomness, settings, teacher_of, untouched
from unweave.baselines.recipe import Recipe
from unweave.baselines.training import Training
from unweave.fit import Progress
from unweave.reading.batches import Loader
from unweave.reading.rest import duplicate


@dataclass(frozen=True, kw_only=True)
class DeleteConfig(Recipe):
    """SGD with momentum, no weight decay."""

    epochs: int = 20
    lr: float = 1e-4


@own_randomness
def delete(
    model: nn.Module,
    forget_loader: Loader | None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: DeleteConfig | None = None,
    *,
    progress: Progress | None = None,
) -> BaselineResult:
    """Distil the model into itself on the forget set, without the true classes. The retain set is not looked at.

    Raises:
        DataError: no forget set.
    """
    config = settings(config, DeleteConfig)
    forget = needed(forget_loader, "forget", "delete")
    original = untouched(model)
    training = Training("delete", duplicate(original), config, val, progress)
    teacher = teacher_of(original)

    def losses(epoch: int) -> Iterator[tuple[str, Tensor]]:
        for inputs, labels in training.batches(forget, "forget"):
            student, labels = training.logits(inputs, labels)
            with torch.no_grad():
                known = training.answer(teacher, inputs)
            yield "forget", masked_distance(known, student, labels)

    return training.run(losses, [forget])


def masked_distance(teacher: Tensor, student: Tensor, labels: Tensor) -> Tensor:
    """Mean over samples of KL(p ‖ q), p the teacher's softmax [N, C] without the label's class, q the student's."""
    p = teacher.scatter(1, labels[:, None], float("-inf")).softmax(1)
    return F.kl_div(student.log_softmax(1), p, reduction="batchmean")


DELETE = Method("delete", "DELETE", delete, DeleteConfig, frozenset({"forget"}), "Zhou et al., CVPR 2025")
