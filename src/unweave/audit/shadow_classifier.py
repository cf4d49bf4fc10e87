"""The paper's attack: boosted trees learn to tell networks that saw the forget set from networks that did not.

Shapes: a row is one model on one sample, its feature softmax [C] ⊕ one-hot label [C], its class 1 for a model trained
on everything ("full") and 0 for one trained on the retained data. Score = log-odds of "full" [N, n]; high: member.

Models, not rows, are split, in the order they are given: 40 to train on, 5 to choose the settings, 5 to test (of 50; in
proportion, at least one each, of another number). So nothing tested was learnt from. An unlearned model resembles the
original it came from: give the originals of the unlearned models last, where they are test models or left out.

The settings are those of the small GRID around the paper's own with the best F1 on the validation models, at the best
threshold of each (the paper tunes for F1; its code ships one setting). F1 does not see what all settings share.

When whole classes are forgotten, the paper removes "the row corresponding to the forgotten classes" from the feature:
their softmax entries and their one-hot entries are dropped, and nothing is renormalised. Where all samples are of
forgotten classes, the label says nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from unweave.audit.outputs import Ensemble, Floats, Ints, same_samples
from unweave.errors import ConfigError, DataError

if TYPE_CHECKING:
    import xgboost

FEWEST = 3
"""Models of each kind: one to train on, one to choose by, one to test."""
GRID: tuple[dict[str, float], ...] = (
    {"max_depth": 10, "learning_rate": 0.2},  # the paper's
    {"max_depth": 6, "learning_rate": 0.2},
    {"max_depth": 3, "learning_rate": 0.2},
    {"max_depth": 6, "learning_rate": 0.1},
    {"max_depth": 3, "learning_rate": 0.1},
)
TREES = (25, 50, 100)
"""Of one fit of 100, the paper's number: trees are added one by one, so the smaller numbers cost nothing."""
FIXED: dict[str, Any] = {
    "subsample": 0.8, "reg_lambda": 10, "min_child_weight": 0.1,
    "objective": "binary:logistic", "tree_method": "hist", "nthread": 1,
}  # fmt: skip
BINS = 16_384
"""Of all features together: the library's 256 each up to 64 features (20 for ten classes), 32 or more for hundreds of
classes, where deep trees spend their time on bins."""
WORKERS = 2
"""Settings tried side by side with a thread each: threads that share one fit wait for each other at every node, which
on a busy machine made it many times slower."""


@dataclass(frozen=True)
class Split:
    """Which models serve what."""

    train: slice
    validation: slice
    test: slice

    @property
    def tested(self) -> int:
        """How many models test."""
        return int(self.test.stop - self.test.start)

    @classmethod
    def of(cls, models: int, what: str, tested: int | None = None) -> Split:
        """40/5/5 of 50, in proportion of another number, but for validation and test three each where nine are there.

        A single test model has no spread that an interval could show. With ``tested``, so many of them are the last
        ones, and those to train on as many fewer.

        Raises:
            DataError: too few models to have one for every use.
        """
        if models < FEWEST:
            raise DataError(
                f"{models} {what} model{'s' * (models != 1)}: at least {FEWEST} are needed, one to learn from, one to "
                "choose settings by and one to test."
            )
        held = max(min(3, models // 3), round(models / 10))
        test = models - (held if tested is None else tested)
        if tested is not None and not held < test < models:
            raise DataError(
                f"{tested} of {models} {what} models to test leave none to learn from beside the {held} to choose "
                f"settings by. Supported: 1 to {models - held - 1}."
            )
        return cls(slice(test - held), slice(test - held, test), slice(test, models))


class ShadowClassifier:
    """Boosted trees on softmax and label."""

    name: ClassVar[str] = "xgboost"
    title: ClassVar[str] = "Classifier trained on many networks"
    explanation: ClassVar[str] = (
        "Someone who trained many networks like this one, with and without the data, taught a classifier to tell the "
        "two kinds apart by their answers, and shows it the answers of yours."
    )

    settings: dict[str, float]
    """What was chosen: max_depth, learning_rate and trees."""
    validation_f1: float
    """Of the chosen settings at their best threshold; accusing everybody has 0.67 when the groups are equally large."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def fit(
        self, full: Ensemble, retrained: Ensemble, *, removed_classes: Iterable[int] = (), tested: int | None = None
    ) -> ShadowClassifier:
        """Learn to tell the two kinds of models apart, on the forget set.

        Args:
            full: models trained on everything.
            retrained: models trained on the retained data alone.
            removed_classes: the classes that were forgotten as a whole; empty when samples were.
            tested: how many of the full models are test models, in place of :meth:`Split.of`'s own number: as many as
                there are unlearned models to ask about, of originals that the classifier has not met.

        Raises:
            DataError: fewer than three models of a kind, other samples, or no class left; or too few full models for
                so many to test. ConfigError: no XGBoost.
        """
        library = _library()
        same_samples(full=full, retrained=retrained)
        own = Split.of(len(full), "full", tested)
        self.splits = {"full": own, "retrained": Split.of(len(retrained), "retrained")}
        self._of = full
        self._kept = _kept(full.classes, removed_classes)
        parts = (full, self.splits["full"]), (retrained, self.splits["retrained"])
        rows, answers = self._rows(*(group.take(split.train) for group, split in parts))
        bins = int(np.clip(BINS // rows.shape[1], 32, 256))
        train = library.QuantileDMatrix(rows, answers, max_bin=bins, nthread=WORKERS)

        def grow(settings: dict[str, float]) -> xgboost.Booster:
            every = {**FIXED, **settings, "max_bin": bins, "seed": self.seed}
            trees: xgboost.Booster = library.train(every, train, max(TREES))
            return trees

        with ThreadPoolExecutor(WORKERS) as pool:
            grown = list(zip(GRID, pool.map(grow, GRID), strict=True))
        self._choose(grown, *self._rows(*(group.take(split.validation) for group, split in parts)))
        return self

    def score(self, ensemble: Ensemble) -> Floats:
        """Log-odds of "full" of N models on the samples of ``fit``, [N, n].

        Raises:
            DataError: other samples than in ``fit``.
        """
        same_samples(fitted=self._of, ensemble=ensemble)
        rows = features(ensemble, self._kept)
        return _predict(self._trees, rows, int(self.settings["trees"])).reshape(len(ensemble), ensemble.samples)

    def held_out(self, full: Ensemble, retrained: Ensemble) -> tuple[Ensemble, Ensemble]:
        """The test models among those that ``fit`` was given."""
        return full.take(self.splits["full"].test), retrained.take(self.splits["retrained"].test)

    def _rows(self, full: Ensemble, retrained: Ensemble) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        answers = np.repeat([1, 0], [len(full) * full.samples, len(retrained) * full.samples]).astype(np.float32)
        return np.concatenate([features(full, self._kept), features(retrained, self._kept)]), answers

    def _choose(
        self,
        grown: list[tuple[dict[str, float], xgboost.Booster]],
        rows: NDArray[np.float32],
        answers: NDArray[np.float32],
    ) -> None:
        tried = [
            (best_f1(_predict(trees, rows, count), answers), {**settings, "trees": count}, trees)
            for settings, trees in grown
            for count in TREES
        ]
        self.validation_f1, self.settings, self._trees = max(tried, key=lambda found: found[0])  # a tie: the first


def features(ensemble: Ensemble, kept: Ints) -> NDArray[np.float32]:
    """Softmax ⊕ one-hot label of the kept classes, [N·n, ≤ 2C]; labels that no sample has are left out, being 0."""
    labels = np.intersect1d(ensemble.labels, kept)
    table = np.empty((len(ensemble), ensemble.samples, len(kept) + len(labels)), dtype=np.float32)
    for place, logits in zip(table, ensemble.logits, strict=True):
        place[:, : len(kept)] = softmax(logits, axis=1)[:, kept]
    table[:, :, len(kept) :] = ensemble.labels[:, None] == labels
    return table.reshape(-1, table.shape[2])


def best_f1(scores: Floats, answers: NDArray[Any]) -> float:
    """F1 at the best threshold: the maximum over the precision–recall curve."""
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(answers[order])
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # a threshold cannot divide a tie
    return float((2 * found[last] / (last + 1 + found[-1])).max())


def _predict(trees: xgboost.Booster, rows: NDArray[np.float32], count: int) -> Floats:
    margin = trees.inplace_predict(rows, iteration_range=(0, count), predict_type="margin")
    return np.asarray(margin, dtype=np.float64)


def _kept(classes: int, removed: Iterable[int]) -> Ints:
    gone = sorted(set(removed))
    if gone and (gone[0] < 0 or gone[-1] >= classes):
        raise DataError(f"Invalid removed classes: {gone}. Supported: 0 to {classes - 1}.")
    if len(gone) > classes - 2:
        raise DataError(
            f"{len(gone)} of {classes} classes were removed. At least two must be left for the attack to look at."
        )
    return np.setdiff1d(np.arange(classes), gone)


def _library() -> ModuleType:
    try:
        import xgboost
    except ImportError as error:
        raise ConfigError("The classifier attack needs XGBoost: pip install 'unweave[audit]'.") from error
    return xgboost
