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

A subclass is read as its base is, unless it has a ``forward`` of its own, which may do anything to the input or to the
weight; then it is refused until somebody who knows says how it reads. A type of your own needs a function from its
input to its rows; a subclass that reads as its base does needs none::

    unweave.layers.register(MyLinear, rows=lambda module, x: x.flatten(0, -2))
    unweave.layers.register(MyConv2d)  # class MyConv2d(nn.Conv2d)
"""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from unweave.errors import ConfigError, LayerChoiceError, LayerError
from unweave.rows import (
    Rows,
    Tap,
    attention_taps,
    conv_rows,
    conv_slopes,
    conv_transpose_rows,
    embedding_rows,
    linear_rows,
    linear_slopes,
)


@dataclass(frozen=True)
class LayerKind:
    """How layers of one type see their weight."""

    name: str
    taps: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Iterable[Tap]]
    layout: str = "out-first"
    weight: str = "weight"
    groups: Callable[[Any], int] = lambda module: 1
    refuse: Callable[[Any], str | None] = lambda module: None
    count: Callable[[Tensor], int] = lambda chunk: int(chunk.shape[1])
    """How many rows a chunk [groups, n, d] stands for."""
    slopes: Callable[[Any, Tensor], Tensor] | None = None
    """From a module and the gradient of its output to slopes [groups, n, m], one for each row; None: not known."""
    unstrided: LayerKind | None = None
    """The same type with its stride ignored, as the paper's code reads convolutions."""


_REGISTRY: dict[type | str, LayerKind] = {}


def register(
    module_type: type | str,
    rows: Callable[[Any, Tensor], Rows] | None = None,
    *,
    layout: str = "out-first",
    weight: str = "weight",
    groups: Callable[[Any], int] = lambda module: 1,
    refuse: Callable[[Any], str | None] = lambda module: None,
) -> None:
    """Teach the package a layer type; subclasses of it are found too.

    Args:
        module_type: the class, or its dotted name when it should not be imported.
        rows: from the module and its input to the rows its weight sees, [n, d] or [groups, n, d]. None for a subclass
            of a known type that treats its input and its weight as that type does; the rest is then that type's too.
        layout: ``"out-first"`` or ``"in-first"``; see the module's docstring.
        weight: the name of the parameter.
        groups: from the module to its number of groups.
        refuse: from the module to the reason why this one cannot be handled, or None.

    Raises:
        ConfigError: the layout is unknown, or there are neither rows nor a known base.
    """
    if layout not in ("out-first", "in-first"):
        raise ConfigError(f"Invalid layout: {layout!r}. Supported: 'out-first', 'in-first'.")
    name = module_type if isinstance(module_type, str) else module_type.__name__
    if rows is not None:
        _REGISTRY[module_type] = LayerKind(name, _single_tap(rows), layout, weight, groups, refuse)
        return
    base = None if isinstance(module_type, str) else _registered_base(module_type)
    if base is None:
        raise ConfigError(f"{name} derives from no known type, so nothing says what its rows are. Pass rows=.")
    _REGISTRY[module_type] = replace(_kind_of_class(base), name=name)


def kind_of(module: nn.Module) -> LayerKind | None:
    """The registered kind of a module, looked up along its class hierarchy; None for a type nobody registered."""
    base = _registered_base(type(module))
    return None if base is None else _kind_of_class(base)


def readable_kind(module: nn.Module) -> LayerKind | None:
    """The kind of a module whose rows can be told from its input: one that runs the forward of the registered class."""
    return None if _own_forward(module) else kind_of(module)


def _registered_base(module_type: type) -> type | None:
    return next((cls for cls in module_type.__mro__ if cls in _REGISTRY or _dotted(cls) in _REGISTRY), None)


def _kind_of_class(cls: type) -> LayerKind:
    return _REGISTRY[cls] if cls in _REGISTRY else _REGISTRY[_dotted(cls)]


def _dotted(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _own_forward(module: nn.Module) -> str | None:
    """The name of a class below the registered one that replaces its forward, if there is one."""
    base = _registered_base(type(module))
    below = itertools.takewhile(lambda cls: cls is not base, type(module).__mro__) if base is not None else ()
    return next((cls.__name__ for cls in below if "forward" in vars(cls)), None)


def _single_tap(rows: Callable[[Any, Tensor], Rows]) -> Callable[..., Iterable[Tap]]:
    def taps(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Tap]:
        x = args[0] if args else _first_input(module, kwargs)
        return [("", lambda: rows(module, x))]

    return taps


def _first_input(module: nn.Module, kwargs: dict[str, Any]) -> Any:
    """What a forward called by keyword alone got as its first argument; keywords come in any order."""
    first = list(inspect.signature(type(module).forward).parameters)[1]
    return kwargs[first] if first in kwargs else next(iter(kwargs.values()))


# ---------------------------------------------------------------------------------------------- a model's layers


@dataclass(frozen=True)
class Layer:
    """One weight of a model, and every module that uses it.

    ``owners`` are the ``named_modules()`` paths of all modules whose rows it sees; ``name`` is the first of them, as it
    is without ``torch.compile``.
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
    candidates = {plain_name(path): (path, m) for path, m in model.named_modules() if kind_of(m) is not None}
    chosen = select(only, _last_users(candidates) if isinstance(only, int) else list(candidates))
    wanted = {id(_movable_weight(name, candidates[name][1])) for name in chosen}
    layers: dict[int, Layer] = {}
    for name, (path, module) in candidates.items():
        layer = _describe(name, path, module)
        # A module that was not asked for still counts where it shares the weight of one that was.
        if layer is None or id(layer.parameter) not in wanted:
            continue
        _movable_weight(name, module)
        known = layers.get(id(layer.parameter))
        layers[id(layer.parameter)] = layer if known is None else _merge(known, layer)
    if not layers:
        raise LayerError(
            f"No layer of a known type in {type(model).__name__}. Supported: {', '.join(sorted(supported()))}, "
            "and types added with unweave.layers.register()."
        )
    _check_unknown_users(model, layers)
    return {layer.name: layer for layer in layers.values()}


def plain_name(path: str) -> str:
    """A path as it is without ``torch.compile``, which wraps a module in another one that holds it as _orig_mod."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def _last_users(candidates: Mapping[str, tuple[str, nn.Module]]) -> list[str]:
    """Of the names that share a weight only the last, so that the last k layers are k weights."""
    by_weight: dict[int | str, str] = {}
    for name, (_, module) in candidates.items():
        kind = kind_of(module)
        weight = None if kind is None else module._parameters.get(kind.weight)
        key = name if weight is None else id(weight)
        by_weight.pop(key, None)
        by_weight[key] = name
    return list(by_weight.values())


def select(only: Sequence[str] | int | None, names: list[str]) -> list[str]:
    """Resolve a ``layers=`` argument against the known names, in their order.

    Raises:
        LayerChoiceError: a name that is not there (with the nearest one that is), none at all, or k < 1.
    """
    if only is None:
        return names
    if isinstance(only, int):
        if only < 1 or isinstance(only, bool):
            raise LayerChoiceError(f"Invalid layers={only}: the last k layers need k >= 1.")
        return names[-only:]
    if isinstance(only, str):
        only = [only]
    for name in only:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise LayerChoiceError(f"Unknown layer {name!r}.{hint} Known: {', '.join(names)}.")
    if not only:
        raise LayerChoiceError("layers=[] leaves nothing to move. Name at least one layer, or pass None for all.")
    return [name for name in names if name in set(only)]


def moving(model: nn.Module, only: Sequence[str] | int | None, names: list[str]) -> list[str]:
    """The layers that a request may change: those named, or else (the last k) whose weight requires a gradient.

    Where no parameter of the model does, all of them: it was loaded to be used, and nobody chose among its layers.

    Raises:
        LayerChoiceError: see :func:`select`; or all of them are frozen, and other parameters are not.
    """
    if only is not None and not isinstance(only, int):
        return select(only, names)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return select(only, names)
    layers = find_layers(model, names)
    free = [name for name in names if layers[name].parameter.requires_grad]
    if not free:
        raise LayerChoiceError(
            f"All layers of the Grams are frozen (requires_grad=False): {', '.join(names)}. Name those that may move "
            "with layers= (--layers)."
        )
    return select(only, free)


def supported() -> list[str]:
    """The names of the registered layer types."""
    return [kind.name for kind in _REGISTRY.values()]


def _describe(name: str, path: str, module: nn.Module) -> Layer | None:
    kind = kind_of(module)
    weight = None if kind is None else module._parameters.get(kind.weight)
    if kind is None or weight is None or isinstance(weight, nn.parameter.UninitializedParameter):
        return None
    groups = kind.groups(module)
    d = weight.shape[0] // groups if kind.layout == "in-first" else weight.shape[1:].numel()
    return Layer(name, kind, weight, (path,), groups, d)


def _merge(known: Layer, other: Layer) -> Layer:
    """One Parameter used by two modules sees the rows of both, if both read it as the same matrix."""
    if (known.kind.layout, known.groups, known.d) != (other.kind.layout, other.groups, other.d):
        raise LayerError(
            f"Layers {known.name!r} ({known.kind.name}) and {other.name!r} ({other.kind.name}) share one weight but "
            f"read it as different matrices, so no single step is safe for both. Leave both out with layers=."
        )
    return replace(known, owners=known.owners + other.owners)


def _movable_weight(name: str, module: nn.Module) -> nn.Parameter:
    """The weight of a layer that was asked for, or the reason why it cannot move."""
    kind = kind_of(module)
    assert kind is not None
    weight = module._parameters.get(kind.weight)
    reason = kind.refuse(module)
    if isinstance(weight, nn.parameter.UninitializedParameter):
        reason = "it is lazy and has no weight yet. Run the model once on a batch"
    elif own := _own_forward(module):
        reason = (
            f"{own} has a forward of its own, which may change the input or the weight. If it does not, call "
            f"unweave.layers.register({own}); if it does, pass rows= too"
        )
    elif weight is None and reason is None:
        reason = f"{kind.weight!r} is computed from other parameters. {_remedy_for_computed(module, kind.weight)}"
    if reason is not None or weight is None:
        raise LayerError(
            f"Layer {name!r} ({kind.name}): {reason}, or leave the layer out with layers=, which freezes it."
        )
    return weight


def _remedy_for_computed(module: nn.Module, weight: str) -> str:
    if parametrize.is_parametrized(module, weight):
        call = f"torch.nn.utils.parametrize.remove_parametrizations(module, {weight!r})"
    elif f"{weight}_orig" in module._parameters and f"{weight}_mask" in module._buffers:
        call = f"torch.nn.utils.prune.remove(module, {weight!r})"
    elif f"{weight}_orig" in module._parameters:
        call = f"torch.nn.utils.remove_spectral_norm(module, {weight!r})"
    else:
        call = f"torch.nn.utils.remove_weight_norm(module, {weight!r})"
    return f"Make it an ordinary parameter with {call}"


def _check_unknown_users(model: nn.Module, layers: dict[int, Layer]) -> None:
    """A weight that is also something else would see rows that nobody counts."""
    for path, parameter in model.named_parameters(remove_duplicate=False):
        layer = layers.get(id(parameter))
        if layer is None:
            continue
        owner_path, _, attribute = path.rpartition(".")
        owner = model.get_submodule(owner_path)
        kind = kind_of(owner)
        if kind is None or kind.weight != attribute:
            raise LayerError(
                f"Layer {layer.name!r}: its weight is also {path!r}, in a {type(owner).__name__} whose inputs cannot "
                "be read. Register that type with unweave.layers.register(), or leave "
                f"{layer.name!r} out with layers=."
            )


# ------------------------------------------------------------------------------------------------- the known types


def _refuse_embedding(module: Any) -> str | None:
    if module.max_norm is not None:
        return "max_norm rewrites the weight in every forward pass. Set max_norm=None"
    return None


def _refuse_attention(module: Any) -> str | None:
    if module.in_proj_weight is None:
        return "its projections are three weights of different widths. Use one without kdim= and vdim="
    return None


def _register_builtin() -> None:
    register(nn.Linear, linear_rows)
    register("transformers.pytorch_utils.Conv1D", linear_rows, layout="in-first")
    for linear in (nn.Linear, "transformers.pytorch_utils.Conv1D"):
        _REGISTRY[linear] = replace(_REGISTRY[linear], slopes=linear_slopes)
    register(
        nn.Embedding,
        embedding_rows,
        layout="in-first",
        groups=lambda module: int(module.num_embeddings),
        refuse=_refuse_embedding,
    )
    tally = replace(_REGISTRY[nn.Embedding], count=lambda chunk: round(chunk.double().square().sum().item()))
    _REGISTRY[nn.Embedding] = tally
    for conv in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        unstrided = _single_tap(lambda module, x: conv_rows(module, x, strided=False))
        register(conv, conv_rows, groups=lambda module: int(module.groups))
        unread = replace(_REGISTRY[conv], taps=unstrided)
        _REGISTRY[conv] = replace(_REGISTRY[conv], slopes=conv_slopes, unstrided=unread)
    for transpose in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
        register(transpose, conv_transpose_rows, layout="in-first", groups=lambda module: int(module.groups))
    _REGISTRY[nn.MultiheadAttention] = LayerKind(
        "MultiheadAttention", attention_taps, weight="in_proj_weight", groups=lambda m: 3, refuse=_refuse_attention
    )


_register_builtin()
