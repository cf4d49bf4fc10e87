"""LayerGrams: what is kept of the training set, and the algebra that takes samples out of it again.

For each layer, G = Σ r rᵀ over the rows r its weight sees, float64 [d, d], or [groups, d, d] for grouped weights.
Sums of outer products add and subtract: with D = D_r ∪ D_f disjoint, G(D) − G(D_f) = G(D_r), exactly up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike

import torch
from torch import Tensor

from unweave.behaviour.outcomes import ClassProfile
from unweave.behaviour.spread import MarginCounts
from unweave.errors import MismatchError
from unweave.layers import as_matrix, from_matrix
from unweave.transfer import moved

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "tf32": 1e-3, "bfloat16": 1e-2, "float16": 1e-2}
"""How far below zero an eigenvalue may fall, as a share of the trace before the subtraction, by the coarsest of the
model's dtype, the way its convolutions were run, and the dtype the Grams were stored in.

Rounding in a float32 forward pass depends on the batch size, so two passes over one sample agree to about 1e-6."""

DRIFT_TOLERANCE = 1e-2
"""The same once a request was carried out: later rows come from the changed model, so they differ a little."""


@dataclass(frozen=True)
class LayerInfo:
    """The shape of one layer's weight, how it becomes a matrix, and how many rows it saw."""

    kind: str
    layout: str
    groups: int
    d: int
    weight_shape: tuple[int, ...]
    rows: int

    def as_matrix(self, weight: Tensor) -> Tensor:
        """A weight or gradient as [groups, m, d]."""
        return as_matrix(weight, self.layout, self.groups, self.d)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """[groups, m, d] back into the weight's shape."""
        return from_matrix(matrix, self.layout, self.weight_shape)


CONVOLUTIONS = {"float32": "ieee", "tf32": "tf32"}
"""How a pass may run convolutions of float32, and PyTorch's word for it."""


@dataclass(frozen=True)
class Manner:
    """How samples are read; two passes that do it alike see the same rows."""

    transform: str = ""
    stride: str = "layer"
    convolutions: str = "float32"


@dataclass(frozen=True)
class Origin:
    """What Grams were made from."""

    model: str
    """Fingerprint of the model they belong to now (after a request: of the model that came out of it)."""
    dtype: str
    """The model's floating-point type."""
    samples: int
    transform: str = ""
    """A label of the user's own for the preprocessing; Grams with different labels do not mix ("": none given)."""
    stride: str = "layer"
    """"layer", or "one" for the paper's habit of reading strided convolutions at every pixel."""
    convolutions: str = "float32"
    """How convolutions were run: in full "float32", or as "tf32" on a GPU."""
    stored: str = "float64"
    """The precision the Grams have had at worst, on the way through files."""
    key: str = ""
    """Fingerprint of the model they were first fitted with; the key of the digests."""
    forgotten: tuple[str, ...] = ()
    """Keyed digests of the samples taken out so far, so that none is taken out twice."""
    labels: tuple[int, ...] = ()
    """How many of the samples have each label; empty where that was not counted."""
    drifted: bool = False
    """Whether samples were taken out (or added) as a changed network sees them, so that the sums are not exact."""
    unsteady: bool = False
    """Whether a sample was seen to be another each time it was read, as under random augmentation."""

    @property
    def first(self) -> str:
        """Fingerprint of the model the rows are of; of Grams that do not say it, the one they belong to."""
        return self.key or self.model

    @property
    def fitted(self) -> int:
        """How many samples were added up: those that are left, and those that requests have taken out."""
        return self.samples + len(self.forgotten)

    @property
    def manner(self) -> Manner:
        return Manner(self.transform, self.stride, self.convolutions)


class LayerGrams(Mapping[str, Tensor]):
    """Per layer a Gram matrix, with a record of what it was made from. Immutable; ``+`` and ``-`` give new ones.

    ``grams[name]`` is float64 [d, d], or [groups, d, d]. ``held_out`` are aggregates per class of the outputs on
    validation samples, or None where there were none; ``margins`` are counts of the training samples' margins, or None
    where they are not known.
    """

    def __init__(
        self,
        grams: Mapping[str, Tensor],
        layers: Mapping[str, LayerInfo],
        origin: Origin,
        held_out: ClassProfile | None = None,
        margins: MarginCounts | None = None,
    ) -> None:
        self._grams = dict(grams)
        self.layers = dict(layers)
        self.origin = origin
        self.held_out = held_out
        self.margins = margins

    def __getitem__(self, name: str) -> Tensor:
        gram = self._grams[name]
        return gram if gram.shape[0] > 1 else gram[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._grams)

    def __len__(self) -> int:
        return len(self._grams)

    def __eq__(self, other: object) -> bool:
        """Whether sums, shapes and origin are the same to the last bit (profiles aside)."""
        if not isinstance(other, LayerGrams):
            return NotImplemented
        same_record = (self.names, self.layers, self.origin) == (other.names, other.layers, other.origin)
        return same_record and all(torch.equal(self._grams[name], other._grams[name]) for name in self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"LayerGrams({len(self)} layers, {self.samples} samples, model {self.origin.model[:12]})"

    @property
    def names(self) -> list[str]:
        """The layers, in the order of the model's ``named_modules()``."""
        return list(self._grams)

    @property
    def samples(self) -> int:
        """How many samples the Grams are the sum of."""
        return self.origin.samples

    @property
    def device(self) -> torch.device:
        """Where the sums are: on the CPU after :func:`unweave.fit`, wherever :meth:`to` has put them since."""
        return next((gram.device for gram in self._grams.values()), torch.device("cpu"))

    def to(self, device: torch.device | str) -> LayerGrams:
        """The same Grams on a device; on a GPU a request need not fetch them there first."""
        there = {name: moved(gram, device) for name, gram in self._grams.items()}
        return LayerGrams(there, self.layers, self.origin, self.held_out, self.margins)

    def grouped(self, name: str) -> Tensor:
        """The Gram as [groups, d, d], also where there is one group."""
        return self._grams[name]

    def __add__(self, other: LayerGrams) -> LayerGrams:
        """The Grams of both data sets together, which must share no sample (nobody can check that from sums)."""
        if not isinstance(other, LayerGrams):
            return NotImplemented
        self.require_same_origin(other, "add")
        return self._combine(other, +1)

    def __sub__(self, other: LayerGrams) -> LayerGrams:
        """The Grams without the other's samples.

        Raises:
            MismatchError: other layers, shapes, model or transform; more samples or rows than there are; or a result
                with an eigenvalue below −tolerance, so that the other's samples cannot have been part of this.
        """
        if not isinstance(other, LayerGrams):
            return NotImplemented
        self.require_same_origin(other, "subtract")
        if other.samples > self.samples:
            raise MismatchError(
                f"Cannot subtract {other.samples} samples from Grams of {self.samples}. "
                "The forget set must be part of what was fitted."
            )
        result = self._combine(other, -1)
        if min(result.origin.labels, default=0) < 0:
            label = min(range(len(result.origin.labels)), key=lambda c: result.origin.labels[c])
            raise MismatchError(
                f"Cannot subtract {other.origin.labels[label]} samples of class {label} from Grams of "
                f"{self.origin.labels[label]}. Pass samples with the labels they were fitted with."
            )
        for name in self:
            rows = self.layers[name].rows, other.layers[name].rows
            if rows[1] > rows[0]:
                raise MismatchError(f"Layer {name!r}: cannot subtract {rows[1]} rows from {rows[0]}.")
            self._require_positive(name, result, other)
        return result

    def _combine(self, other: LayerGrams, sign: int) -> LayerGrams:
        grams = {name: gram + sign * other._grams[name] for name, gram in self._grams.items()}
        layers = {
            name: replace(info, rows=info.rows + sign * other.layers[name].rows) for name, info in self.layers.items()
        }
        label = self.origin.transform or other.origin.transform
        samples, counts = self.samples + sign * other.samples, self._counted_with(other, sign)
        drifted = self.origin.drifted or other.origin.drifted or self.origin.first != other.origin.first
        unsteady = self.origin.unsteady or other.origin.unsteady
        origin = replace(self.origin, samples=samples, transform=label, labels=counts)
        origin = replace(origin, drifted=drifted, unsteady=unsteady)
        held_out = self.held_out
        if held_out is not None and sign > 0:
            held_out = held_out.trained_on(counts)
        return LayerGrams(grams, layers, origin, held_out, self._spread_with(other, sign))

    def _spread_with(self, other: LayerGrams, sign: int) -> MarginCounts | None:
        """How margins are spread afterwards; unknown if it is of one of the two."""
        if self.margins is None or other.margins is None:
            return None
        return self.margins.combined(other.margins, sign)

    def _counted_with(self, other: LayerGrams, sign: int) -> tuple[int, ...]:
        """How many samples have each label afterwards; unknown if it is of one of the two."""
        here, there = self.origin.labels, other.origin.labels
        if len(here) != len(there):
            return ()
        return tuple(one + sign * more for one, more in zip(here, there, strict=True))

    def require_same_origin(self, other: LayerGrams, verb: str) -> None:
        """Refuse Grams that do not mix with these.

        Raises:
            MismatchError: other layers, shapes, model, stride, convolutions or transform.
        """
        if list(self) != list(other):
            odd = sorted(set(self) ^ set(other))
            raise MismatchError(
                f"Cannot {verb} Grams of different layers: {len(self)} against {len(other)}, differing in "
                f"{', '.join(odd) or 'their order'}. Fit both with the same layers=."
            )
        for name in self:
            here, there = replace(self.layers[name], rows=0), replace(other.layers[name], rows=0)
            if here != there:
                raise MismatchError(f"Cannot {verb}: layer {name!r} is {here} here and {there} there.")
        for what, here_, there_, remedy in (
            ("model", self.origin.model[:12], other.origin.model[:12], "Fit both with the same weights."),
            ("stride", self.origin.stride, other.origin.stride, "Fit both with the same stride=."),
            ("convolutions", self.origin.convolutions, other.origin.convolutions, "Fit both with the same tf32=."),
        ):
            if here_ != there_:
                raise MismatchError(f"Cannot {verb}: {what} {here_!r} against {there_!r}. {remedy}")
        labels = {self.origin.transform, other.origin.transform} - {""}
        if len(labels) > 1:
            raise MismatchError(
                f"Cannot {verb}: transform {self.origin.transform!r} against {other.origin.transform!r}. "
                "Fit both under the same transform."
            )

    def _require_positive(self, name: str, result: LayerGrams, other: LayerGrams) -> None:
        """Cholesky of G + tol·I exists exactly when no eigenvalue is below −tol; it is far cheaper than eigenvalues."""
        tolerance = (
            DRIFT_TOLERANCE if result.origin.drifted else max(TOLERANCE.get(kind, 1e-2) for kind in self._precisions())
        )
        before, after = self._grams[name], result._grams[name]
        slack = tolerance * before.diagonal(dim1=1, dim2=2).sum(1).clamp_min(torch.finfo(torch.float64).tiny)
        shifted = after + torch.diag_embed(slack[:, None].expand(-1, after.shape[-1]))
        if bool(torch.linalg.cholesky_ex(shifted).info.any()):
            lowest = (torch.linalg.eigvalsh(after)[:, 0] / slack * tolerance).min().item()
            raise MismatchError(
                f"Layer {name!r}: after subtracting, the lowest eigenvalue is {lowest:.2e} of the trace, below "
                f"-{tolerance:.0e}, so {self._what_went_wrong(other)}"
            )

    def _what_went_wrong(self, other: LayerGrams) -> str:
        """Why sums may not subtract, and what can be done."""
        why = (
            "these samples were not part of what was fitted, not under this transform, not padded to the same length "
            "(as where each batch is padded by itself), are here more than once, or were subtracted before. Grams of "
            f"{self.samples} samples fitted with transform={self.origin.transform!r}; pass the same inputs they were "
            "fitted on."
        )
        if self.origin.first != other.origin.first:
            return (
                f"{why} Or earlier requests have changed the network, so that its layers see samples in another way "
                "than when they were added: pass the model that the Grams were fitted with as first= (--first)."
            )
        if self.origin.drifted:
            return (
                f"{why} Or earlier requests without first= (--first) have left the sums inexact: start again from the "
                "first model and its Grams, or fit again."
            )
        return why

    def _precisions(self) -> tuple[str, ...]:
        """Every precision that rows and sums have been through."""
        tf32 = ("tf32",) if self.origin.convolutions == "tf32" else ()
        return self.origin.dtype, self.origin.stored, *tf32

    def restricted(self, names: list[str]) -> LayerGrams:
        """The Grams of some of the layers."""
        return LayerGrams(
            {name: self._grams[name] for name in names},
            {name: self.layers[name] for name in names},
            self.origin,
            self.held_out,
            self.margins,
        )

    def belonging_to(self, model: str, *, forgotten: tuple[str, ...] = (), held_out: ClassProfile | None) -> LayerGrams:
        """The same sums on record as those of another model: the one that came out of a request."""
        origin = replace(self.origin, model=model, forgotten=self.origin.forgotten + forgotten)
        return LayerGrams(self._grams, self.layers, origin, held_out, self.margins)

    def save(self, path: str | PathLike[str], dtype: torch.dtype = torch.float64) -> None:
        """Write to a safetensors file, atomically; see :mod:`unweave.store`."""
        from unweave.store import save_grams

        save_grams(self, path, dtype)

    @staticmethod
    def load(path: str | PathLike[str]) -> LayerGrams:
        """Read what :meth:`save` wrote, and check it; see :mod:`unweave.store`."""
        from unweave.store import load_grams

        return load_grams(path)
