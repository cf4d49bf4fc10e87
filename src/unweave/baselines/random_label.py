"""Random labels (amnesiac unlearning): train on the forget set with labels drawn at random, and on the retain set.

The defaults are those with which the authors of SSD (Foster et al., AAAI 2024) run amnesiac unlearning (Graves et al.,
AAAI 2021) on CIFAR-10: a wrong label for each sample, drawn once, and both sets mixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unweave.baselines.checks import one_of
from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.preparation import length, needed, own_randomness, settings, untouched
from unweave.baselines.recipe import Recipe
from unweave.baselines.training import Losses, Training
from unweave.errors import DataError
from unweave.fit import Progress
from unweave.reading.batches import Inputs, Loader, map_tensors
from unweave.reading.rest import at_rest, duplicate
from unweave.reading.samples import Samples

LABELS = ("wrong", "any")
DRAWN = ("once", "epoch")
ORDERS = ("mixed", "passes")


@dataclass(frozen=True, kw_only=True)
class RelabelConfig(Recipe):
    """How labels are drawn and the two sets combined."""

    labels: str = "wrong"
    """"wrong": uniform over the other classes. "any": uniform over all, now and then the true one."""
    drawn: str = "once"
    """"once": a sample keeps its label; its inputs are read once and kept in memory, so they are not augmented anew.
    "epoch": drawn whenever the sample comes up."""
    order: str = "mixed"
    """"mixed": each batch of the retain set brings its share of the forget set along, drawn at random; the forget set
    is read once. "passes": in each epoch all of the forget set, then all of the retain set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in {"labels": LABELS, "drawn": DRAWN, "order": ORDERS}.items():
            one_of(self, name, known)


@dataclass(frozen=True, kw_only=True)
class RandomLabelConfig(RelabelConfig):
    """Adam, three epochs."""

    epochs: int = 3
    lr: float = 1e-4
    optimizer: str = "adam"


@own_randomness
def random_label(
    model: nn.Module,
    forget_loader: Loader | None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: RandomLabelConfig | None = None,
    *,
    progress: Progress | None = None,
) -> BaselineResult:
    """Minimise the cross-entropy on the retain set and, towards random labels, on the forget set.

    Raises:
        DataError: no forget set or no retain set; for ``order="mixed"`` inputs of several shapes, or a retain loader
            without a length.
    """
    config = settings(config, RandomLabelConfig)
    forget = needed(forget_loader, "forget", "random_label")
    retain = needed(retain_loader, "retain", "random_label")
    training = Training("random_label", duplicate(untouched(model)), config, val, progress)
    return training.run(relabelled(training, forget, retain, config), walked(forget, retain, config))


def draw(labels: Tensor, classes: int, how: str, generator: torch.Generator) -> Tensor:
    """New labels [N]: uniform over the other classes ("wrong") or over all of them ("any")."""
    least = 1 if how == "wrong" else 0
    shift = torch.randint(least, classes, labels.shape, generator=generator, device=labels.device)
    return (labels + shift) % classes


def walked(forget: Loader, retain: Loader, config: RelabelConfig) -> list[Loader]:
    """The loaders whose batches are the steps of an epoch."""
    return [retain] if config.order == "mixed" else [forget, retain]


def relabelled(training: Training, forget: Loader, retain: Loader, config: RelabelConfig) -> Losses:
    """What random labelling descends, and SalUn with it."""
    generator = torch.Generator(training.device).manual_seed(config.seed)
    if config.order == "mixed":
        return _mixed(training, forget, retain, config, generator)

    if config.drawn == "once":
        parts = list(training.batches(forget, "forget"))
        samples, size = Samples(parts), len(parts[0][1])
        fixed = draw(samples.labels, _classes(training, samples), config.labels, generator)
        order = torch.Generator().manual_seed(config.seed)

    def forgetting() -> Iterator[Tensor]:
        if config.drawn == "once":
            for inputs, labels, positions in samples.batches(size, order):
                yield F.cross_entropy(training.logits(inputs, labels)[0], fixed[positions])
            return
        for inputs, labels in training.batches(forget, "forget"):
            logits, labels = training.logits(inputs, labels)
            yield F.cross_entropy(logits, draw(labels, logits.shape[1], config.labels, generator))

    def losses(epoch: int) -> Iterator[tuple[str, Tensor]]:
        yield from (("forget", loss) for loss in forgetting())
        for inputs, labels in training.batches(retain, "retain"):
            yield "retain", F.cross_entropy(*training.logits(inputs, labels))

    return losses


def _mixed(
    training: Training, forget: Loader, retain: Loader, config: RelabelConfig, generator: torch.Generator
) -> Losses:
    """Every step sees a batch of the retain set and an equal share of the forget set, so that every sample comes once.

    That is a shuffled union of both sets but for the shares, which are the same in every batch.
    """
    samples = Samples(list(training.batches(forget, "forget")))
    everything, labels_of_all, _ = next(samples.batches(len(samples)))
    if len(labels_of_all) != len(samples):
        raise DataError("order='mixed' needs inputs of one shape. Pad the forget set, or use order='passes'.")
    steps = max(1, length(retain, "order='mixed'"))  # of none, the walk over it will complain
    classes = _classes(training, samples)
    fixed = draw(samples.labels, classes, config.labels, generator)

    def losses(epoch: int) -> Iterator[tuple[str, Tensor]]:
        new = fixed if config.drawn == "once" else draw(samples.labels, classes, config.labels, generator)
        order = torch.randperm(len(samples), generator=generator, device=training.device)
        shares = iter(order.tensor_split(steps))
        for inputs, labels in training.batches(retain, "retain"):
            share = next(shares, order[:0])
            if len(share):
                chosen = map_tensors(everything, lambda t, share=share: t[share])  # type: ignore[misc]
                inputs, labels = _join(inputs, chosen), torch.cat([labels, new[share]])
            yield "joint", F.cross_entropy(*training.logits(inputs, labels))

    return losses


def _join(some: Inputs, others: Inputs) -> Inputs:
    """Two batches of inputs as one, with the structure they have."""
    if isinstance(some, Tensor):
        if not isinstance(others, Tensor) or some.shape[1:] != others.shape[1:]:
            raise DataError(
                "order='mixed' needs inputs of one shape in both sets. Make them alike, or use order='passes'."
            )
        return torch.cat([some, others])
    if isinstance(some, Mapping):
        return {key: _join(value, others[key]) for key, value in some.items()}
    if isinstance(some, (tuple, list)):
        return tuple(_join(a, b) for a, b in zip(some, others, strict=True))
    return some


def _classes(training: Training, samples: Samples) -> int:
    """How many classes the network knows; and the labels are checked before they are drawn from."""
    with at_rest(training.net, convolutions=None):
        inputs, labels, _ = next(samples.batches(1))
        classes = training.logits(inputs, labels)[0].shape[1]
    if not 0 <= int(samples.labels.min()) <= int(samples.labels.max()) < classes:
        raise DataError(
            f"Labels from {int(samples.labels.min())} to {int(samples.labels.max())} in the forget set, with {classes} "
            "classes. Supported: 0 to C - 1."
        )
    return classes


RANDOM_LABEL = Method(
    "random_label",
    "Random labels",
    random_label,
    RandomLabelConfig,
    frozenset({"forget", "retain"}),
    "Graves et al., AAAI 2021; settings of Foster et al., AAAI 2024",
)
