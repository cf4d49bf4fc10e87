"""What a network would say of a class had it been trained on fewer samples of it.

A network that was trained on n_c samples of class c learns the odds of c against the rest, in which n_c over the number
of the others is a factor. Trained on r_c of them, and on r_o of the n_o others, it would learn other odds, by the same
factor for every input, as far as the others lose alike. Margins are log-odds, but those of a network that is too sure
of itself are T times as long, T being the temperature that makes its outputs honest on held-out samples. So the margins
of class c move by

    δ_c = T · (log (r_c / n_c) − log (r_o / n_o))

and not at all where every class loses the same share. To forget 500 of 5,000 airplanes is δ = −0.1 T. Of a class that
loses most of its samples, a retrained network gets most of what it has not seen wrong.

All of this is about networks that learn from samples as often as they come. One whose training weighs classes alike,
however many samples they have, does not learn these odds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TEMPERATURES: tuple[float, ...] = tuple(2.0 ** (k / 4) for k in range(-4, 9))
"""From ½ to 4; what lies beyond counts as the end. A network without errors would have 0, one that guesses no end."""

ROUNDING = 1e-9
"""A shift below this is none: shares that are alike differ in their last bits."""


def tempered_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ over samples of −log softmax(z / T)_y for each of TEMPERATURES; [K], float64 on the device of the logits."""
    z = logits.detach().double()
    own = z.gather(1, labels[:, None]).squeeze(1)
    return torch.stack([((z / t).logsumexp(1) - own / t).sum() for t in TEMPERATURES])


def best_temperature(losses: Tensor) -> float:
    """The temperature of the least loss, by a parabola through the best of TEMPERATURES and its neighbours.

    NaN where no loss was summed.
    """
    if not len(losses) or not bool(torch.isfinite(losses).all()):
        return float("nan")
    best = int(losses.argmin())
    if best in (0, len(TEMPERATURES) - 1):
        return TEMPERATURES[best]
    left, here, right = losses[best - 1 : best + 2].tolist()
    bend = left - 2 * here + right
    step: float = 0.5 * (left - right) / bend if bend > 0 else 0.0
    return TEMPERATURES[best] * math.pow(TEMPERATURES[1] / TEMPERATURES[0], step)


def label_shift(trained: Tensor, retained: Tensor, temperature: Tensor) -> Tensor:
    """By how much the margins of each class move, float64 [C]; 0 where something is not known.

    Classes of which nothing is left do not count: they are no choice any more, and have no odds.

    Args:
        trained: samples of each class that the network was trained on, [C], or NaN …
        retained: … and that are left, [C].
        temperature: of the network on held-out samples, [], or NaN.
    """
    there = retained > 0
    n, r = trained.where(there, 0.0), retained.where(there, 0.0)
    shift = temperature * ((r / n).log() - ((r.sum() - r) / (n.sum() - n)).log())
    return shift.where(shift.isfinite() & (shift.abs() > ROUNDING), 0.0)
