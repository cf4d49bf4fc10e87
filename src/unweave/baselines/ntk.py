"""NTK forgetting (Golatkar, Achille, Soatto, ECCV 2020): the change of a linearised model's solution, in closed form.

With f linearised around the trained weights w, rows g_{ic} = ∇_w f_c(x_i), G_S [|S| C, P] the rows of a set S and the
residual e = softmax(f) − onehot(y), [|S| C]:

    w_lin(S) = −G_Sᵀ Θ_S⁻¹ e_S,   Θ_S = G_S G_Sᵀ + |S| μ I      the ridge solution for S, as a step from w
    Δ = w_lin(D_r) − w_lin(D_r ∪ D_f),   w ← w + s Δ

The trapezium trick makes up for training not having followed the linear path: with w₀ the weights before training,
m = w − w₀ − w_lin(D_r) and c = cos(Δ, m), s = 1 + 2 |c| ‖m‖ / ‖Δ‖. (The authors' two cases, by the sign of c, are this
one formula: sin(arccos c − π/2) = −c.)

Θ of the retained samples is a corner of Θ of all, so the Jacobian is walked through once; see
:mod:`unweave.gradients.jacobian`. Gᵀ v is one vector-Jacobian product.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from unweave.baselines.checks import above_zero, integer, one_of
from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.one_step import LOOK, Closing, with_change
from unweave.baselines.preparation import again, needed, own_randomness, settings, trainable, untouched
from unweave.errors import DataError, MismatchError
from unweave.fit import Progress
from unweave.gradients.jacobian import jacobian_gram, pulled, solve, unit_cotangents
from unweave.gradients.per_sample import drawn, sample_gradients
from unweave.reading.batches import Loader, device_of, logits_of
from unweave.reading.rest import at_rest, duplicate, fingerprint
from unweave.reading.samples import Samples

Change = dict[str, Tensor]


@dataclass(frozen=True)
class NtkConfig:
    """μ is Golatkar et al.'s; the 1,500 retained samples are those of the PGU paper's comparison."""

    samples: int = 1500
    """Retained samples that are used, drawn at random; Θ has (samples + forgotten) · C rows."""
    mu: float = 0.1
    """Weight decay of the training (theirs pulled towards the initial weights)."""
    scale: bool = True
    """Use the trapezium trick; it needs ``first=``."""
    max_bytes: int = 8 << 30
    """For blocks of the Jacobian. More means fewer passes over the samples."""
    chunk: int = 32
    """Samples whose gradients are computed in one call."""
    batched: bool = True
    """False: gradients one sample at a time, for models that ``torch.func.vmap`` does not allow."""
    seed: int = 0

    def __post_init__(self) -> None:
        above_zero(self, "mu")
        for name in ("samples", "max_bytes", "chunk", "seed"):
            integer(self, name, 0 if name == "seed" else 1)
        for name in ("scale", "batched"):
            one_of(self, name, (False, True))


@dataclass(frozen=True)
class Linearised:
    """A model linearised around its weights for the samples of a request: nearly all of NTK's time, and nothing of μ.

    Made once by :func:`linearise`, it serves any number of calls that differ in ``mu`` and ``scale``.
    """

    samples: Samples
    """The retained ones that were drawn, then those to forget."""
    retained: int
    forget: Samples
    residual: Tensor
    """softmax(f) − onehot(y), float64 [n, C]."""
    gram: Tensor
    """Θ without its ridge, float64 [n C, n C]."""
    model: str
    """The fingerprint of the model."""
    drawn: tuple[int, int]
    """``samples`` and ``seed`` of the settings it was made with."""
    weights: tuple[str, ...]
    """What it was differentiated by."""


@own_randomness
def linearise(
    model: nn.Module,
    forget_loader: Loader,
    retain_loader: Loader,
    config: NtkConfig | None = None,
    *,
    progress: Progress | None = None,
) -> Linearised:
    """The part of :func:`ntk` that does not depend on μ; arguments and errors as there."""
    config = settings(config, NtkConfig)
    original = untouched(model)
    forget = Samples.load(needed(forget_loader, "forget", "ntk"), "forget", device_of(original))
    retain = drawn(needed(retain_loader, "retain", "ntk"), "retain", config.samples, config.seed, device_of(original))
    joined = Samples([*retain.pairs(LOOK), *forget.pairs(LOOK)])
    net = duplicate(original)
    weights = trainable(net)
    residual = _residual(net, joined)

    def note(done: int, of: int) -> None:
        if progress is not None:
            progress("ntk", done, of)

    limits = config.max_bytes, config.chunk, note, partial(sample_gradients, net, batched=config.batched)
    with at_rest(net):
        gram = jacobian_gram(net, weights, joined, unit_cotangents(weights, joined, residual.shape[1]), *limits)
    by = fingerprint(original), (config.samples, config.seed), tuple(weights)
    return Linearised(joined, len(retain), forget, residual, gram, *by)


@own_randomness
def ntk(
    model: nn.Module,
    forget_loader: Loader,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: NtkConfig | None = None,
    *,
    first: Mapping[str, Tensor] | None = None,
    around: Linearised | None = None,
    progress: Progress | None = None,
) -> BaselineResult:
    """Forget by the change of the linearised model's solution.

    Args:
        model: the trained model; left untouched.
        forget_loader: the samples to forget.
        retain_loader: retained samples; ``config.samples`` of them are drawn.
        val: only to report an error before and after.
        config: see :class:`NtkConfig`.
        first: ``state_dict()`` of the weights before training. Without it s = 1, and ``extras["scaled"]`` is False.
        around: what :func:`linearise` made of the same model, samples and settings, to try several ``mu``; None: made
            now. The retained samples are those that it drew then, and ``retain_loader`` is not looked at.
        progress: called as ``progress("ntk", slices_done, slices)``.

    Raises:
        DataError: no retained samples.
        MismatchError: ``first`` or ``around`` is of another model, or ``around`` of other samples to forget.
        ConfigError: ``max_bytes`` is too small for this model.
    """
    began = time.perf_counter()
    config = settings(config, NtkConfig)
    original = untouched(model)
    _check_first(original, first)
    if around is None:
        retain = needed(retain_loader, "retain", "ntk")
        around = linearise(original, forget_loader, retain, config, progress=progress)
    else:
        _check_around(original, needed(forget_loader, "forget", "ntk"), config, around)
    net = duplicate(original)
    (for_retain, for_all), extras = _solutions(around.gram, around.residual, around.retained, config.mu)
    change: Change = {}
    failed = None
    if for_retain is None or for_all is None:
        failed = f"Θ is not positive definite even with a jitter of {extras['jitter']:.1e}; raise mu"
    else:
        solutions = for_retain, for_all
        change = _change(net, trainable(net), around.samples, solutions, first if config.scale else None, extras)
    done = "one step in closed form" + (
        "" if extras["scaled"] else ", not scaled" + (": no first= weights" if config.scale and first is None else "")
    )
    forget = list(around.forget.pairs(LOOK))
    closing = Closing(config, began, done, extras, forget, again(val), failed)
    return with_change(original, change, closing)


def _check_around(original: nn.Module, forget_loader: Loader, config: NtkConfig, around: Linearised) -> None:
    found = fingerprint(original)
    if around.model != found:
        raise MismatchError(f"around= is of model {around.model[:12]}, the model passed is {found[:12]}. Linearise it.")
    if around.weights != tuple(trainable(original)):
        raise MismatchError("around= was made when other weights required a gradient. Linearise the model as it is.")
    forget = Samples.load(forget_loader, "forget", device_of(original))
    if sorted(forget.digests("")) != sorted(around.forget.digests("")):
        raise MismatchError("around= is of other samples to forget. Pass the same forget_loader to linearise().")
    if around.drawn != (config.samples, config.seed):
        raise MismatchError(
            f"around= was made with samples, seed = {around.drawn}, the settings say {config.samples, config.seed}. "
            "Pass the same settings to linearise() and ntk()."
        )


def _check_first(original: nn.Module, first: Mapping[str, Tensor] | None) -> None:
    if first is None:
        return
    for name, weight in trainable(original).items():
        there = first.get(name)
        if not isinstance(there, Tensor) or there.shape != weight.shape:
            got = list(there.shape) if isinstance(there, Tensor) else "missing"
            raise MismatchError(
                f"first: {name!r} is {got}, the model has {list(weight.shape)}. Pass the state_dict() of this very "
                "model before it was trained."
            )


def _residual(net: nn.Module, samples: Samples) -> Tensor:
    """softmax(f) − onehot(y), float64 [n, C], in the order of the samples."""
    parts: list[Tensor] = []
    with at_rest(net):
        for inputs, labels in samples.pairs(LOOK):
            p = logits_of(net, inputs, labels).double().softmax(1)
            parts.append(p - torch.nn.functional.one_hot(labels, p.shape[1]))
    if len({part.shape[1] for part in parts}) != 1:
        raise DataError("The model returns a different number of logits from batch to batch.")
    return torch.cat(parts)


def _solutions(
    gram: Tensor, residual: Tensor, retained: int, mu: float
) -> tuple[tuple[Tensor | None, Tensor | None], dict[str, object]]:
    """Θ⁻¹e of the retained samples, which come first, and of all; and what there is to say about them."""
    samples, classes = residual.shape
    kept, e = retained * classes, residual.reshape(-1)
    part = solve(gram[:kept, :kept], e[:kept], retained * mu)
    whole = solve(gram, e, samples * mu)
    return (part.x, whole.x), {
        "retained_used": retained,
        "rows": len(e),
        "jitter": max(part.jitter, whole.jitter),
        "solve_residual": max(part.residual, whole.residual),
        "scaled": False,
        "scale": 1.0,
    }


def _change(
    net: nn.Module,
    weights: Mapping[str, nn.Parameter],
    samples: Samples,
    solutions: tuple[Tensor, Tensor],
    first: Mapping[str, Tensor] | None,
    extras: dict[str, object],
) -> Change:
    """s Δ; what s is goes into the extras."""
    retain, every = solutions
    padded = torch.cat([retain, retain.new_zeros(len(every) - len(retain))])
    size = 128
    delta = pulled(net, weights, samples, (every - padded).view(len(samples), -1), size)
    if first is None:
        return delta
    by_retain = pulled(net, weights, samples, -padded.view(len(samples), -1), size)
    mismatch = {
        name: weight.detach().double() - first[name].to(weight.device, torch.float64) - by_retain[name]
        for name, weight in weights.items()
    }
    s = trapezium(delta, mismatch)
    extras |= {"scaled": True, "scale": s}
    return {name: s * part for name, part in delta.items()}


def trapezium(delta: Mapping[str, Tensor], mismatch: Mapping[str, Tensor]) -> float:
    """s = 1 + 2 |cos(Δ, m)| ‖m‖ / ‖Δ‖, that is 1 + 2 |Δ·m| / ‖Δ‖²; 1 where Δ is zero."""
    dot = sum(float((delta[name] * mismatch[name]).sum()) for name in delta)
    square = sum(float((part * part).sum()) for part in delta.values())
    return 1.0 + 2.0 * abs(dot) / square if square > 0 else 1.0


NTK = Method(
    "ntk", "NTK", ntk, NtkConfig, frozenset({"forget", "retain", "first weights"}), "Golatkar et al., ECCV 2020"
)
