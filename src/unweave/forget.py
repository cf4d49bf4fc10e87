"""forget(): take samples out of a trained model, with its Grams in place of its training set."""

from __future__ import annotations

import time

import torch
from torch import nn

from unweave.batches import Loader, Samples, checked, device_of, reusable
from unweave.classes import check_forget_classes
from unweave.config import ForgetConfig
from unweave.descent import Descent, only_moving
from unweave.errors import ConfigError, DataError, MismatchError
from unweave.fit import Progress, stream
from unweave.grams import LayerGrams
from unweave.layers import find_layers, select
from unweave.loop import Request
from unweave.outcomes import ClassProfile, observe
from unweave.rest import at_rest, check_model, duplicate, fingerprint, unwrap
from unweave.result import ForgetResult
from unweave.space import CoreSpace
from unweave.stopping import choose_goal
from unweave.trust import TrustRegion, last_linear


def forget(
    model: nn.Module,
    forget_loader: Loader,
    grams: LayerGrams,
    val: Loader | None = None,
    config: ForgetConfig | None = None,
    *,
    progress: Progress | None = None,
) -> ForgetResult:
    """Make a model that behaves as if it had never seen some of its training samples.

    Args:
        model: the trained model the Grams belong to. It is left untouched.
        forget_loader: the samples to forget, as ``(inputs, labels)``, under the transform the Grams were fitted with.
            For ``task="poison"`` the labels are the wrong ones the model was trained on.
        grams: from :func:`unweave.fit`, or ``result.grams`` of the request before.
        val: held-out samples, to aim at and to watch for damage. Needed for ``task="samples"`` unless the Grams were
            fitted with ``val=``; recommended always.
        config: see :class:`ForgetConfig`.
        progress: called as ``progress("forget", epochs_done, epochs_at_most)``.

    Raises:
        MismatchError: Grams of another model, samples that were never fitted, or the same request twice.
        DataError, ModelError, LayerError, ConfigError: see :mod:`unweave.errors`. Model and Grams are unchanged.
    """
    began = time.perf_counter()
    config = _check_kinds(grams, config).resolved()
    original = unwrap(model)
    check_model(original)
    names = select(config.layers, grams.names)
    device = device_of(original)
    samples = Samples.load(forget_loader, "forget", device)
    val = None if val is None else reusable(val)
    request_digest = _check_request(original, samples, grams, config, val)

    given, before = stream(
        original,
        list(samples.pairs(config.batch_size)),
        "forget",
        grams.names,
        grams.origin.transform,
        grams.origin.stride,
    )
    if config.task == "classes":
        check_forget_classes(before.labels, before.classes)
    retained = grams - given
    space = CoreSpace.from_grams(
        retained.restricted(names),
        _gamma_for(config, grams.names, names),
        energy=config.energy,
        rank_rule=config.rank_rule,
        negative=config.negative,
        freeze_at_one=config.freeze_at_one,
        device=device if device.type == "cuda" else None,
    )
    held_out = grams.held_out
    if val is not None and (held_out is None or not held_out.has(before.labels)):
        with at_rest(original):
            held_out = ClassProfile.of(observe(original, checked(val, "validation", device)))
    goal = choose_goal(config, before, held_out)

    net = duplicate(original)
    descent = _descent(net, space, config)
    retained_classes = None
    if config.task == "classes":
        retained_classes = set(range(before.classes)) - set(before.labels.tolist())
    loop = Request(descent, samples, goal, config, val, retained_classes, progress)
    with torch.random.fork_rng(), at_rest(net, gradients=True), only_moving(net, descent.weights):
        torch.manual_seed(config.seed)
        ending, final = loop.run()
        if descent.trust is not None:
            descent.trust.fold()
    drift = max((layer.clipped for layer in space.layers.values()), default=0.0)
    warnings = [] if drift < 1e-3 else [f"{100 * drift:.1f} % of a layer's spectrum was negative and clipped"]
    return ForgetResult(
        model=net,
        grams=retained.belonging_to(fingerprint(net), forgotten=request_digest, held_out=held_out),
        history=loop.history,
        stopped=ending.words,
        ok=ending.ok,
        goal=goal,
        config=config,
        ranks=space.ranks,
        seconds=time.perf_counter() - began,
        samples=len(samples),
        final=final,
        warnings=warnings,
    )


def _check_kinds(grams: LayerGrams, config: ForgetConfig | None) -> ForgetConfig:
    """Refuse what is something else altogether, such as a path in place of Grams."""
    if not isinstance(grams, LayerGrams):
        raise MismatchError(
            f"grams is a {type(grams).__name__}. Pass what unweave.fit() returned, or unweave.LayerGrams.load(path)."
        )
    if config is not None and not isinstance(config, ForgetConfig):
        raise ConfigError(f"config is a {type(config).__name__}. Pass unweave.ForgetConfig(...).")
    return config or ForgetConfig()


def _check_request(
    original: nn.Module, samples: Samples, grams: LayerGrams, config: ForgetConfig, val: Loader | None
) -> str:
    """Refuse what cannot be right before anything is computed; returns the digest of the request."""
    found = fingerprint(original)
    if found != grams.origin.model:
        raise MismatchError(
            f"These Grams belong to model {grams.origin.model[:12]}, the model passed is {found[:12]}. Load the "
            "weights they were fitted with, use result.model with result.grams, or fit again."
        )
    if len(samples) >= grams.samples:
        raise MismatchError(
            f"Asked to forget {len(samples)} samples with Grams of {grams.samples}. "
            "Nothing would be retained: the forget set must be a smaller part of what was fitted."
        )
    digest = samples.digest()
    if digest in grams.origin.forgotten:
        raise MismatchError(
            "This request was carried out before: these very samples are already out of the Grams. "
            "To try again with other settings, start from the model and Grams of before that request."
        )
    if config.stop == "paper" and val is None:
        raise DataError("stop='paper' compares with the validation error after every epoch. Pass val=.")
    return digest


def _gamma_for(config: ForgetConfig, all_names: list[str], names: list[str]) -> float | dict[str, float]:
    """γ for the layers that move; naming a layer that is frozen by layers= is no mistake."""
    if isinstance(config.gamma, (int, float)):
        return config.gamma
    return {name: value for name, value in config.gamma.items() if name in names or name not in all_names}


def _descent(net: nn.Module, space: CoreSpace, config: ForgetConfig) -> Descent:
    layers = find_layers(net, list(space.layers))
    weights = {name: layers[name].parameter for name in space.layers if name not in space.frozen}
    rule = "adam" if config.objective == "match" else "sgd"
    name = last_linear(space) if config.task == "poison" and config.trust else None
    if name is None:
        return Descent(net, weights, space, rule)
    region = TrustRegion(name, weights[name], space.layers[name], config.trust, config.trust_share)
    path = f"{layers[name].owners[0]}.{layers[name].kind.weight}".lstrip(".")
    return Descent(net, weights, space, rule, region, path)
