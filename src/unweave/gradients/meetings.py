"""What layers meet of single samples, and single samples' gradients from that: one pass for a whole batch.

Of sample i a layer meets L rows X_i [L, d], as the patches of a map or the words of a text. With B_i [L, m], the slopes
of Σ_c v_c f_c(x_i) by what the layer makes of them, the gradient of its weight is

    g_i = B_iᵀ X_i        [m, d], for each of its groups

Samples do not know of each other, so the slopes of all of them come of one pass back. Weights that are met in another
way are served by ``torch.func.vmap`` (:mod:`unweave.gradients.per_sample`). Which those are is found out beforehand, on
the first samples: rows must be those of one sample after the other, and what they say of the samples, each weighed
otherwise,

    Σ_i w_i g_i = Σ_i (w_i B_i)ᵀ X_i        [m, d], in one product

must be what autograd says of Σ_i w_i Σ_c v_c f_c(x_i). Later a layer tells no more as soon as it is given other than
one batch of samples, as an expert among others is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from unweave.gradients.per_sample import at_most
from unweave.layers import LayerKind, from_matrix, readable_kind
from unweave.reading.batches import Inputs, copies_of_one, run
from unweave.reading.rest import only_moving
from unweave.reading.samples import Samples
from unweave.rows import Rows

Users = dict[str, list[nn.Module]]
"""For each weight the layers that it belongs to."""

ALIKE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""How far a batch's gradient may be from the sum of its samples', as a share of about all their lengths …"""
NEARLY_ALIKE = 1e-2
"""… in other precisions, and on a GPU, which may have few digits."""
DRAWS = 4
"""Of signs for the samples: with them gradients of any directions add up to about their lengths' root mean square."""


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
    """Those whose layers are given one sample after the other along the first axis, as its length says alone.

    A layer that is not given any tells nothing yet of how it would be.
    """
    shapes = dict[int, dict[nn.Module, list[torch.Size]]]()
    for copies in (2, 3):
        with torch.no_grad(), listening(_layers(users)) as calls:
            run(net, copies_of_one(inputs, copies))
        shapes[copies] = {module: [call.input.shape for call in own] for module, own in calls.items()}

    def hold(module: nn.Module) -> bool:
        two, three = shapes[2][module], shapes[3][module]
        return 0 < len(two) == len(three) and all(
            (a[0], b[0]) == (2, 3) and a[1:] == b[1:] for a, b in zip(two, three, strict=True)
        )

    return {name: own for name, own in users.items() if all(map(hold, own))}


def _adding_up(
    net: nn.Module, users: Users, weights: Mapping[str, nn.Parameter], inputs: Inputs, v: Tensor
) -> list[str]:
    """Those of which samples, as they are told, add up to what autograd says of the batch: nothing else uses them.

    Samples are weighed by 1 … n for that: parts of a sum would add up to it whichever sample each was said to be of.
    """
    weighing = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    own = {name: weights[name] for name in users}
    with only_moving(net, own.values()):
        pulled, calls = _run(net, users, inputs, v)
        if not pulled.requires_grad:  # no logit hangs on any of them
            return []
        still = {name: they for name, they in users.items() if all(call.still() for m in they for call in calls[m])}
        told = _Told.of(pulled, still, calls, len(v))
        weighed, _ = _run(net, {}, inputs, weighing[:, None] * v)
        asked = [own[name] for name in told.users]
        wholes = torch.autograd.grad(weighed, asked, allow_unused=True) if asked else ()
    ways = torch.cat([weighing[None], weighing * _signs(len(v), v)])
    sums = (told.weighed(name, own[name], ways) for name in told.users)
    return [name for name, s, whole in zip(told.users, sums, wholes, strict=True) if _adds_up(s, whole, len(v))]


def _signs(n: int, like: Tensor) -> Tensor:
    """[DRAWS, n], always the same ones."""
    drawn = torch.randint(2, (DRAWS, n), generator=torch.Generator().manual_seed(0))
    return (2 * drawn - 1).to(like.device, like.dtype)


def _run(net: nn.Module, users: Users, inputs: Inputs, v: Tensor) -> tuple[Tensor, Mapping[nn.Module, Sequence[Call]]]:
    """Σ_ic v_ic f_c(x_i), and the calls of the layers on the way."""
    with torch.enable_grad(), listening(_layers(users)) as calls:
        logits = run(net, inputs)
        return (logits * v.to(logits.dtype)).sum(), calls


def _adds_up(sums: Tensor, whole: Tensor | None, n: int) -> bool:
    """Whether a sum of n samples, sums[0], is the whole one; None: no logit hangs on the weight.

    With signs drawn for the samples, sums[1:], it is about as long as the root of all squared lengths; the lengths
    themselves are at most √n times as much together.
    """
    if whole is None:
        return not bool(sums.any())
    lengths = math.sqrt(n) * float(sums[1:].flatten(1).double().norm(dim=1).max())
    off = float((sums[0].double() - whole.double()).norm())
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
        told = _Told.of(pulled, own, calls, len(v))
    return {name: told.singles(name, weights[name]) for name in told.users}


@dataclass(frozen=True)
class _Told:
    """What the layers of some weights met of n samples, and the slopes by what they made of it."""

    users: Users
    """Without those whose layers were given other than n samples."""
    calls: Mapping[nn.Module, Sequence[Call]]
    slopes: Mapping[GradientEdge, Tensor]
    n: int

    @classmethod
    def of(cls, pulled: Tensor, users: Users, calls: Mapping[nn.Module, Sequence[Call]], n: int) -> _Told:
        """By one pass back from Σ_ic v_ic f_c(x_i)."""
        users = {
            name: own for name, own in users.items() if all(len(call.input) == n for m in own for call in calls[m])
        }
        edges = [call.edge for module in _layers(users) for call in calls[module] if call.edge is not None]
        found = torch.autograd.grad(pulled, edges, allow_unused=True) if edges and pulled.requires_grad else ()
        slopes = {edge: slope for edge, slope in zip(edges, found, strict=True) if slope is not None}
        return cls(users, calls, slopes, n)

    def singles(self, name: str, weight: Tensor) -> Tensor:
        """g_i, [n, *shape]: several calls, and several layers of one weight, add up."""
        return self._added(name, weight, self.n, _one_by_one)

    def weighed(self, name: str, weight: Tensor, ways: Tensor) -> Tensor:
        """Σ_i w_i g_i for several ways to weigh samples [W, n], [W, *shape], without the g_i."""
        return self._added(name, weight, len(ways), partial(_weighed, ways=ways))

    def _added(
        self, name: str, weight: Tensor, count: int, of: Callable[[Iterator[tuple[Tensor, Tensor]], int], Tensor]
    ) -> Tensor:
        precision = torch.promote_types(weight.dtype, torch.float32)
        total: Tensor | None = None
        for module in self.users[name]:
            kind = readable_kind(module)
            assert kind is not None
            assert kind.slopes is not None
            for call in self.calls[module]:
                if call.edge is not None and call.edge in self.slopes:
                    slopes = kind.slopes(module, self.slopes[call.edge]).to(precision)  # [groups, n L, m]
                    pieces = _pieces(module, kind, call, slopes)
                    found = from_matrix(of(pieces, slopes.shape[1] // self.n), kind.layout, (count, *weight.shape))
                    total = found if total is None else total + found
        return weight.new_zeros(count, *weight.shape, dtype=precision) if total is None else total


def _pieces(module: nn.Module, kind: LayerKind, call: Call, slopes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows [groups, k, d] of whole samples or parts of one, and their slopes [groups, k, m], in order."""
    at = 0
    ((_, seen),) = kind.taps(module, call.args, call.kwargs)
    for part in _chunks(seen()):
        x = (part if part.dim() == 3 else part[None]).detach().to(slopes.dtype)
        yield x, slopes[:, at : at + x.shape[1]]
        at += x.shape[1]


def _one_by_one(pieces: Iterator[tuple[Tensor, Tensor]], each: int) -> Tensor:
    """g_i = B_iᵀ X_i, [n, groups, m, d], of samples with so many rows each."""
    parts, at = list[Tensor](), 0
    for x, b in pieces:
        whole, begun = max(x.shape[1] // each, 1), at % each > 0
        products = b.unflatten(1, (whole, -1)).mT @ x.unflatten(1, (whole, -1))  # [groups, whole, m, d]
        if begun:
            parts[-1] += products
        else:
            parts.append(products)
        at += x.shape[1]
    return torch.cat(parts, 1).transpose(0, 1)


def _weighed(pieces: Iterator[tuple[Tensor, Tensor]], each: int, ways: Tensor) -> Tensor:
    """Σ_i w_i B_iᵀ X_i, [W, groups, m, d]."""
    sums: Tensor | None = None
    at = 0
    for x, b in pieces:
        if sums is None:
            sums = x.new_zeros(len(ways), len(x), b.shape[2], x.shape[2])
        own = ways[:, torch.arange(at, at + x.shape[1], device=ways.device) // each].to(b.dtype)
        for part, w in zip(sums, own, strict=True):
            part += (b * w[:, None]).mT @ x
        at += x.shape[1]
    assert sums is not None  # a layer that was called has rows
    return sums


def _chunks(rows: Rows) -> Iterator[Tensor]:
    yield from [rows] if isinstance(rows, Tensor) else rows


def _layers(users: Users) -> list[nn.Module]:
    """Each layer once."""
    return list(dict.fromkeys(module for own in users.values() for module in own))
