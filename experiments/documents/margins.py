"""How the margins of unlearned networks differ from those of retrained ones, sample by sample.

Of margins m [networks, samples] on the forget set, and r those of retrained networks:

    higher     mean over samples of m̄ − r̄, and over the hardest quarter of them: those with the lowest r̄
    spread     how much a sample's margin changes from network to network: the mean standard deviation of m over r's
    agreement  Spearman's correlation of two of the networks, the mean over all pairs
    truth      Spearman's correlation of a network with r̄, the mean over networks; a retrained one has no part in its r̄

Where "higher" is not 0, an attacker who compares sample by sample sees what is left (U-LiRA). Retrained networks agree
and know the truth as far as networks can that never saw the samples: who has less knows less well how hard they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata

from experiments.documents.many import TRAINED, Attackers, rounded

Margins = np.ndarray
"""[networks, samples]."""
READ_OUTS = ("higher", "higher, hardest quarter", "spread", "agreement", "truth")


def beside_retraining(attackers: Attackers) -> dict[str, Any]:
    """For every method with two networks or more: READ_OUTS, and "networks"; empty without two retrained ones."""
    if len(attackers.retrained_seeds) < 2:
        return {}
    retrained = attackers.outputs("retrained", attackers.retrained_seeds).margins()
    found = dict[str, Any]()
    for method in attackers.methods:
        seeds = _seeds(attackers, method)
        if len(seeds) >= 2:
            own = retrained if method == "retrained" else attackers.outputs(method, seeds).margins()
            found[method] = {"networks": len(seeds), **rounded(differences(own, retrained, attackers.hardest))}
    return found


def _seeds(attackers: Attackers, method: str) -> list[int]:
    """Of originals those that methods were applied to, so that rows are of the same networks."""
    if method == "retrained":
        return attackers.retrained_seeds
    return attackers.tried if method in TRAINED else attackers.unlearned(method)


def differences(own: Margins, retrained: Margins, hardest: np.ndarray) -> dict[str, float]:
    """READ_OUTS of two groups of networks, which may be the same one; ``hardest``: places of samples."""
    higher = own.mean(0) - retrained.mean(0)
    return {
        "higher": float(higher.mean()),
        "higher, hardest quarter": float(higher[hardest].mean()),
        "spread": float(own.std(0, ddof=1).mean() / retrained.std(0, ddof=1).mean()),
        "agreement": agreement(own),
        "truth": _truth(own, retrained),
    }


def agreement(margins: Margins) -> float:
    """The mean of Spearman's correlations of all pairs of networks."""
    each = np.corrcoef(rankdata(margins, axis=1))
    return float(each[np.triu_indices(len(margins), 1)].mean())


def _truth(own: Margins, retrained: Margins) -> float:
    """The mean of Spearman's correlations of single networks with the mean of retrained ones, without themselves."""
    found = []
    for place, margins in enumerate(own):
        others = np.delete(retrained, place, axis=0) if own is retrained else retrained
        found.append(agreement(np.stack([margins, others.mean(0)])))
    return float(np.mean(found))
