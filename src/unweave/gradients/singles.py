"""Gradients of single samples as they can be had: from what layers meet, or from samples that are run by themselves."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unweave.errors import ModelError
from unweave.gradients.meetings import gradients_from_meetings, told_apart
from unweave.gradients.per_sample import sample_gradients
from unweave.reading.batches import Inputs
from unweave.reading.samples import Samples

TRIED = 32
"""Samples that it is tried on which layers tell, at most."""


class Singles:
    """For some weights of a network the gradients of Σ_c v_ic f_c(x_i), sample by sample, in float32 at least.

    Use it inside :func:`unweave.reading.rest.at_rest`; see :data:`unweave.gradients.jacobian.Gradients`.
    """

    def __init__(
        self, net: nn.Module, weights: Mapping[str, nn.Parameter], samples: Samples, v: Tensor, size: int = TRIED
    ) -> None:
        """
        Args:
            net: in eval mode.
            weights: by name.
            samples: n of them, to find out on which layers tell.
            v: cotangents [n, C].
            size: of them so many may be run together; two are in any case, one alone cannot be taken for another.
        """
        self.net = net
        self.users = told_apart(net, weights, samples, v, max(2, min(size, TRIED)))
        """Of the weights whose layers tell, the layers."""
        self._weights, self._batched = dict(weights), True
        paths = {id(weight): path for path, weight in net.named_parameters()}
        self._path_of = {name: paths[id(weight)] for name, weight in weights.items()}

    def __call__(self, wanted: Mapping[str, Tensor], inputs: Inputs, v: Tensor) -> dict[str, Tensor]:
        """By weight [m, *shape], for m samples and cotangents [m, C]."""
        told = {name: self._weights[name] for name in wanted if name in self.users}
        found = gradients_from_meetings(self.net, self.users, told, inputs, v) if told else {}
        for name in told.keys() - found.keys():  # a layer that is not given all samples of every batch
            del self.users[name]
        rest = {name: weight for name, weight in wanted.items() if name not in found}
        return found | (self._by_themselves(rest, inputs, v) if rest else {})

    def _by_themselves(self, wanted: Mapping[str, Tensor], inputs: Inputs, v: Tensor) -> dict[str, Tensor]:
        """Many samples at once by ``torch.func.vmap``, or one at a time in models that it does not allow."""
        by_path = {self._path_of[name]: weight for name, weight in wanted.items()}
        try:
            found = sample_gradients(self.net, by_path, inputs, v, self._batched)
        except ModelError:
            if not self._batched:
                raise
            self._batched = False
            return self._by_themselves(wanted, inputs, v)
        rows = {name: found[self._path_of[name]] for name in wanted}
        return {name: own.to(torch.promote_types(own.dtype, torch.float32)) for name, own in rows.items()}
