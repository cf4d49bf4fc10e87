"""What attackers who have many networks make of each method: the paper's classifier, U-LiRA, RMIA and KLoM.

Negatives are always retrained networks on the forget set itself, so a perfect method stands at 0.50. Of the full
networks, those that methods were applied to (the table's seeds) come last, and at the very end those with the most of
them: they are the classifier's test networks, and it has learnt from none of them. U-LiRA, RMIA and KLoM take the
unlearned networks of the table's seeds, so that every method gives them as many, or all there are (``every``).

    xgboost  fitted once on full against retrained; asked about the unlearned ones from its test networks; or in turns,
             so that it is asked about all there are (``every``; experiments/documents/rotation.py)
    u-lira   unlearned against retrained, for an attacker who knows the method; also about the quarter of the samples
             that retrained networks find hardest, which an average over all samples hides
    rmia     the first half of the retrained networks are references, held-out samples of the classes the population;
             unlearned networks against the other half of the retrained ones
    klom     KL(retrained ‖ unlearned) of binned margins, mean over samples, beside its floor
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from experiments.documents.rotation import Asked, Turn, mean_auc, turns
from experiments.running.work import Work
from experiments.settings import Case
from unweave.audit import Ensemble, Separation, separate
from unweave.audit.ensemble import NEEDS
from unweave.audit.klom import klom
from unweave.audit.lira import ULiRA
from unweave.audit.rmia import RMIA
from unweave.audit.shadow_classifier import ShadowClassifier, Split

TRAINED = ("original", "retrained")
"""What was only trained."""
CURVE = 60
"""Points kept of a ROC curve."""
FEWEST_HARD = 10
"""Of the hardest quarter: with fewer samples it is not asked about."""


class Attackers:
    """Everything that is learnt once for a request and then asked about every method."""

    def __init__(self, work: Work, case: Case, methods: Sequence[str] = (), *, every: bool = False) -> None:
        self.work, self.case, self.methods, self.every = work, case, methods, every
        self.full_seeds = sorted(self.seeds("original"), key=self._methods_applied_to)
        self.retrained_seeds = self.seeds("retrained")
        self._classifier: ShadowClassifier | None = None
        self._read: dict[tuple[str, int], dict[str, np.ndarray]] = {}

    def seeds(self, method: str) -> list[int]:
        """Those whose outputs are there."""
        prefix = self.place(method)
        return [seed for seed in self.work.seeds_of(prefix) if self.work.has_arrays(f"{prefix}/{seed}")]

    def place(self, method: str) -> str:
        """The folder of a method's outcomes."""
        return f"{self.case.setting.name}/{self.case.name}/{method}"

    def unlearned(self, method: str) -> list[int]:
        """The seeds of a method's networks that are asked about."""
        return [seed for seed in self.seeds(method) if self.every or seed < self.work.scale.seeds]

    def _methods_applied_to(self, seed: int) -> int:
        """How many of the table's methods have an outcome of a seed; the attacks' own networks come before all."""
        if seed not in range(self.work.scale.seeds):
            return -1
        return sum(seed in self.seeds(method) for method in self.methods)

    def outputs(
        self, method: str, seeds: Sequence[int], part: str = "forget", samples: np.ndarray | slice = slice(None)
    ) -> Ensemble:
        """Logits of several networks of one kind on one set, or on some of its samples."""
        found = [self._arrays(method, seed) for seed in seeds]
        labels = found[0][f"{part}_labels"].astype(np.int64)[samples]
        return Ensemble.of(np.stack([a[part][samples] for a in found]), labels, method)

    @functools.cached_property
    def hardest(self) -> np.ndarray:
        """The quarter of the forget set with the lowest margins, mean over all retrained networks; their places."""
        margins = self.outputs("retrained", self.retrained_seeds).margins().mean(0)
        return np.sort(np.argsort(margins, kind="stable")[: len(margins) // 4])

    def _arrays(self, method: str, seed: int) -> dict[str, np.ndarray]:
        """Read once: every method is compared with the same networks."""
        key = method, seed
        if key not in self._read:
            self._read[key] = self.read(method, seed)
        return self._read[key]

    def read(self, method: str, seed: int) -> dict[str, np.ndarray]:
        """The outputs of one network on the forget set and on held-out samples, with their labels, from its file."""
        return self.work.arrays(f"{self.place(method)}/{seed}")

    def ready(self) -> bool:
        """Whether the paper's attack can be fitted."""
        return min(len(self.full_seeds), len(self.retrained_seeds)) >= NEEDS["xgboost"]["full"]

    def tested(self) -> list[int]:
        """The seeds of the full networks that the classifier is tested with; it has learnt from none of them."""
        return self.full_seeds[self.classifier().splits["full"].test]

    def about(self, method: str, only: Collection[str] | None = None) -> dict[str, Any]:
        """Every attack that there are enough networks for, with its interval; ``original`` and ``retrained`` too."""
        trained = {"original": self.full_seeds, "retrained": self.retrained_seeds}
        seeds = trained[method] if method in trained else self.unlearned(method)
        counts = {"full": len(self.full_seeds), "retrained": len(self.retrained_seeds), "unlearned": len(seeds)}
        asked: dict[str, Callable[[str, list[int]], dict[str, Any] | None]] = {
            "xgboost": self._by_classifiers_in_turn if self.every else self._by_classifier,
            "u-lira": self._by_likelihood,
            "rmia": self._by_references,
            "klom": self._distance,
        }
        found = dict[str, Any]()
        for name, ask in asked.items():
            if only is not None and name not in only:
                continue
            enough = all(counts[kind] >= least for kind, least in NEEDS.get(name, NEEDS["u-lira"]).items())
            answer = ask(method, seeds) if enough else None
            if answer is not None:
                found[name] = answer
        return found

    # --------------------------------------------------------------------------------------------- one attack each

    def classifier(self) -> ShadowClassifier:
        """The paper's attack, fitted once."""
        if self._classifier is None:
            groups = self.outputs("original", self.full_seeds), self.outputs("retrained", self.retrained_seeds)
            gone, tested = self.case.classes, self._tested_of_full()
            self._classifier = ShadowClassifier().fit(*groups, removed_classes=gone, tested=tested)
        return self._classifier

    def _tested_of_full(self) -> int | None:
        """Full networks beyond as many as there are retrained ones are tested too, where methods were applied to them.

        So with 14 and 12 it learns from six of each kind, is chosen by three, and has met no original of the five that
        every method has. None: as many as the attack has of its own.
        """
        held = Split.of(len(self.retrained_seeds), "retrained").tested
        more = min(len(self.full_seeds) - len(self.retrained_seeds), len(self.tried) - held)
        own = Split.of(len(self.full_seeds), "full").tested
        tested = min(held + more, len(self.full_seeds) - own - 1)  # one is left to learn from
        return tested if tested > own else None

    def scored(self, outputs: Ensemble) -> Separation:
        """Some networks against the classifier's retrained test networks."""
        attack = self.classifier()
        negatives = self.outputs("retrained", self.retrained_seeds[attack.splits["retrained"].test])
        return self._separated(attack.score(outputs), attack.score(negatives))

    def _separated(self, positives: np.ndarray, negatives: np.ndarray) -> Separation:
        return separate(positives, negatives, same_samples=True, draws=self.work.scale.draws)

    def _by_classifier(self, method: str, seeds: list[int]) -> dict[str, Any] | None:
        tested = self.tested()
        if method == "retrained":
            tested = self.retrained_seeds[self.classifier().splits["retrained"].validation]
        able = [seed for seed in tested if seed in seeds]
        if not able:
            return None
        learnt_from = {"full": len(self.full_seeds), "retrained": len(self.retrained_seeds)}
        return described(self.scored(self.outputs(method, able)), {**learnt_from, "on trial": len(able)})

    @functools.cached_property
    def tried(self) -> list[int]:
        """The seeds of full networks that methods were applied to."""
        applied = {seed for method in self.methods if method not in TRAINED for seed in self.unlearned(method)}
        return [seed for seed in self.full_seeds if seed in applied]

    @functools.cached_property
    def in_turns(self) -> list[tuple[Turn, ShadowClassifier, np.ndarray]]:
        """For every turn a classifier that has not met those it is asked about, and its scores of retrained ones."""
        found = []
        for turn in turns(self.full_seeds, self.tried or self.full_seeds, self.retrained_seeds):
            groups = self.outputs("original", turn.full), self.outputs("retrained", turn.retrained)
            attack = ShadowClassifier().fit(*groups, removed_classes=self.case.classes)
            found.append((turn, attack, attack.score(attack.held_out(*groups)[1])))
        return found

    def _by_classifiers_in_turn(self, method: str, seeds: list[int]) -> dict[str, Any] | None:
        if method == "retrained":
            return None  # each would be compared with the others in both roles, which is 0.50 whatever they are
        asked = []
        for turn, attack, against in self.in_turns:
            able = [seed for seed in turn.full[attack.splits["full"].test] if seed in seeds]
            if able:
                scores = attack.score(self.outputs(method, able))
                asked.append(Asked(scores, able, against, turn.retrained[attack.splits["retrained"].test]))
        if not asked:
            return None
        on_trial = len({seed for one in asked for seed in one.unlearned_seeds})
        rests_on = {"full": len(self.full_seeds), "retrained": len(self.retrained_seeds), "on trial": on_trial}
        auc = rounded(mean_auc(asked, self.work.scale.draws))
        return {"auc": auc, "turns": len(asked), "rests on": rests_on}

    def _by_likelihood(self, method: str, seeds: list[int]) -> dict[str, Any] | None:
        others = self.retrained_seeds
        if method == "retrained":
            seeds, others = others[: len(others) // 2], others[len(others) // 2 :]
        if method == "original":
            most = len(self.tried) if self.every else self.work.scale.seeds
            seeds = seeds[-max(most, 3) :]  # as many as the methods have, or the control sees more
        if min(len(seeds), len(others)) < NEEDS["u-lira"]["unlearned"]:
            return None

        def separated(samples: np.ndarray | slice) -> Separation:
            groups = (method, seeds), ("retrained", others)
            return self._separated(*ULiRA().score(*(self.outputs(*group, samples=samples) for group in groups)))

        found = described(separated(slice(None)), {"retrained": len(others), "on trial": len(seeds)})
        if len(self.hardest) >= FEWEST_HARD:
            found["hardest quarter"] = rounded(separated(self.hardest).document()["auc"])
        return found

    def _by_references(self, method: str, seeds: list[int]) -> dict[str, Any] | None:
        half = len(self.retrained_seeds) // 2
        references, others = self.retrained_seeds[:half], self.retrained_seeds[half:]
        seeds = others[: len(others) // 2] if method == "retrained" else seeds
        others = others[len(others) // 2 :] if method == "retrained" else others
        if not seeds or not others:
            return None
        forget, population = (self.outputs("retrained", references, part) for part in ("forget", "held_out"))

        def scores(kind: str, chosen: list[int]) -> np.ndarray:
            targets = zip(self.outputs(kind, chosen), self.outputs(kind, chosen, "held_out"), strict=True)
            return np.stack([RMIA().fit(strangers, population).score(own, forget) for own, strangers in targets])

        rests_on = {"retrained": len(references) + len(others), "on trial": len(seeds)}
        return described(self._separated(scores(method, seeds), scores("retrained", others)), rests_on)

    def _distance(self, method: str, seeds: list[int]) -> dict[str, Any] | None:
        if method in TRAINED:
            return None  # they stand beside every other method: as its control and its floor
        count = min(len(seeds), len(self.full_seeds), len(self.retrained_seeds) // 2)
        full = self.outputs("original", self.full_seeds[-count:])
        _, mean = klom(self.outputs(method, seeds), self.outputs("retrained", self.retrained_seeds), full)
        groups = {"unlearned": mean.unlearned, "original": mean.original, "retrained": mean.retrained}
        rests_on = {"full": count, "retrained": 2 * count, "on trial": count}  # half of the retrained are the floor
        distances = {name: rounded(found.document()) for name, found in groups.items() if found is not None}
        return {**distances, "rests on": rests_on}


def described(found: Separation, rests_on: dict[str, int]) -> dict[str, Any]:
    """AUC, TPR at 1 % FPR, a thinned ROC curve, and how many networks of each kind are behind them.

    ``models`` are the networks whose scores are compared, [on trial, retrained]; ``rests_on`` also counts those that
    the attacker learns from.
    """
    document = found.document()
    kept = ("auc", "tpr_at_1_percent", "balanced_accuracy", "models")
    roc = {axis: thinned(values) for axis, values in document["roc"].items()}
    shown: dict[str, Any] = rounded({**{key: document[key] for key in kept}, "rests on": rests_on, "roc": roc})
    return shown


def thinned(values: list[float]) -> list[float]:
    """At most CURVE of them, the ends among them."""
    if len(values) <= CURVE:
        return values
    return [values[round(i * (len(values) - 1) / (CURVE - 1))] for i in range(CURVE)]


def rounded(value: Any) -> Any:
    """Floats to four decimals, however deep they are."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value
