"""Solving: the least change of the weights that brings every margin of the forget set to its target, at once.

For the margins m(w) [n] of the forget set, J = ∂m/∂w [n, weights] and their targets t. What the protection leaves of a
step is P (:mod:`unweave.protection`), symmetric; a layer's changes cost 1/s of their square. Of all changes Δ = √s P u
that bring every margin to its target, as far as margins are linear in the weights, that with the shortest u is

    u = √s P Jᵀ a        Δ = s P P Jᵀ a        K a = t − m        K = (J √s P) (J √s P)ᵀ   [n, n]

Where the protection is hard, P P = P and s = 1: Δ is the shortest of all changes that the core space allows. Where it
is soft, P is applied twice, as in a walk, and s = 1/μ: soft protection is what is left where a layer's change costs
what retained rows feel of it and μ times its own square, ½ tr(Δ G Δᵀ) + ½ μ ‖Δ‖², so that 1/μ makes one currency of it
for all layers. (With s = 1, layers whose rows are small move too much.)

K is a sum over layers: of rows and slopes where samples meet a weight once (:mod:`unweave.outer`), and of the other
weights from gradients of single samples, a slice at a time (:mod:`unweave.jacobian`), so that J is never held. Those
come of what layers meet (:mod:`unweave.meetings`); where they do not tell, as embeddings, of samples that are run by
themselves. Jᵀ a is one more backward pass. To K's diagonal a hundredth of its mean is added: a margin that hardly
anything moves is not to have its way at any price, and equal samples have equal rows. Margins are not linear, so what
is left of the way is gone in the same manner from where that led: with J and K taken there, or, where the step before
went nearly straight, with those that it had.

A step with new J and K costs about as much as two or three epochs of a walk, and for K n² multiply-adds a weight; one
that keeps them costs an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import vmap

from unweave.batches import Inputs, run
from unweave.descent import Descent, EpochReport, State
from unweave.distributed import broadcast, rank, together
from unweave.errors import ConfigError, ModelError
from unweave.jacobian import Gradients, Pulled, jacobian_gram, pulled, solve
from unweave.losses import match_loss
from unweave.meetings import Users, gradients_from_meetings, told_apart
from unweave.outcomes import margin
from unweave.outer import met_once
from unweave.per_sample import sample_gradients
from unweave.rest import products_as_convolutions
from unweave.samples import Samples
from unweave.space import CoreSpace, LayerSpace

MOST_SAMPLES = 10_000
"""That are solved for together: K and what solving it takes are three matrices of that size, in float64."""
RIDGE = 0.01
"""What is added to K's diagonal, as a share of its mean."""
MAX_BYTES = 1 << 32
"""For slices of the Jacobian."""
FEW = 4
"""Samples that it is tried on how gradients can be had."""


def prices(space: CoreSpace, names: Iterable[str]) -> dict[str, Tensor]:
    """μ of the layers, float64 [groups] on the CPU: what the square of a change costs beside what retained rows feel.

    Groups that are protected altogether or not at all have none: they get the geometric mean of those that have, or 1.
    """
    found = {}
    for name in names:
        left, lam = space.layers[name].left, space.layers[name].sigma.cpu().double().square()
        inside = ((left > 1e-6) & (left < 1 - 1e-6)).double()
        nearest = ((left - 0.5).abs() + 2 * (1 - inside)).argmin(1, keepdim=True)  # where μ = λ w / (1 − w) is surest
        mu = (lam * left / (1 - left)).gather(1, nearest).squeeze(1)
        found[name] = mu.where(inside.any(1), torch.nan)
    logs = torch.cat([mu.log() for mu in found.values()])
    usual = logs.nanmean().exp().nan_to_num(1.0)
    return {name: mu.where(~mu.isnan(), usual) for name, mu in found.items()}


@dataclass(frozen=True)
class _Linearised:
    """Margins as they are near some weights, linear in them: ∂m_i/∂z_i [n, C] there, and K [n, n]."""

    weights: State
    slopes: Tensor
    kernel: Tensor


class Solving:
    """Steps of a descent that solve for the margins of the forget set."""

    def __init__(self, descent: Descent, samples: Samples, batch_size: int) -> None:
        """
        Raises:
            ConfigError: too many samples.
        """
        if len(samples) > MOST_SAMPLES:
            raise ConfigError(
                f"way='solve' takes {MOST_SAMPLES:,} samples at most, these are {len(samples):,}. Leave way out, or "
                "make several requests of them."
            )
        self.descent = descent
        self.samples = samples
        self.batch_size = batch_size
        self.old = False
        """Whether the next step goes by what was linearised elsewhere than where it begins."""
        self._near: _Linearised | None = None
        self._users: Users | None = None
        self._s = {
            name: _in_shape(1 / mu, descent.space.layers[name], weight)
            for (name, mu), weight in zip(
                prices(descent.space, descent.weights).items(), descent.weights.values(), strict=True
            )
        }
        """s, in the shapes of the weights."""

    def look_anew(self) -> None:
        """Linearise at the weights where the next step begins."""
        self._near, self.old = None, False

    def keep(self) -> None:
        """Go by the same J and K in the next step, though it begins elsewhere."""
        self.old = self._near is not None

    def step(self, targets: Tensor, share: float) -> EpochReport:
        """Go a share of the way to target margins [n]."""
        logits, labels = self._logits(), self.samples.labels
        gaps = targets.double() - margin(logits.double(), labels)
        near = self._near = self._near or self._linearised(_slopes(logits, labels))
        found = solve(near.kernel, gaps, RIDGE * float(near.kernel.diagonal().mean()))
        weighed = torch.full_like(gaps, float("nan")) if found.x is None else found.x
        with together("a solved step"):
            change = self._pulled(near, weighed)
        self.descent.go({name: share * self._s[name] * part for name, part in change.items()})
        return EpochReport(float(match_loss(logits.double(), labels, targets)), share)

    def _linearised(self, v: Tensor) -> _Linearised:
        return _Linearised(self.descent.snapshot(), v, self._made(v))

    def _pulled(self, near: _Linearised, weighed: Tensor) -> Pulled:
        """Jᵀ a, by the J of where margins were linearised."""
        descent, here = self.descent, self.descent.snapshot() if self.old else None
        if here is not None:
            descent.restore(near.weights)
        cotangents = weighed[:, None] * near.slopes.double()
        found = pulled(descent.net, descent.weights, self.samples, cotangents, self.batch_size, convolutions=None)
        if here is not None:
            descent.restore(here)
        return found

    @torch.no_grad()
    def _logits(self) -> Tensor:
        """[n, C], float32 at least."""
        parts = [run(self.descent.net, inputs) for inputs, _ in self.samples.pairs(self.batch_size)]
        logits = torch.cat(parts)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _made(self, v: Tensor) -> Tensor:
        """K at the present weights, by rank 0 for all."""
        kernel = torch.zeros(len(self.samples), len(self.samples), dtype=torch.float64, device=v.device)
        with together("how margins hang together"), torch.no_grad(), products_as_convolutions(v.device):
            if rank() == 0:
                kernel += self._of_layers(v)
        return broadcast(kernel, 0)

    def _of_layers(self, v: Tensor) -> Tensor:
        """K as a sum over weights: those that meet a sample once, those whose layers tell, and those left to vmap."""
        net, space, samples = self.descent.net, self.descent.space, self.samples
        kernel = torch.zeros(len(samples), len(samples), dtype=torch.float64, device=v.device)
        weights = self.descent.weights
        if self._users is None:  # once: weights move, the network's shape does not
            self._users = told_apart(net, weights, samples, v, FEW)
        users = self._users
        once = met_once(net, users, samples, v, self.batch_size)
        for name, met in once.items():
            rows = met.rows.to(torch.promote_types(met.rows.dtype, torch.float32))
            kernel += self._s[name].reshape(-1)[0] * met.products(space.left_of(name, rows[None])[0])
        told = {name: weights[name] for name in users if name not in once}
        unread = {name: weight for name, weight in weights.items() if name not in users}
        if told:
            kernel += self._of_gradients(told, v, partial(gradients_from_meetings, net, users))
        if unread:
            kernel += self._of_gradients(unread, v, _ByThemselves(net, unread))
        return kernel

    def _of_gradients(self, weights: Mapping[str, nn.Parameter], v: Tensor, gradients: Gradients) -> Tensor:
        """The share of these weights in K, [n, n], from gradients of single samples."""

        def left(wanted: Mapping[str, Tensor], inputs: Inputs, cotangents: Tensor) -> dict[str, Tensor]:
            return {name: self._left_of(name, rows) for name, rows in gradients(wanted, inputs, cotangents).items()}

        return jacobian_gram(
            self.descent.net, weights, self.samples, v[:, None], _bytes_for(v.device), self.batch_size, gradients=left
        )

    def _left_of(self, name: str, gradients: Tensor) -> Tensor:
        """√s P g of gradients [n, *shape], all of them at once."""
        info, n = self.descent.space.layers[name].info, len(gradients)
        matrices = vmap(info.as_matrix)(gradients).transpose(0, 1)  # [groups, n, m, d]
        left = self.descent.space.left_of(name, matrices.flatten(1, 2)).unflatten(1, (n, -1))
        return vmap(info.from_matrix)(left.transpose(0, 1)) * self._s[name].sqrt().to(gradients.dtype)


class _ByThemselves:
    """Gradients of single samples from samples that are run by themselves, in float32 at least: many at once by
    ``torch.func.vmap``, or one at a time in models that it does not allow. Weights go by their layers' names here."""

    def __init__(self, net: nn.Module, weights: Mapping[str, nn.Parameter]) -> None:
        paths = {id(weight): path for path, weight in net.named_parameters()}
        self.net, self.batched = net, True
        self.path_of = {name: paths[id(weight)] for name, weight in weights.items()}

    def __call__(self, wanted: Mapping[str, Tensor], inputs: Inputs, v: Tensor) -> dict[str, Tensor]:
        by_path = {self.path_of[name]: weight for name, weight in wanted.items()}
        try:
            found = sample_gradients(self.net, by_path, inputs, v, self.batched)
        except ModelError:
            if not self.batched:
                raise
            self.batched = False
            return self(wanted, inputs, v)
        rows = {name: found[self.path_of[name]] for name in wanted}
        return {name: own.to(torch.promote_types(own.dtype, torch.float32)) for name, own in rows.items()}


def _bytes_for(device: torch.device) -> int:
    """For slices of the Jacobian: on a GPU a quarter of what is free, if that is more."""
    free = torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else 0
    return max(MAX_BYTES, free)


def _in_shape(values: Tensor, layer: LayerSpace, weight: Tensor) -> Tensor:
    """A number for each group, [groups], in the weight's shape and on its device; float64."""
    matrix = layer.info.as_matrix(weight.detach())
    spread = values.to(matrix.device)[:, None, None].expand(matrix.shape)
    return layer.info.from_matrix(spread)


def _slopes(logits: Tensor, labels: Tensor) -> Tensor:
    """∂m_i/∂z_i, [n, C]."""
    with torch.enable_grad():
        z = logits.detach().requires_grad_()
        (slopes,) = torch.autograd.grad(margin(z, labels).sum(), z)
    return slopes
