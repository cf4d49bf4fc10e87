"""How much the loss on a set of samples depends on each weight: what SSD keeps of the training set.

    I_j(S) = mean over batches of (∂_j of the batch's mean cross-entropy)²

A mean over b samples has a variance that falls as 1/b, so importances of different batch sizes do not compare. The
samples are therefore cut anew into batches of exactly B, whatever the loader's batches are. What is left over, b < B
samples, counts by its share of the samples and times b/B; so do batches of varying width, which cannot be joined:

    I_j = Σ_k (b_k / n) (b_k / B) g_kj²,     which is the mean of g² where every b_k = B
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unweave.baselines.kept import keep, read
from unweave.baselines.preparation import own_randomness, trainable, untouched
from unweave.errors import ConfigError, MismatchError, ModelError, StoreError
from unweave.fit import Progress
from unweave.reading.batches import Doubts, Inputs, Loader, checked, device_of, logits_of
from unweave.reading.rest import at_rest, duplicate, fingerprint
from unweave.reading.samples import Samples

KIND = "importances"


@dataclass(frozen=True)
class Importances:
    """I per parameter, float64 of its shape, on record as belonging to one model and one batch size."""

    values: Mapping[str, Tensor]
    model: str
    """Fingerprint of the model."""
    samples: int
    batch_size: int

    def save(self, path: str | PathLike[str]) -> None:
        """Write to a safetensors file, atomically.

        Raises:
            StoreError: it cannot be written.
        """
        record = {"model": self.model, "samples": self.samples, "batch_size": self.batch_size}
        keep(path, KIND, record, self.values)

    @staticmethod
    def load(path: str | PathLike[str]) -> Importances:
        """Read what :meth:`save` wrote.

        Raises:
            StoreError: missing, damaged, altered, or something else.
        """
        record, values = read(path, KIND)
        try:
            return Importances(values, str(record["model"]), int(record["samples"]), int(record["batch_size"]))
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path} is damaged: its record cannot be read ({error!r}). Restore it.") from error

    def require(self, model: nn.Module) -> None:
        """Refuse another model than the one these belong to.

        Raises:
            MismatchError: with both fingerprints.
        """
        found = fingerprint(model)
        if found != self.model:
            raise MismatchError(
                f"These importances belong to model {self.model[:12]}, the model passed is {found[:12]}. Load the "
                "weights they were computed with, or compute them again."
            )


@own_randomness
def importances(
    model: nn.Module, loader: Loader, *, batch_size: int = 128, progress: Progress | None = None
) -> Importances:
    """Compute importances in eval mode, in one pass; see the top of this file.

    Args:
        model: left untouched.
        loader: the samples, in an order that mixes the classes: a batch of one class has a larger mean gradient.
        batch_size: B. Keep it the same for every set that is to be compared.
        progress: called as ``progress("importances", samples_done, None)``.

    Raises:
        ConfigError: a batch size that is not a positive integer.
        ModelError: gradients that are not finite.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"Invalid batch_size: {batch_size!r}. Supported: an integer from 1.")
    original = untouched(model)
    net = duplicate(original)
    weights = trainable(net)
    total = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    count = 0
    device = device_of(net)
    doubts = Doubts(later=device.type == "cuda")
    with at_rest(net, gradients=True):
        for inputs, labels in recut(loader, batch_size, device, doubts):
            loss = F.cross_entropy(logits_of(net, inputs, labels, doubts), labels)
            found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
            for name, part in zip(weights, found, strict=True):
                if part is not None:
                    total[name] += part.double().square() * (len(labels) ** 2 / batch_size)
            count += len(labels)
            if progress is not None:
                progress("importances", count, None)
    doubts.settle()
    values = {name: (part / count).detach() for name, part in total.items()}
    for name, part in values.items():
        if not bool(torch.isfinite(part).all()):
            raise ModelError(f"The gradients of {name!r} are NaN or infinite. Use the model in float32.")
    return Importances(values, fingerprint(original), count, batch_size)


def recut(
    loader: Loader, size: int, device: torch.device, doubts: Doubts | None = None
) -> Iterator[tuple[Inputs, Tensor]]:
    """The samples of a loader in batches of exactly ``size``, the last one shorter; few are held at a time."""
    pending: list[tuple[Inputs, Tensor]] = []
    for batch in checked(loader, "training", device, doubts):
        pending.append(batch)
        if sum(len(labels) for _, labels in pending) >= size:
            whole = list(Samples(pending).pairs(size))
            pending = [whole.pop()] if len(whole[-1][1]) < size else []
            yield from whole
    if pending:
        yield from Samples(pending).pairs(size)
