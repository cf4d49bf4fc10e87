"""What layers meet of single samples, and single samples' gradients from that: one pass for a whole batch.

Of sample i a layer meets L rows X_i [L, d], as the patches of a map or the words of a text. With B_i [L, m], the slopes
of Σ_c v_c f_c(x_i) by what the layer makes of them, the gradient of its weight is

    g_i = B_iᵀ X_i        [m, d], for each of its groups

Samples do not know of each other, so the slopes of all of them come of one pass back. Weights that are met in another
way are served by ``torch.func.vmap`` (:mod:`unweave.per_sample`). Which those are is found out beforehand, on the first
samples: rows must be those of one sample after the other, and gradients of single samples, each weighed otherwise, must
add up to the batch's own. Later a layer tells no more as soon as it is given other than one batch of samples, as an
expert among others is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from unweave.batches import Inputs, copies_of_one, run
from unweave.layers import LayerKind, from_matrix, readable_kind
from unweave.per_sample import at_most
from unweave.rest import only_moving
from unweave.rows import Rows
from unweave.samples import Samples

Users = dict[str, list[nn.Module]]
"""For each weight the layers that it belongs to."""

ALIKE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""How far a batch's gradient may be from the sum of its samples', as a share of all their lengths …"""
NEARLY_ALIKE = 1e-2
"""… in other precisions, and on a GPU, which may have few digits."""


@dataclass
class Call:
    """One call of a layer: what it was given, and where its output stands in the graph."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    edge: GradientEdge | None
    """None where no logit can hang on the output."""
    versions: tuple[int, ...] = field(default_factory=tuple)

    @property
    def input(self) -> Tensor:
        found: Tensor = self.args[0] if self.args else next(iter(self.kwargs.values()))
        return found

    def still(self) -> bool:
        """Whether what it was given has not been changed since."""
        return self.versions == _versions(self.args, self.kwargs)


@contextmanager
def listening(modules: Sequence[nn.Module]) -> Iterator[dict[nn.Module, list[Call]]]:
    """Note the calls of some layers; a place in the graph, unlike an output, is not changed by what comes after."""
    calls: dict[nn.Module, list[Call]] = {module: [] for module in modules}

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        edge = get_gradient_edge(output) if output.requires_grad else None
        calls[module].append(Call(args, kwargs, edge, _versions(args, kwargs)))

    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in calls]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    return tuple(value._version for value in (*args, *kwargs.values()) if isinstance(value, Tensor))


def users_of(net: nn.Module, weight: Tensor) -> list[nn.Module]:
    """The layers that a weight belongs to, if all of them are of kinds whose rows and slopes are known; else none."""
    users = [module for module in net.modules() if any(own is weight for own in module._parameters.values())]
    return users if all(_is_told(module, weight) for module in users) else []


def _is_told(module: nn.Module, weight: Tensor) -> bool:
    kind = readable_kind(module)
    return kind is not None and kind.slopes is not None and module._parameters.get(kind.weight) is weight


def told_apart(net: nn.Module, weights: Mapping[str, nn.Parameter], samples: Samples, v: Tensor, size: int) -> Users:
    """Of these weights those whose gradients of single samples :func:`gradients_from_meetings` can tell.

    Args:
        net: in eval mode, inside ``at_rest``.
        weights: by name.
        samples: n of them.
        v: cotangents [n, C].
        size: samples that are looked at together.
    """
    users = {name: found for name, weight in weights.items() if (found := users_of(net, weight))}
    inputs, _, positions = next(at_most(samples, size))
    first = _samples_first(net, users, inputs)
    return {name: users[name] for name in _adding_up(net, first, weights, inputs, v[positions])}


def _samples_first(net: nn.Module, users: Users, inputs: Inputs) -> Users:
    """Those whose layers are given one sample after the other along the first axis, as its length says alone."""
    shapes = dict[int, dict[nn.Module, list[torch.Size]]]()
    for copies in (2, 3):
        with torch.no_grad(), listening(_layers(users)) as calls:
            run(net, copies_of_one(inputs, copies))
        shapes[copies] = {module: [call.input.shape for call in own] for module, own in calls.items()}

    def hold(module: nn.Module) -> bool:
        two, three = shapes[2][module], shapes[3][module]
        return len(two) == len(three) and all(
            (a[0], b[0]) == (2, 3) and a[1:] == b[1:] for a, b in zip(two, three, strict=True)
        )

    return {name: own for name, own in users.items() if all(map(hold, own))}


def _adding_up(
    net: nn.Module, users: Users, weights: Mapping[str, nn.Parameter], inputs: Inputs, v: Tensor
) -> list[str]:
    """Those whose single samples' gradients add up to what autograd says of the batch: nothing else uses them.

    Samples are weighed by 1 … n for that: parts of a sum would add up to it whichever sample each was said to be of.
    """
    weighing = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    own = {name: weights[name] for name in users}
    with only_moving(net, own.values()):
        pulled, calls = _run(net, users, inputs, v)
        if not pulled.requires_grad:  # no logit hangs on any of them
            return []
        still = {name: they for name, they in users.items() if all(call.still() for m in they for call in calls[m])}
        found = _told(pulled, still, own, calls, len(v))
        weighed, _ = _run(net, {}, inputs, weighing[:, None] * v)
        wholes = torch.autograd.grad(weighed, [own[name] for name in found], allow_unused=True) if found else ()
    parts = (weighing.view(-1, *[1] * (one.dim() - 1)) * one for one in found.values())
    return [name for name, part, whole in zip(found, parts, wholes, strict=True) if _adds_up(part, whole)]


def _run(net: nn.Module, users: Users, inputs: Inputs, v: Tensor) -> tuple[Tensor, Mapping[nn.Module, Sequence[Call]]]:
    """Σ_ic v_ic f_c(x_i), and the calls of the layers on the way."""
    with torch.enable_grad(), listening(_layers(users)) as calls:
        logits = run(net, inputs)
        return (logits * v.to(logits.dtype)).sum(), calls


def _adds_up(singles: Tensor, whole: Tensor | None) -> bool:
    """Whether gradients of single samples [n, …] are the parts of a whole one; None: no logit hangs on the weight."""
    if whole is None:
        return not bool(singles.any())
    lengths = float(singles.double().flatten(1).norm(dim=1).sum())
    off = float((singles.double().sum(0) - whole.double()).norm())
    return off <= (NEARLY_ALIKE if whole.is_cuda else ALIKE.get(whole.dtype, NEARLY_ALIKE)) * lengths


def gradients_from_meetings(
    net: nn.Module, users: Users, weights: Mapping[str, nn.Parameter], inputs: Inputs, v: Tensor
) -> dict[str, Tensor]:
    """Per weight the gradients of Σ_c v_ic f_c(x_i), [n, *shape], for n samples and cotangents v [n, C].

    In float32 at least. A weight is left out where one of its layers was given more or fewer than these n samples. Call
    it inside ``at_rest``, with users that :func:`told_apart` has found.
    """
    own = {name: users[name] for name in weights}
    with only_moving(net, weights.values()):
        pulled, calls = _run(net, own, inputs, v)
        return _told(pulled, own, weights, calls, len(v))


def _told(
    pulled: Tensor,
    users: Users,
    weights: Mapping[str, Tensor],
    calls: Mapping[nn.Module, Sequence[Call]],
    n: int,
) -> dict[str, Tensor]:
    """The gradients of n single samples from the calls of the layers that have a weight; several calls add up.

    Weights whose layers were given other than n samples are left out.
    """
    users = {name: own for name, own in users.items() if all(len(call.input) == n for m in own for call in calls[m])}
    edges = [call.edge for module in _layers(users) for call in calls[module] if call.edge is not None]
    found = torch.autograd.grad(pulled, edges, allow_unused=True) if edges and pulled.requires_grad else ()
    slopes = {edge: slope for edge, slope in zip(edges, found, strict=True) if slope is not None}
    return {name: _of_calls(own, calls, slopes, weights[name], n) for name, own in users.items()}


def _of_calls(
    modules: Sequence[nn.Module],
    calls: Mapping[nn.Module, Sequence[Call]],
    slopes: Mapping[GradientEdge, Tensor],
    weight: Tensor,
    n: int,
) -> Tensor:
    """The gradients of a weight, [n, *shape]: of all calls of all layers that have it."""
    precision = torch.promote_types(weight.dtype, torch.float32)
    total: Tensor | None = None
    for module in modules:
        kind = readable_kind(module)
        assert kind is not None
        for call in calls[module]:
            if call.edge is not None and call.edge in slopes:
                matrices = _of_samples(module, kind, call, slopes[call.edge], n, precision)
                found = from_matrix(matrices, kind.layout, (n, *weight.shape))
                total = found if total is None else total + found
    return weight.new_zeros(n, *weight.shape, dtype=precision) if total is None else total


def _of_samples(
    module: nn.Module, kind: LayerKind, call: Call, gradient: Tensor, n: int, precision: torch.dtype
) -> Tensor:
    """g_i, [n, groups, m, d], from one call of a layer, whose rows come in chunks of whole samples or parts of one."""
    assert kind.slopes is not None
    slopes = kind.slopes(module, gradient).to(precision)
    each, at, parts = slopes.shape[1] // n, 0, list[Tensor]()
    ((_, seen),) = kind.taps(module, call.args, call.kwargs)
    for part in _chunks(seen()):
        x = (part if part.dim() == 3 else part[None]).detach().to(precision)
        b, begun = slopes[:, at : at + x.shape[1]], at % each > 0
        at += x.shape[1]
        whole = max(x.shape[1] // each, 1)
        products = b.unflatten(1, (whole, -1)).mT @ x.unflatten(1, (whole, -1))  # [groups, whole, m, d]
        if begun:
            parts[-1] += products
        else:
            parts.append(products)
    return torch.cat(parts, 1).transpose(0, 1)


def _chunks(rows: Rows) -> Iterator[Tensor]:
    yield from [rows] if isinstance(rows, Tensor) else rows


def _layers(users: Users) -> list[nn.Module]:
    """Each layer once."""
    return list(dict.fromkeys(module for own in users.values() for module in own))
