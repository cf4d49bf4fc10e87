"""Where a weight meets its inputs: the one registry of layer types.

Convention, used everywhere in this package. A layer multiplies *rows* by its weight seen as a *matrix*::

    rows    [groups, n, d]    what the weight sees: one row for each product it takes part in
    matrix  [groups, m, d]    the weight: m outputs for each of the groups
    out = rows @ matrix.mT    (before the bias)

so a change ΔW with ``rows @ ΔW.mT == 0`` leaves the layer's output where it was. Two layouts cover every weight:

    "out-first"   weight [out, ...]   matrix = weight.reshape(groups, out / groups, d)
    "in-first"    weight [in, ...]    matrix = weight.reshape(groups, d, m).mT

| layer            | layout    | groups        | d                     | a row is                         |
|------------------|-----------|---------------|-----------------------|----------------------------------|
| Linear           | out-first | 1             | in                    | an input vector                  |
| Conv1d/2d/3d     | out-first | groups        | in / groups · kernel  | a padded input patch             |
| ConvTranspose    | in-first  | groups        | in / groups           | the channels of one input pixel  |
| Embedding        | in-first  | number of ids | 1                     | a 1 for each time the id occurs  |
| HF Conv1D        | in-first  | 1             | in                    | an input vector                  |
| MultiheadAttention | out-first | 3 (q, k, v) | embed                 | a query, key or value vector     |

Your own type needs a function from its input to its rows::

    unweave.layers.register(MyLinear, rows=lambda module, x: x.flatten(0, -2))
"""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unweave.errors import ConfigError, LayerError

Rows = Tensor | Iterable[Tensor]
"""Rows [n, d] or [groups, n, d], whole or in chunks."""

Tap = tuple[str, Callable[[], Rows]]
"""The path of a weight's owner below the hooked module ("" for the module itself), and how to get its rows."""

PATCH_ELEMENTS = 1 << 22
"""How many numbers one chunk of convolution patches may hold."""


@dataclass(frozen=True)
class LayerKind:
    """How layers of one type see their weight."""

    name: str
    taps: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Iterable[Tap]]
    layout: str = "out-first"
    weight: str = "weight"
    groups: Callable[[Any], int] = lambda module: 1
    refuse: Callable[[Any], str | None] = lambda module: None
    unstrided: LayerKind | None = None
    """The same type with its stride ignored, as the paper's code reads convolutions."""


_REGISTRY: dict[type | str, LayerKind] = {}


def register(
    module_type: type | str,
    rows: Callable[[Any, Tensor], Rows],
    *,
    layout: str = "out-first",
    weight: str = "weight",
    groups: Callable[[Any], int] = lambda module: 1,
    refuse: Callable[[Any], str | None] = lambda module: None,
) -> None:
    """Teach the package a layer type; subclasses of it are found too.

    Args:
        module_type: the class, or its dotted name when it should not be imported.
        rows: from the module and its input to the rows its weight sees, [n, d] or [groups, n, d].
        layout: ``"out-first"`` or ``"in-first"``; see the module's docstring.
        weight: the name of the parameter.
        groups: from the module to its number of groups.
        refuse: from the module to the reason why this one cannot be handled, or None.

    Raises:
        ConfigError: the layout is unknown.
    """
    if layout not in ("out-first", "in-first"):
        raise ConfigError(f"Invalid layout: {layout!r}. Supported: 'out-first', 'in-first'.")
    name = module_type if isinstance(module_type, str) else module_type.__name__
    _REGISTRY[module_type] = LayerKind(name, _single_tap(rows), layout, weight, groups, refuse)


def kind_of(module: nn.Module) -> LayerKind | None:
    """The registered kind of a module, looked up along its class hierarchy; None for a type nobody registered."""
    for cls in type(module).__mro__:
        kind = _REGISTRY.get(cls) or _REGISTRY.get(f"{cls.__module__}.{cls.__qualname__}")
        if kind is not None:
            return kind
    return None


def _single_tap(rows: Callable[[Any, Tensor], Rows]) -> Callable[..., Iterable[Tap]]:
    def taps(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Tap]:
        x = args[0] if args else next(iter(kwargs.values()))
        return [("", lambda: rows(module, x))]

    return taps


# ---------------------------------------------------------------------------------------------- a model's layers


@dataclass(frozen=True)
class Layer:
    """One weight of a model, and every module that uses it.

    ``name`` is the ``named_modules()`` path of the first user; ``owners`` are all the paths whose rows it sees.
    """

    name: str
    kind: LayerKind
    parameter: nn.Parameter
    owners: tuple[str, ...]
    groups: int
    d: int

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return tuple(self.parameter.shape)


def as_matrix(weight: Tensor, layout: str, groups: int, d: int) -> Tensor:
    """A weight, or its gradient, as [groups, m, d]."""
    if layout == "out-first":
        return weight.reshape(groups, -1, d)
    return weight.reshape(groups, d, -1).mT


def from_matrix(matrix: Tensor, layout: str, shape: Sequence[int]) -> Tensor:
    """The inverse of :func:`as_matrix`: [groups, m, d] back into the weight's own shape."""
    return (matrix if layout == "out-first" else matrix.mT).reshape(*shape)


def find_layers(model: nn.Module, only: Sequence[str] | int | None = None) -> dict[str, Layer]:
    """The layers of a model whose weights can move, in the order of ``named_modules()``.

    Args:
        model: any module.
        only: names to restrict to, or an int k for the last k layers; None for all.

    Raises:
        LayerError: no known layer; an unknown name; a layer that is refused (the message says why and what to do).
    """
    candidates = {path: m for path, m in model.named_modules() if kind_of(m) is not None}
    wanted = {id(_movable_weight(path, candidates[path])) for path in select(only, list(candidates))}
    layers: dict[int, Layer] = {}
    for path, module in candidates.items():
        layer = _describe(path, module)
        # A module that was not asked for still counts where it shares the weight of one that was.
        if layer is None or id(layer.parameter) not in wanted:
            continue
        known = layers.get(id(layer.parameter))
        layers[id(layer.parameter)] = layer if known is None else _merge(known, layer)
    if not layers:
        raise LayerError(
            f"No layer of a known type in {type(model).__name__}. Supported: {', '.join(sorted(supported()))}, "
            "and types added with unweave.layers.register()."
        )
    _check_unknown_users(model, layers)
    return {layer.name: layer for layer in layers.values()}


def select(only: Sequence[str] | int | None, names: list[str]) -> list[str]:
    """Resolve a ``layers=`` argument against the known names, in their order.

    Raises:
        LayerError: a name that is not there (with the nearest one that is), none at all, or k < 1.
    """
    if only is None:
        return names
    if isinstance(only, int):
        if only < 1:
            raise LayerError(f"Invalid layers={only}: the last k layers need k >= 1.")
        return names[-only:]
    if isinstance(only, str):
        only = [only]
    for name in only:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise LayerError(f"Unknown layer {name!r}.{hint} Known: {', '.join(names)}.")
    if not only:
        raise LayerError("layers=[] leaves nothing to move. Name at least one layer, or pass None for all.")
    return [name for name in names if name in set(only)]


def supported() -> list[str]:
    """The names of the registered layer types."""
    return [kind.name for kind in _REGISTRY.values()]


def _describe(path: str, module: nn.Module) -> Layer | None:
    kind = kind_of(module)
    weight = None if kind is None else module._parameters.get(kind.weight)
    if kind is None or weight is None or isinstance(weight, nn.parameter.UninitializedParameter):
        return None
    groups = kind.groups(module)
    d = weight.shape[0] // groups if kind.layout == "in-first" else weight[0].numel()
    return Layer(path, kind, weight, (path,), groups, d)


def _merge(known: Layer, other: Layer) -> Layer:
    """One Parameter used by two modules sees the rows of both, if both read it as the same matrix."""
    if (known.kind.layout, known.groups, known.d) != (other.kind.layout, other.groups, other.d):
        raise LayerError(
            f"Layers {known.name!r} ({known.kind.name}) and {other.name!r} ({other.kind.name}) share one weight but "
            f"read it as different matrices, so no single step is safe for both. Leave both out with layers=."
        )
    return replace(known, owners=known.owners + other.owners)


def _movable_weight(path: str, module: nn.Module) -> nn.Parameter:
    """The weight of a layer that was asked for, or the reason why it cannot move."""
    kind = kind_of(module)
    assert kind is not None
    leave_out = "or leave the layer out with layers=, which freezes it"
    reason = kind.refuse(module)
    if reason is not None:
        raise LayerError(f"Layer {path!r} ({kind.name}): {reason}, {leave_out}.")
    weight = module._parameters.get(kind.weight)
    if weight is None:
        raise LayerError(
            f"Layer {path!r} ({kind.name}): {kind.weight!r} is computed from other parameters (weight norm, spectral "
            "norm or another parametrisation). Make it an ordinary parameter with "
            f"torch.nn.utils.parametrize.remove_parametrizations(module, {kind.weight!r}), {leave_out}."
        )
    if isinstance(weight, nn.parameter.UninitializedParameter):
        raise LayerError(f"Layer {path!r} is lazy and has no weight yet. Run the model once on a batch first.")
    return weight


def _check_unknown_users(model: nn.Module, layers: dict[int, Layer]) -> None:
    """A weight that an unknown module uses too would see rows that nobody counts."""
    for path, parameter in model.named_parameters(remove_duplicate=False):
        layer = layers.get(id(parameter))
        owner = path.rpartition(".")[0]
        if layer is not None and owner not in layer.owners and kind_of(model.get_submodule(owner)) is None:
            raise LayerError(
                f"Layer {layer.name!r}: its weight is also {path!r}, in a {type(model.get_submodule(owner)).__name__} "
                "whose inputs cannot be read. Register that type with unweave.layers.register(), or leave "
                f"{layer.name!r} out with layers=."
            )


# ------------------------------------------------------------------------------------------------- the known types


def _linear_rows(module: nn.Module, x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _conv_rows(module: Any, x: Tensor, strided: bool = True) -> Iterator[Tensor]:
    """Patches of the padded input, [groups, n, in/groups · kernel], a bounded chunk at a time.

    The patches are a strided *view* of the padded input, so only the chunk that is copied out takes memory.
    """
    axes = len(module.kernel_size)
    x = x if x.dim() == axes + 2 else x.unsqueeze(0)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = F.pad(x, _reversed_padding(module), mode=mode)
    stride = module.stride if strided else (1,) * axes
    geometry = list(zip(x.shape[2:], module.kernel_size, stride, module.dilation, strict=True))
    out = [(size - dilation * (k - 1) - 1) // step + 1 for size, k, step, dilation in geometry]
    steps = x.stride()[2:]
    view = x.as_strided(
        (*x.shape[:2], *out, *module.kernel_size),
        (
            *x.stride()[:2],
            *(s * step for s, step in zip(steps, stride, strict=True)),
            *(s * dilation for s, dilation in zip(steps, module.dilation, strict=True)),
        ),
    )
    groups, channels = module.groups, x.shape[1] // module.groups
    # [N, groups, channels, *out, *kernel] -> [groups, N, *out, channels, *kernel]
    view = view.unflatten(1, (groups, channels))
    view = view.permute(1, 0, *range(3, 3 + axes), 2, *range(3 + axes, 3 + 2 * axes))
    yield from _chunks(view, axes)


def _chunks(view: Tensor, axes: int) -> Iterator[Tensor]:
    """Split a patch view [groups, N, *out, channels, *kernel] along N, and along the first out axis if need be."""
    groups, samples, lines = view.shape[:3]
    d = view.shape[2 + axes :].numel()
    per_line = groups * view.shape[3 : 2 + axes].numel() * d
    line_step = max(1, min(lines, PATCH_ELEMENTS // max(per_line, 1)))
    sample_step = max(1, PATCH_ELEMENTS // max(per_line * lines, 1)) if line_step == lines else 1
    for i in range(0, samples, sample_step):
        for j in range(0, lines, line_step):
            yield view[:, i : i + sample_step, j : j + line_step].reshape(groups, -1, d)


def _reversed_padding(module: Any) -> list[int]:
    """Padding as F.pad wants it: last axis first, (before, after) for each."""
    sides: list[int] = []
    for axis in reversed(range(len(module.kernel_size))):
        if module.padding == "valid":
            before = after = 0
        elif module.padding == "same":
            total = module.dilation[axis] * (module.kernel_size[axis] - 1)
            before, after = total // 2, total - total // 2
        else:
            before = after = module.padding[axis]
        sides += [before, after]
    return sides


def _conv_transpose_rows(module: Any, x: Tensor) -> Tensor:
    """Input pixels: y = Σ over taps k of W[:, :, k]ᵀ x(pixel), so each tap sees the channels of each pixel."""
    axes = len(module.kernel_size)
    x = x if x.dim() == axes + 2 else x.unsqueeze(0)
    pixels = x.unflatten(1, (module.groups, -1)).flatten(3)  # [N, groups, in/groups, pixels]
    return pixels.permute(1, 0, 3, 2).reshape(module.groups, -1, pixels.shape[2])


def _embedding_rows(module: Any, ids: Tensor) -> Iterator[Tensor]:
    """Each id is a group of its own with d = 1; a row of value sqrt(count) stands for that many ones."""
    counts = torch.bincount(ids.reshape(-1), minlength=module.num_embeddings).double()
    yield counts.sqrt().reshape(-1, 1, 1)


def _refuse_embedding(module: Any) -> str | None:
    if module.max_norm is not None:
        return "max_norm rewrites the weight in every forward pass. Set max_norm=None"
    return None


def _attention_taps(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Tap]:
    call = inspect.signature(nn.MultiheadAttention.forward).bind(module, *args, **kwargs)

    def in_proj() -> Tensor:
        inputs = [_linear_rows(module, call.arguments[key]) for key in ("query", "key", "value")]
        # Cross-attention has fewer queries than keys: zero rows add nothing to a Gram.
        longest = max(len(x) for x in inputs)
        return torch.stack([F.pad(x, (0, 0, 0, longest - len(x))) for x in inputs])

    def out_proj() -> Tensor:
        # With the identity as output projection, attention returns what the real one is given.
        twin = copy.copy(module)
        embed = module.embed_dim
        identity = nn.Linear(embed, embed, bias=False, device="meta")
        identity.weight = nn.Parameter(
            torch.eye(embed, dtype=module.out_proj.weight.dtype, device=module.out_proj.weight.device)
        )
        twin._modules = {"out_proj": identity}
        attended: Tensor = nn.MultiheadAttention.forward(twin, *args, **kwargs)[0]
        return _linear_rows(module, attended)

    return [("", in_proj), ("out_proj", out_proj)]


def _refuse_attention(module: Any) -> str | None:
    if module.in_proj_weight is None:
        return "kdim or vdim differ from embed_dim, so its projections are three weights of different widths"
    return None


def _register_builtin() -> None:
    register(nn.Linear, _linear_rows)
    register("transformers.pytorch_utils.Conv1D", _linear_rows, layout="in-first")
    register(
        nn.Embedding,
        _embedding_rows,
        layout="in-first",
        groups=lambda module: int(module.num_embeddings),
        refuse=_refuse_embedding,
    )
    for conv in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        unstrided = _single_tap(lambda module, x: _conv_rows(module, x, strided=False))
        register(conv, _conv_rows, groups=lambda module: int(module.groups))
        _REGISTRY[conv] = replace(_REGISTRY[conv], unstrided=replace(_REGISTRY[conv], taps=unstrided))
    for transpose in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
        register(transpose, _conv_transpose_rows, layout="in-first", groups=lambda module: int(module.groups))
    _REGISTRY[nn.MultiheadAttention] = LayerKind(
        "MultiheadAttention", _attention_taps, weight="in_proj_weight", groups=lambda m: 3, refuse=_refuse_attention
    )


_register_builtin()
