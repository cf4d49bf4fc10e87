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
weights a slice at a time (:mod:`unweave.jacobian`), so that J is never held; Jᵀ a is one more backward pass. To K's
diagonal a hundredth of its mean is added: a margin that hardly anything moves is not to have its way at any price, and
equal samples have equal rows. Margins are not linear, so what is left of the way is gone in the same manner from where
that led.

The first step costs about as much as two or three epochs of a walk, and for K n² multiply-adds a weight; one that goes
on with K as it is costs an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import vmap

from unweave.batches import run
from unweave.descent import Descent, EpochReport
from unweave.distributed import broadcast, rank, together
from unweave.errors import ConfigError, ModelError
from unweave.jacobian import jacobian_gram, pulled, solve
from unweave.losses import match_loss
from unweave.outcomes import margin
from unweave.outer import met_once
from unweave.samples import Samples
from unweave.space import CoreSpace, LayerSpace

MOST_SAMPLES = 10_000
"""That are solved for together: K and what solving it takes are three matrices of that size, in float64."""
RIDGE = 0.01
"""What is added to K's diagonal, as a share of its mean."""
MAX_BYTES = 1 << 32
"""For slices of the Jacobian."""
CHUNK = 64
"""Samples whose gradients are taken together, at most."""


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
        self._kernel: Tensor | None = None
        self._s = {
            name: _in_shape(1 / mu, descent.space.layers[name], weight)
            for (name, mu), weight in zip(
                prices(descent.space, descent.weights).items(), descent.weights.values(), strict=True
            )
        }
        """s, in the shapes of the weights."""

    def look_anew(self) -> None:
        """Take K at the present weights in the next step, not where it was taken before."""
        self._kernel = None

    def step(self, targets: Tensor, share: float) -> EpochReport:
        """Go a share of the way to target margins [n].

        Raises:
            ModelError: gradients of single samples cannot be had from this model.
        """
        logits = self._logits()
        v = _slopes(logits, self.samples.labels)
        gaps = targets.double() - margin(logits.double(), self.samples.labels)
        if self._kernel is None:
            self._kernel = self._made(v)
        found = solve(self._kernel, gaps, RIDGE * float(self._kernel.diagonal().mean()))
        weighed = torch.full_like(gaps, float("nan")) if found.x is None else found.x
        with together("a solved step"):
            change = pulled(
                self.descent.net, self.descent.weights, self.samples, weighed[:, None] * v.double(), self.batch_size
            )
        self.descent.go({name: share * self._s[name] * part for name, part in change.items()})
        return EpochReport(float(match_loss(logits.double(), self.samples.labels, targets)), share)

    @torch.no_grad()
    def _logits(self) -> Tensor:
        """[n, C], float32 at least."""
        parts = [run(self.descent.net, inputs) for inputs, _ in self.samples.pairs(self.batch_size)]
        logits = torch.cat(parts)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _made(self, v: Tensor) -> Tensor:
        """K at the present weights, by rank 0 for all."""
        kernel = torch.zeros(len(self.samples), len(self.samples), dtype=torch.float64, device=v.device)
        with together("how margins hang together"), torch.no_grad():
            if rank() == 0:
                found = met_once(self.descent.net, self.descent.weights, self.samples, v, self.batch_size)
                for name, met in found.items():
                    rows = met.rows.to(torch.promote_types(met.rows.dtype, torch.float32))
                    left = self.descent.space.left_of(name, rows[None])[0]
                    kernel += self._s[name].reshape(-1)[0] * met.products(left)
                others = {name: weight for name, weight in self.descent.weights.items() if name not in found}
                if others:
                    kernel += self._of_gradients(others, v)
        return broadcast(kernel, 0)

    def _of_gradients(self, weights: Mapping[str, nn.Parameter], v: Tensor) -> Tensor:
        """The share of these weights in K, [n, n], from gradients of single samples.

        Raises:
            ModelError: they cannot be had from this model.
        """
        net, space = self.descent.net, self.descent.space
        layer_of = {id(weight): layer for layer, weight in weights.items()}
        moving = {name: p for name, p in net.named_parameters() if id(p) in layer_of}

        def left_of(name: str, rows: Tensor) -> Tensor:
            layer = layer_of[id(moving[name])]
            space.project(layer, rows[0])  # what it takes is made outside of vmap, and kept
            return vmap(lambda row: space.project(layer, row))(rows) * self._s[layer].sqrt().to(rows.dtype)

        try:
            return jacobian_gram(net, moving, self.samples, v[:, None], MAX_BYTES, CHUNK, left_of=left_of)
        except ModelError as error:
            raise ModelError(
                f"way='solve' needs gradients of single samples, which torch.func.vmap cannot take of "
                f"{type(net).__name__} ({str(error.__cause__)[:150]} …). Leave way out."
            ) from error


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
