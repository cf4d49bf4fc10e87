"""What outputs do not show: the features behind them, and how fast the forget set is learnt again.

Both need the networks themselves, so they are asked for by whoever has them. They inform; the verdict does not rest on
them, for neither has a limit that could be stated beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from unweave.audit.attack import AttackResult, DistanceResult
from unweave.audit.measure import Separation
from unweave.audit.probe import FOLDS, LinearProbe, penultimate, probe
from unweave.audit.relearn import relearn_time
from unweave.errors import ModelError
from unweave.reading.batches import Loader


@dataclass(frozen=True)
class Inside:
    """What was found in the networks, and what could not be looked for."""

    attacks: list[AttackResult] = field(default_factory=list)
    distances: list[DistanceResult] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def _probe_features(
    found: Inside, networks: Mapping[str, nn.Module], forget: Loader, held_out: Loader, seed: int
) -> None:
    """Add what the probe of each network's features finds, or why there is none."""
    try:
        separations: dict[str, Separation] = {
            name: probe(penultimate(net, forget), penultimate(net, held_out), seed=seed)
            for name, net in networks.items()
        }
    except ModelError as error:
        found.left_out.append(f"Features were not probed: {error}")
        return
    original, retrained = separations.get("original"), separations.get("retrained")
    found.attacks.append(AttackResult(LinearProbe, separations["unlearned"], original, retrained, False, True))


def look_inside(
    networks: Mapping[str, nn.Module], forget: Loader, held_out: Loader, *, relearn: int = 1, seed: int = 0
) -> Inside:
    """Probe the features of each network, and relearn where there is a network that never saw the samples.

    Args:
        networks: "original" and "unlearned", and "retrained" where there is one.
        forget: the forget set, as ``(inputs, labels)``; a list, for it is read several times.
        held_out: samples of the same classes that nobody trained on.
        relearn: how many orders of the batches to learn the forget set again in; 0 for not at all. Each takes up to 200
            steps for each network.
        seed: of folds, permutations and batches.

    Raises:
        DataError: too few held-out samples, or a class without any.
    """
    found = Inside()
    count = sum(len(labels) for _, labels in forget)
    if count < 2 * FOLDS:
        found.left_out.append(f"Features were not probed: that takes {2 * FOLDS} forgotten samples, there are {count}.")
    else:
        _probe_features(found, networks, forget, held_out, seed)
    if "retrained" in networks and relearn:
        first, on_trial, never = (networks[name] for name in ("original", "unlearned", "retrained"))
        found.distances.append(
            relearn_time(on_trial, forget, original=first, retrained=never, orders=relearn, seed=seed)
        )
    else:
        why = "it was not asked for" if "retrained" in networks else "there is no network that never saw them"
        found.left_out.append(f"How fast the samples are learnt again was not tried: {why}.")
    return found
