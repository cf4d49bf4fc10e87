"""What attackers found, as cells beside a method's errors, and what stands under a table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.documents.basis import attack_networks, span
from experiments.documents.cells import MISSING, attack_of, auc

Document = Mapping[str, Any]
"""Of each below: with "attacks", as documents have them."""

ATTACKS = ("XGBoost", "U-LiRA", "U-LiRA, hardest quarter", "RMIA", "KLoM / floor")
IN_TURNS = "XGBoost in turns"
"""The paper's attack about all unlearned networks against all retrained ones; see experiments/documents/rotation.py."""


def each_attack(document: Document, method: str) -> list[str]:
    """The cells of ATTACKS."""
    return [
        auc(attack_of(document, method, "xgboost")),
        *by_likelihood(document, method),
        auc(attack_of(document, method, "rmia")),
        distance(document, method),
    ]


def by_likelihood(document: Document, method: str) -> list[str]:
    """U-LiRA about all samples, and about the quarter of them that retrained networks find hardest."""
    found = attack_of(document, method, "u-lira")
    hardest = {"auc": found["hardest quarter"]} if found is not None and "hardest quarter" in found else None
    return [auc(found), auc(hardest)]


def distance(document: Document, method: str) -> str:
    """KLoM beside its floor."""
    found = attack_of(document, method, "klom")
    if not found:
        return MISSING
    return f"{found['unlearned']['value']:.2f} / {found['retrained']['value']:.2f}"


def with_turns(document: Document, turned: Document, method: str) -> list[str]:
    """The cells of ATTACKS with IN_TURNS behind the first; ``turned``: what the attacks in turns found."""
    single, *others = each_attack(document, method)
    return [single, auc(attack_of({"attacks": turned}, method, "xgboost")), *others]


WITH_TURNS = (ATTACKS[0], IN_TURNS, *ATTACKS[1:])


def networks_behind(documents: Sequence[Document], turned: Sequence[Document]) -> str:
    """One paragraph: the networks behind each attack, said once where several documents have as many.

    Empty where nobody attacked.
    """
    said = [sentence for one in documents for sentence in attack_networks(one.get("attacks", {}), one.get("paper"))]
    return " ".join(dict.fromkeys([*said, *_behind_turns(turned)]))


def _behind_turns(turned: Sequence[Document]) -> list[str]:
    found = [about["xgboost"] for one in turned for about in one.get("methods", {}).values()]
    if not found:
        return []
    trial, retrained, turns = (
        span([one["rests on"]["on trial"] for one in found]),
        span([one["rests on"]["retrained"] for one in found]),
        span([one["turns"] for one in found]),
    )
    return [
        f"{IN_TURNS}: {trial} on trial, each against each of {retrained} retrained networks, by {turns} classifiers "
        "that had met neither."
    ]
