"""Selective synaptic dampening (Foster, Schoepf, Brintrup, AAAI 2024): shrink the weights that D_f cares most about.

With importances I_f of the forget set and I_D of the whole training set, D_f included (:mod:`.importances`):

    where I_f > α I_D:   θ ← θ · min(λ I_D / I_f, 1)

and every other weight keeps its very bits. With I_D kept from training time, a request needs the forget set only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unweave.baselines.checks import above_zero, integer
from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.importances import Importances, importances
from unweave.baselines.one_step import LOOK, look
from unweave.baselines.preparation import again, length, needed, own_randomness, settings, trainable, untouched
from unweave.errors import DataError, MismatchError
from unweave.fit import Progress
from unweave.reading.batches import Inputs, Loader, checked, device_of
from unweave.reading.rest import duplicate
from unweave.reading.samples import Samples


@dataclass(frozen=True)
class SsdConfig:
    """α, λ and B are Foster et al.'s for ResNet-18 (ViT: α = 5; faces: α = 50, λ = 0.1)."""

    alpha: float = 10.0
    """A weight is dampened where the forget set's importance is more than α times the training set's."""
    lam: float = 1.0
    batch_size: int = 128
    """B of both importances; kept ones of another B are refused."""

    def __post_init__(self) -> None:
        above_zero(self, "alpha")
        above_zero(self, "lam")
        integer(self, "batch_size", 1)


@own_randomness
def ssd(
    model: nn.Module,
    forget_loader: Loader,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: SsdConfig | None = None,
    *,
    importances: Importances | None = None,
    training: Loader | None = None,
    progress: Progress | None = None,
) -> BaselineResult:
    """Forget by dampening.

    Args:
        model: the trained model; left untouched.
        forget_loader: the samples to forget.
        retain_loader: used where there is nothing else: with the forget set mixed into it, it makes the training set.
        val: only to report an error before and after.
        config: see :class:`SsdConfig`.
        importances: of the whole training set, kept from :func:`unweave.baselines.importances.importances`.
        training: the whole training set, to compute them now.
        progress: called as ``progress("importances", samples_done, None)``.

    Raises:
        DataError: neither importances nor anything to compute them from; a retain loader that has no length.
        MismatchError: importances of another model, of other parameters or of another batch size.
    """
    began = time.perf_counter()
    config = settings(config, SsdConfig)
    original = untouched(model)
    forget = Samples.load(needed(forget_loader, "forget", "ssd"), "forget", device_of(original))
    batches = list(forget.pairs(LOOK))
    whole = _whole_set(original, forget, again(retain_loader), config, importances, training, progress)
    own = _measured(original, batches, config, None)

    net = duplicate(original).eval()
    watched = again(val)
    history = [look(net, 0, batches, watched)]
    touched = 0
    with torch.no_grad():
        for name, weight in trainable(net).items():
            chosen, factor = dampening(own.values[name], whole.values[name].to(weight.device), config)
            weight.copy_(torch.where(chosen, weight * factor.to(weight.dtype), weight))
            touched += int(chosen.sum())
    history.append(look(net, 1, batches, watched))
    total = sum(weight.numel() for weight in trainable(net).values())
    return BaselineResult(
        model=net,
        history=history,
        stopped=f"{touched} of {total} weights dampened once",
        ok=True,
        config=config,
        seconds=time.perf_counter() - began,
        extras={"dampened": touched, "weights": total, "kept": importances is not None},
    )


def dampening(forget: Tensor, whole: Tensor, config: SsdConfig) -> tuple[Tensor, Tensor]:
    """Which weights are dampened, and min(λ I_D / I_f, 1) for them (1 elsewhere)."""
    chosen = forget > config.alpha * whole
    factor = (config.lam * whole / torch.where(chosen, forget, torch.ones_like(forget))).clamp(max=1.0)
    return chosen, torch.where(chosen, factor, torch.ones_like(factor))


def _measured(model: nn.Module, loader: Loader, config: SsdConfig, progress: Progress | None) -> Importances:
    return importances(model, loader, batch_size=config.batch_size, progress=progress)


def _whole_set(
    original: nn.Module,
    forget: Samples,
    retain: Loader | None,
    config: SsdConfig,
    kept: Importances | None,
    training: Loader | None,
    progress: Progress | None,
) -> Importances:
    """I_D, from where there is something to have it from."""
    if kept is not None:
        if not isinstance(kept, Importances):
            raise MismatchError(f"importances is a {type(kept).__name__}. Pass Importances, or Importances.load(path).")
        kept.require(original)
        if kept.batch_size != config.batch_size:
            raise MismatchError(
                f"The importances are of batches of {kept.batch_size}, the settings say {config.batch_size}: they do "
                f"not compare. Pass SsdConfig(batch_size={kept.batch_size}), or compute them again."
            )
        for name, weight in trainable(original).items():
            if name not in kept.values or kept.values[name].shape != weight.shape:
                raise MismatchError(f"The importances lack {name!r}: other parameters required gradients then.")
        return kept
    if training is not None:
        return _measured(original, training, config, progress)
    if retain is None:
        raise DataError("ssd needs importances of the training set. Pass importances=, training= or retain_loader=.")
    return _measured(original, _mixed(retain, forget, device_of(original)), config, progress)


def _mixed(retain: Loader, forget: Samples, device: torch.device) -> Iterator[tuple[Inputs, Tensor]]:
    """Each batch of the retained samples with an equal share of the forget set among them, every sample once.

    Batches of the forget set alone would make I_D at least n_f / n of I_f, so that with α ≥ n / n_f nothing at all were
    dampened; training mixes.
    """
    steps = max(1, length(retain, "ssd without importances= or training="))
    parts = list(forget.pairs(max(1, len(forget) // steps)))
    due = [(number * steps // len(parts), part) for number, part in enumerate(parts)]  # evenly over the batches
    generator = torch.Generator().manual_seed(0)
    for place, batch in enumerate(checked(retain, "retain", device)):
        both = Samples([batch, *(part for when, part in due if when == place)])
        yield from ((inputs, labels) for inputs, labels, _ in both.batches(len(both), generator))
    yield from (part for when, part in due if when > place)


SSD = Method("ssd", "SSD", ssd, SsdConfig, frozenset({"forget", "importances"}), "Foster et al., AAAI 2024")
