"""Solving: the least change of the weights that brings every margin of the forget set to its target, at once.

For the margins m(w) [n] of the forget set, J = ∂m/∂w [n, weights] and their targets t. What the protection leaves of a
step is P (:mod:`unweave.protection`), symmetric; a layer's changes cost 1/s of their square. Of all changes Δ = √s P u
that bring every margin to its target, as far as margins are linear in the weights, that with the shortest u is

    u = √s P Jᵀ a        Δ = s P P Jᵀ a        K a = t − m        K = (J √s P) (J √s P)ᵀ   [n, n]

Where the protection is hard, P P = P and s = 1: Δ is the shortest of all changes that the core space allows. Where it
is soft, P is applied twice, as in a walk, and 1/s is what a layer's square costs beside what retained margins feel of
it (:mod:`unweave.walking.prices`). (With s = 1, layers whose rows are small move too much; counting what retained rows
feel in place of margins, those on which margins hang most.)

K is a sum over layers: of rows and slopes where samples meet a weight once (:mod:`unweave.gradients.outer`), and of the
other weights from gradients of single samples, a slice at a time (:mod:`unweave.gradients.jacobian`), so that J is
never held. Those come of what layers meet (:mod:`unweave.gradients.meetings`); where they do not tell, as embeddings,
of samples that are run by themselves. Jᵀ a is one more backward pass. To K's diagonal a hundredth of its mean is added:
a margin that hardly anything moves is not to have its way at any price, and equal samples have equal rows. Margins are
not linear, so what is left of the way is gone in the same manner from where that led: with J and K taken there, or,
where the step before went nearly straight, with those that it had.

A step with new J and K costs about as much as one to four epochs of a walk, and for K n² multiply-adds a weight; one
that keeps them costs an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from unweave.behaviour.outcomes import margin
from unweave.distributed import broadcast, rank, together
from unweave.errors import ConfigError
from unweave.gradients.jacobian import Pulled, jacobian_gram, least_bytes, pulled, solve
from unweave.gradients.outer import Met, met_once
from unweave.gradients.singles import Singles
from unweave.losses import match_loss
from unweave.reading.batches import Inputs, run
from unweave.reading.rest import products_as_convolutions
from unweave.reading.samples import Samples
from unweave.walking.descent import Descent, EpochReport, State
from unweave.walking.prices import mean_squares, prices

MOST_SAMPLES = 10_000
"""That are solved for together: K and what making and solving it takes are four matrices of that size, in float64."""
RIDGE = 0.01
"""What is added to K's diagonal, as a share of its mean."""
MAX_BYTES = 1 << 32
"""For slices of the Jacobian on a CPU, where one gradient of all weights needs no more."""


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
        self._singles: Singles | None = None
        self._s = dict[str, Tensor]()
        """s of the groups, [groups]; by the slopes of where the first step begins."""

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
        self.descent.go({name: self._scaled(name, share, part) for name, part in change.items()})
        return EpochReport(float(match_loss(logits.double(), labels, targets)), share)

    def _linearised(self, v: Tensor) -> _Linearised:
        once = self._met_once(v)
        if not self._s:
            self._s = self._scales(v, once)
        return _Linearised(self.descent.snapshot(), v, self._made(v, once))

    def _pulled(self, near: _Linearised, weighed: Tensor) -> Pulled:
        """Jᵀ a, by the J of where margins were linearised."""
        descent, here = self.descent, self.descent.snapshot()
        descent.restore(near.weights)
        cotangents = weighed[:, None] * near.slopes.double()
        found = pulled(descent.net, descent.weights, self.samples, cotangents, self.batch_size, convolutions=None)
        descent.restore(here)
        return found

    def _scaled(self, name: str, share: float, change: Tensor) -> Tensor:
        """A share of s times a change of a weight, in its shape."""
        info = self.descent.space.layers[name].info
        return info.from_matrix(share * self._s[name][:, None, None] * info.as_matrix(change))

    @torch.no_grad()
    def _logits(self) -> Tensor:
        """[n, C], float32 at least."""
        parts = [run(self.descent.net, inputs) for inputs, _ in self.samples.pairs(self.batch_size)]
        logits = torch.cat(parts)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _met_once(self, v: Tensor) -> dict[str, Met]:
        """By rank 0, which makes K."""
        with together("what layers meet"), torch.no_grad(), products_as_convolutions(v.device):
            if rank() > 0:
                return {}
            return met_once(self.descent.net, self._gradients(v).users, self.samples, v, self.batch_size)

    def _scales(self, v: Tensor, once: Mapping[str, Met]) -> dict[str, Tensor]:
        """s, by rank 0 for all; 1 where nothing is priced."""
        space, weights, device = self.descent.space, self.descent.weights, v.device
        squares = torch.zeros(len(weights), dtype=torch.float64, device=device)
        with together("what margins hang on"), torch.no_grad(), products_as_convolutions(device):
            if rank() == 0 and not all(space.layers[name].hard for name in weights):
                most, size = _bytes_for(device), self.batch_size
                found = mean_squares(self._gradients(v), once, weights, self.samples, v, size, most)
                squares += torch.tensor([found[name] for name in weights], dtype=squares.dtype, device=device)
        priced = prices(space, dict(zip(weights, broadcast(squares, 0).tolist(), strict=True)))
        return {name: (1 / priced[name]).to(weight.device) for name, weight in weights.items()}

    def _made(self, v: Tensor, once: Mapping[str, Met]) -> Tensor:
        """K at the present weights, by rank 0 for all."""
        with together("how margins hang together"), torch.no_grad(), products_as_convolutions(v.device):
            kernel = self._of_layers(v, once) if rank() == 0 else self._nothing(v.device)
        return broadcast(kernel, 0)

    def _nothing(self, device: torch.device) -> Tensor:
        return torch.zeros(len(self.samples), len(self.samples), dtype=torch.float64, device=device)

    def _of_layers(self, v: Tensor, once: Mapping[str, Met]) -> Tensor:
        """K as a sum over weights: those that meet a sample once, and those that need gradients of single samples."""
        net, space, samples, weights = self.descent.net, self.descent.space, self.samples, self.descent.weights
        gradients, kernel = self._gradients(v), self._nothing(v.device)
        for name, met in once.items():
            rows = met.rows.to(torch.promote_types(met.rows.dtype, torch.float32))
            kernel += self._s[name] * met.products(space.left_of(name, rows[None])[0])

        def left(wanted: Mapping[str, Tensor], inputs: Inputs, cotangents: Tensor) -> dict[str, Tensor]:
            return {name: self._left_of(name, rows) for name, rows in gradients(wanted, inputs, cotangents).items()}

        others = {name: weight for name, weight in weights.items() if name not in once}
        if others:
            size, most = self.batch_size, max(_bytes_for(v.device), least_bytes(others, len(samples)))
            kernel += jacobian_gram(net, others, samples, v[:, None], most, size, gradients=left)
        return kernel

    def _gradients(self, v: Tensor) -> Singles:
        """Of single samples; how they are had is found out once: weights move, the network's shape does not."""
        if self._singles is None:
            descent = self.descent
            self._singles = Singles(descent.net, descent.weights, self.samples, v, self.batch_size)
        return self._singles

    def _left_of(self, name: str, gradients: Tensor) -> Tensor:
        """√s P g of gradients [n, *shape], all of them at once."""
        info, n = self.descent.space.layers[name].info, len(gradients)
        matrices = vmap(info.as_matrix)(gradients).transpose(0, 1)  # [groups, n, m, d]
        left = self.descent.space.left_of(name, matrices.flatten(1, 2)).unflatten(1, (n, -1))
        left = left * self._s[name].sqrt().to(left.dtype)[:, None, None, None]
        return vmap(info.from_matrix)(left.transpose(0, 1))


def _bytes_for(device: torch.device) -> int:
    """For slices of the Jacobian: on a GPU a quarter of what is free there or kept by PyTorch for new tensors."""
    if device.type != "cuda":
        return MAX_BYTES
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (torch.cuda.mem_get_info(device)[0] + kept) // 4


def _slopes(logits: Tensor, labels: Tensor) -> Tensor:
    """∂m_i/∂z_i, [n, C]."""
    with torch.enable_grad():
        z = logits.detach().requires_grad_()
        (slopes,) = torch.autograd.grad(margin(z, labels).sum(), z)
    return slopes
