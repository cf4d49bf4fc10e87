"""What a request asks for: read, checked and refused where it cannot be right, before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from unweave.config import ForgetConfig
from unweave.distributed import agree, exchange, together
from unweave.errors import ConfigError, DataError, MismatchError
from unweave.fitting.steady import sample_that_changes
from unweave.grams import LayerGrams
from unweave.layers import moving, select
from unweave.ranks.fsdp import require_whole
from unweave.ranks.pool import facts_about, gathered_samples
from unweave.ranks.shard import require_each_once
from unweave.reading.batches import Loader, device_of, reusable
from unweave.reading.rest import check_model, duplicate, fingerprint, unwrap
from unweave.reading.samples import Samples, listed


@dataclass(frozen=True)
class Asked:
    """The samples to forget, and the models and layers that have to do with it."""

    original: nn.Module
    samples: Samples
    val: Loader | None
    first: nn.Module | None
    """The model that the Grams were fitted with; None while it is the original, or where it is not there."""
    digests: tuple[str, ...]
    """Of the samples, with the Grams' key."""
    names: list[str]
    """The layers that may move."""
    unsteady: bool
    """Whether one of the first samples of any rank is another when it is read again."""


def ask(
    model: nn.Module,
    forget_loader: Loader,
    grams: LayerGrams,
    val: Loader | None,
    config: ForgetConfig,
    first: nn.Module | None,
) -> Asked:
    """Read a request and refuse what cannot be right; the arguments are those of :func:`unweave.forget`.

    Raises:
        UnweaveError: see :func:`unweave.forget`.
    """
    original = unwrap(model)
    require_whole(original)
    check_model(original)
    select(config.layers, grams.names)  # a name that is not there is refused before anything is read
    with together("the forget loader"):
        require_each_once(forget_loader, "forget")
    samples = gathered_samples(forget_loader, "forget", device_of(original))
    val = None if val is None else reusable(val)
    with together("the first model"):
        first = None if first is None else _checked_first(first, grams, device_of(original))
    digests = _check_request(original, samples, grams, config, val, first is not None)
    with together("the choice of layers"):
        names = moving(original, config.layers, grams.names)
    agree("the choice of layers", {"layers that may move": " ".join(names)})
    unsteady = any(exchange("whether samples change", sample_that_changes(forget_loader) is not None))
    return Asked(original, samples, val, first, digests, names, unsteady)


def check_kinds(grams: LayerGrams, config: ForgetConfig | None) -> ForgetConfig:
    """Refuse what is something else altogether, such as a path in place of Grams."""
    if not isinstance(grams, LayerGrams):
        raise MismatchError(
            f"grams is a {type(grams).__name__}. Pass what unweave.fit() returned, or unweave.LayerGrams.load(path)."
        )
    if config is not None and not isinstance(config, ForgetConfig):
        raise ConfigError(f"config is a {type(config).__name__}. Pass unweave.ForgetConfig(...).")
    return config or ForgetConfig()


def _check_request(
    original: nn.Module, samples: Samples, grams: LayerGrams, config: ForgetConfig, val: Loader | None, first: bool
) -> tuple[str, ...]:
    """Refuse what cannot be right before anything is computed; returns the samples' digests."""
    found = fingerprint(original)
    if found != grams.origin.model:
        raise MismatchError(
            f"These Grams belong to model {grams.origin.model[:12]}, the model passed is {found[:12]}.",
            remedy="Load the weights they were fitted with, use result.model with result.grams, or fit again.",
        )
    if len(samples) >= grams.samples:
        raise MismatchError(
            f"Asked to forget {len(samples)} samples with Grams of {grams.samples}. "
            "Nothing would be retained: the forget set must be a smaller part of what was fitted."
        )
    facts = {"configuration": repr(config), "model": found[:12], "first= given": str(first)}
    agree("the request", facts_about(grams) | facts)
    digests = samples.digests(grams.origin.key)
    gone = set(grams.origin.forgotten)
    again = [position for position, digest in enumerate(digests) if digest in gone]
    if again:
        raise MismatchError(
            f"{len(again)} of these {len(samples)} samples were forgotten before ({listed(again)}): they are already "
            "out of the Grams. Leave them out; to try again with other settings, start from the model and Grams of "
            "before that request."
        )
    if config.stop == "paper" and val is None:
        raise DataError("stop='paper' compares with the validation error after every epoch. Pass val= (--val).")
    return digests


def _checked_first(first: nn.Module, grams: LayerGrams, device: torch.device) -> nn.Module | None:
    """The model that the Grams were fitted with, on the device of the request; None while nothing has changed it.

    Raises:
        MismatchError: it is another one, or nobody knows which it was.
    """
    first = unwrap(first)
    require_whole(first)
    found, known = fingerprint(first), grams.origin
    if known.forgotten and not known.key:
        raise MismatchError("These Grams do not say which model they were fitted with. Leave first= (--first) out.")
    if found != known.first:
        raise MismatchError(
            f"These Grams were fitted with model {known.first[:12]}, first= (--first) is {found[:12]}. Pass the model "
            "of before all requests, or leave it out."
        )
    if known.model == known.first:
        return None  # one pass serves for both
    return first if device_of(first) == device else duplicate(first).to(device)
