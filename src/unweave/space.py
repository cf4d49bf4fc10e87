"""CoreSpace: the directions a layer's retained inputs use, and the projection that keeps clear of them.

With G = U diag(λ) Uᵀ, λ descending and σ = √max(λ, 0), the core space M is the first k columns of U, k the smallest
number with Σ_{i≤k} σ_i ≥ γ Σ σ_i. A gradient, seen as a matrix [m, d], loses its part in M::

    project(g) = g − (g M) Mᵀ = (g N) Nᵀ        N: the other d − k columns of U

Both forms are the same; the one with fewer columns does the work. That is the paper's projection. With
``protect="soft"`` a direction loses the more of a step the more the retained data uses it::

    project(g) = g U diag(w) Uᵀ                 w between 0 and 1, see :mod:`unweave.protection`

There the core space is what loses more than half. With ``protect="auto"`` some layers may be soft and others hard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from unweave.distributed import broadcast, divided, rank, ranks, together
from unweave.errors import ConfigError, LayerChoiceError, LayerError
from unweave.grams import LayerGrams, LayerInfo
from unweave.protection import PROTECTIONS, hard, soft, uses_all_alike

ENERGIES = {"sigma": 1, "sigma2": 2}
RANK_RULES = ("paper", "le", "lt")
NEGATIVE = ("clip", "abs")

Gamma = float | Mapping[str, float]


@dataclass(frozen=True)
class LayerSpace:
    """One layer's decomposition.

    vectors: [groups, d, d], columns in descending order of σ, and sigma: [groups, d], where they were computed;
    rank: k per group, [groups], on the CPU;
    left: w, [groups, d], on the CPU, how much of a step each direction keeps;
    clipped: the negative part of the spectrum as a share of the whole (0 for an exact subtraction).
    """

    info: LayerInfo
    vectors: Tensor
    sigma: Tensor
    rank: Tensor
    left: Tensor
    clipped: float

    @property
    def full(self) -> bool:
        """Whether no direction is left to move in."""
        return not bool(self.left.any())

    @property
    def hard(self) -> bool:
        """Whether every direction keeps all of a step or nothing, so that projecting twice is projecting once."""
        return bool(((self.left == 0) | (self.left == 1)).all())

    def projector(self, dtype: torch.dtype, device: torch.device) -> Callable[[Tensor], Tensor]:
        """From gradients [groups, m, d] to what is left of them, in their dtype and on their device."""
        if not self.hard:
            whole = ((self.vectors * self.left.to(self.vectors.device)[:, None, :]) @ self.vectors.mT).to(device, dtype)
            return lambda matrix: matrix @ whole
        few = 2 * int(self.rank.max()) <= self.info.d
        factor = (self.core if few else self.rest).to(device, dtype)
        return lambda matrix: matrix - (matrix @ factor) @ factor.mT if few else (matrix @ factor) @ factor.mT

    @property
    def core(self) -> Tensor:
        """M, [groups, d, max k]; columns beyond a group's own k are zero."""
        widest = int(self.rank.max())
        return self._columns(slice(0, widest), self.rank[:, None] > torch.arange(widest))

    @property
    def rest(self) -> Tensor:
        """N, an orthonormal basis of the complement, [groups, d, max (d − k)]; unused columns are zero."""
        least = int(self.rank.min())
        return self._columns(slice(least, None), self.rank[:, None] <= torch.arange(least, self.info.d))

    def _columns(self, chosen: slice, used: Tensor) -> Tensor:
        columns = self.vectors[:, :, chosen]
        return columns if bool(used.all()) else columns * used[:, None, :].to(columns.device)


class CoreSpace:
    """The core gradient space of every layer. Build it with :meth:`from_grams`; then :meth:`project` gradients."""

    def __init__(self, layers: Mapping[str, LayerSpace], frozen: frozenset[str] = frozenset()) -> None:
        self.layers = dict(layers)
        self.frozen = frozen
        self._projectors: dict[tuple[str, torch.dtype, torch.device], Callable[[Tensor], Tensor]] = {}

    @classmethod
    def from_grams(
        cls,
        grams: LayerGrams,
        gamma: Gamma = 0.9,
        *,
        protect: str = "hard",
        energy: str = "sigma",
        rank_rule: str = "paper",
        negative: str = "clip",
        freeze_at_one: bool = False,
        device: torch.device | None = None,
    ) -> CoreSpace:
        """Decompose retained Grams; in a process group every rank calls this, and does some of the layers for all.

        Args:
            grams: what the retained data has left of the sums.
            gamma: the share of energy to keep, in (0, 1]: one number, or one per layer name with ``"default"`` for the
                rest. 1 keeps every direction the data has, so that only the exact null space is left to move in.
            protect: "hard" (the paper), "soft", or "auto", each layer by how alike its directions are used; see
                :mod:`unweave.protection`.
            energy: what is shared out: "sigma" (the paper) or "sigma2" (the explained variance of GPM).
            rank_rule: "paper" (smallest k that reaches γ), or what the authors' scripts count: "le", "lt"; for "hard".
            negative: what becomes of negative eigenvalues: "clip" to zero, or "abs" as an SVD has it.
            freeze_at_one: freeze a layer with γ = 1 altogether, as the authors' code does.
            device: where to decompose; the device of the Grams by default.

        Raises:
            ConfigError: γ outside (0, 1], or an unknown rule.
            LayerError: γ for a layer that is not there.
            RankError: another rank failed or is gone.
        """
        for name, value, known in (
            ("protect", protect, PROTECTIONS),
            ("energy", energy, tuple(ENERGIES)),
            ("rank_rule", rank_rule, RANK_RULES),
            ("negative", negative, NEGATIVE),
        ):
            if value not in known:
                raise ConfigError(f"Invalid {name}: {value!r}. Supported: {', '.join(known)}.")
        gammas = resolve_gamma(gamma, grams.names)
        noise = torch.finfo(getattr(torch, grams.origin.stored)).eps
        rule = _Rule(protect, ENERGIES[energy], rank_rule, negative, noise)
        owner = divided({name: info.groups * info.d**3 for name, info in grams.layers.items()})
        spaces = {}
        with together("the eigendecompositions"):
            for name in grams:
                if owner[name] == rank():
                    gram = grams.grouped(name).to(device or grams.grouped(name).device)
                    spaces[name] = _decompose(gram, grams.layers[name], gammas[name], rule)
        if ranks() > 1:
            where = device or grams.device
            spaces = {n: _received(spaces.get(n), grams.layers[n], owner[n], where) for n in grams}
        frozen = frozenset(name for name in grams if freeze_at_one and gammas[name] == 1)
        return cls(spaces, frozen)

    @property
    def ranks(self) -> dict[str, int | list[int]]:
        """k per layer; a list where a layer has several groups."""
        return {
            name: int(layer.rank) if len(layer.rank) == 1 else layer.rank.tolist()
            for name, layer in self.layers.items()
        }

    def project(self, name: str, grad: Tensor) -> Tensor:
        """Remove from a gradient, in the weight's own shape, its part in the core space; shape and dtype stay.

        Raises:
            LayerError: unknown layer, or a gradient that has not the weight's shape.
        """
        layer = self.layers.get(name)
        if layer is None:
            raise LayerError(f"Unknown layer {name!r}. Known: {', '.join(self.layers)}.")
        if tuple(grad.shape) != layer.info.weight_shape:
            raise LayerError(
                f"Layer {name!r}: gradient of shape {list(grad.shape)}, expected {list(layer.info.weight_shape)}."
            )
        return layer.info.from_matrix(self.left_of(name, layer.info.as_matrix(grad)))

    def left_of(self, name: str, matrix: Tensor) -> Tensor:
        """What is left of a layer's gradients [groups, m, d], or of any m vectors that stand where its rows do."""
        if name in self.frozen:
            return torch.zeros_like(matrix)
        # Half precision would leave a hundredth of the core part behind.
        exact = matrix.float() if matrix.dtype in (torch.bfloat16, torch.half) else matrix
        key = (name, exact.dtype, matrix.device)
        if key not in self._projectors:
            self._projectors[key] = self.layers[name].projector(exact.dtype, matrix.device)
        return self._projectors[key](exact).to(matrix.dtype)


def resolve_gamma(gamma: Gamma, names: list[str]) -> dict[str, float]:
    """One γ for each layer, checked."""
    if isinstance(gamma, Mapping):
        unknown = sorted(set(gamma) - set(names) - {"default"})
        if unknown:
            raise LayerChoiceError(f"gamma names unknown layers: {', '.join(unknown)}. Known: {', '.join(names)}.")
        missing = [name for name in names if name not in gamma and "default" not in gamma]
        if missing:
            raise ConfigError(f"gamma has no value for {', '.join(missing)} and no 'default'.")
        values = {name: gamma[name] if name in gamma else gamma["default"] for name in names}
    else:
        values = dict.fromkeys(names, gamma)
    for name, value in values.items():
        if isinstance(value, bool) or not (isinstance(value, Real) and 0 < value <= 1):
            raise ConfigError(f"Invalid gamma for {name!r}: {value!r}. Supported: a number in (0, 1].")
    return {name: float(value) for name, value in values.items()}


@dataclass(frozen=True)
class _Rule:
    """How a spectrum becomes a protection: hard or soft, σ to a power, what is counted, negative eigenvalues, and the
    Grams' precision."""

    protect: str
    power: int
    counting: str
    negative: str
    noise: float


def _decompose(gram: Tensor, info: LayerInfo, gamma: float, rule: _Rule) -> LayerSpace:
    eigenvalues, vectors = (gram, torch.ones_like(gram)) if info.d == 1 else torch.linalg.eigh(gram)
    eigenvalues = eigenvalues.reshape(info.groups, info.d)
    below = eigenvalues.clamp_max(0).abs().sum() / eigenvalues.abs().sum().clamp_min(torch.finfo(gram.dtype).tiny)
    kept = eigenvalues.abs() if rule.negative == "abs" else eigenvalues.clamp_min(0)
    kept, order = kept.sort(dim=1, descending=True)
    vectors = vectors.gather(2, order[:, None, :].expand_as(vectors))
    sigma = kept.sqrt()
    # Stored in few digits, a Gram has more doubtful directions: none of them is free but for γ = 1, which asks.
    present = _present(sigma, rule.noise if gamma == 1 else torch.finfo(torch.float64).eps)
    rank = _rank(sigma, gamma, rule, present).cpu()
    left = hard(rank, info.d)
    if rule.protect == "soft" or (rule.protect == "auto" and uses_all_alike(sigma)):
        left = soft(sigma, gamma, rule.power, present)
        rank = (left < 0.5).sum(1)
    return LayerSpace(info, vectors, sigma, rank, left, float(below))


def _received(own: LayerSpace | None, info: LayerInfo, source: int, device: torch.device) -> LayerSpace:
    """A layer's decomposition as the rank has it that made it."""
    if own is None:
        vectors = torch.empty(info.groups, info.d, info.d, dtype=torch.float64, device=device)
        sigma = torch.empty(info.groups, info.d, dtype=torch.float64, device=device)
        left = torch.empty(info.groups, info.d, dtype=torch.float64)
        own = LayerSpace(info, vectors, sigma, torch.empty(info.groups, dtype=torch.long), left, 0.0)
    clipped = broadcast(torch.tensor([own.clipped], dtype=torch.float64), source)
    values = own.vectors, own.sigma, own.rank, own.left
    vectors, sigma, k, left = (broadcast(value, source) for value in values)
    return LayerSpace(info, vectors, sigma, k, left, clipped.item())


def _present(sigma: Tensor, noise: float) -> Tensor:
    """How many directions the data has, [groups], where numbers are exact to ``noise``.

    Eigenvalues are exact to about d·eps·λ_max; what is below that is no direction of the data.
    """
    return (sigma > math.sqrt(sigma.shape[1] * noise) * sigma[:, :1]).sum(1)


def _rank(sigma: Tensor, gamma: float, rule: _Rule, present: Tensor) -> Tensor:
    """k per group from σ [groups, d] in descending order."""
    d = sigma.shape[1]
    if gamma == 1:
        return present
    share = (sigma**rule.power).cumsum(1)
    share = share / share[:, -1:].clamp_min(torch.finfo(sigma.dtype).tiny)
    counted = {"paper": (share < gamma).sum(1) + 1, "le": (share <= gamma).sum(1), "lt": (share < gamma).sum(1)}
    # Counting below γ would leave a group of one direction, such as an embedding's id, unprotected.
    return torch.minimum(counted[rule.counting].clamp_min(int(d == 1)), present)
