"""RMIA (Zarifzadeh 2024): does the model favour this sample over strangers more than reference models do?

Shapes: a target model on n samples and on a population of m samples that no model was trained on; R reference models on
both. p is the probability of the label, and over the references that did not see x (OUT)

    p̄(x)  = (1+a)/2 · mean_OUT p(x) + (1−a)/2           what a model that did or did not see x would say
    score = share of the population z with  p(x)/p̄(x) > p(z)/p̄(z),  a tie counting half        high: member

Sorting the population's ratios once makes n scores cost O((n + m) log m) instead of an n × m matrix. Ratios are
compared as logarithms, and log p is read off the margin, −log(1 + e^−m): it still tells apart samples whose p rounds
to 1. Every sample may have another number of OUT references, one is enough; the population has all R.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from unweave.audit.lira import places
from unweave.audit.outputs import Ensemble, Floats, Outputs, same_samples
from unweave.errors import ConfigError, DataError


class RMIA:
    """Robust membership inference with one reference model or a few."""

    name: ClassVar[str] = "rmia"
    title: ClassVar[str] = "Relative likelihood against strangers"
    explanation: ClassVar[str] = (
        "Someone with a network or two of the same kind, which never saw the sample, asks whether yours favours the "
        "sample over samples nobody trained on more than those networks do."
    )

    def fit(self, target_on_population: Outputs, references_on_population: Ensemble, *, a: float = 0.3) -> RMIA:
        """Learn what ratios strangers have.

        Args:
            target_on_population: the model under attack on samples that neither it nor any reference was trained on.
            references_on_population: the reference models on the same samples.
            a: how much more likely a model that saw x makes it; 0 to 1, and 1 says not at all.

        Raises:
            DataError: two different sets of samples. ConfigError: ``a`` out of range.
        """
        if not 0 <= a <= 1:
            raise ConfigError(f"Invalid a: {a}. Supported: from 0 to 1; 0.3 suits image classifiers.")
        same_samples(target_on_population=target_on_population, references_on_population=references_on_population)
        self.a = a
        self._references = len(references_on_population)
        self._population = self._ratios(target_on_population, references_on_population, None)
        return self

    def score(
        self,
        target_on_samples: Outputs,
        references_on_samples: Ensemble,
        out: NDArray[np.bool_] | None = None,
    ) -> Floats:
        """[n], from 0 to 1.

        Args:
            target_on_samples: the model of ``fit`` on the samples in question.
            references_on_samples: the reference models of ``fit``, in any order, on the same samples.
            out: [R, n], whether a reference did *not* see a sample in training; None: none of them saw any.

        Raises:
            DataError: different samples, other references than in ``fit``, or a sample that all of them saw.
        """
        same_samples(target_on_samples=target_on_samples, references_on_samples=references_on_samples)
        if len(references_on_samples) != self._references:
            raise DataError(
                f"{len(references_on_samples)} reference models on the samples and {self._references} on the "
                "population. Both must be the outputs of the same models."
            )
        ratios = self._ratios(target_on_samples, references_on_samples, _checked(out, references_on_samples))
        return places(ratios, among=self._population)

    def _ratios(self, target: Outputs, references: Ensemble, out: NDArray[np.bool_] | None) -> Floats:
        """log p/p̄, [n]."""
        unseen = np.ones((len(references), references.samples), dtype=bool) if out is None else out
        log_p = _log_probability(references.margins())
        mean = np.asarray(logsumexp(np.where(unseen, log_p, -np.inf), axis=0)) - np.log(unseen.sum(0))
        with np.errstate(divide="ignore"):  # a = 1 leaves nothing for members: log 0 is meant
            prior = np.logaddexp(np.log((1 + self.a) / 2) + mean, np.log((1 - self.a) / 2))
        return np.asarray(_log_probability(target.margins()) - prior)


def _log_probability(margins: Floats) -> Floats:
    return np.asarray(-np.logaddexp(0, -margins))


def _checked(out: NDArray[np.bool_] | None, references: Ensemble) -> NDArray[np.bool_] | None:
    if out is None:
        return None
    mask, wanted = np.asarray(out), (len(references), references.samples)
    if mask.shape != wanted or mask.dtype != np.bool_:
        raise DataError(
            f"Invalid out: {mask.dtype} {list(mask.shape)}. Expected bool {list(wanted)}: [models, samples]."
        )
    seen = int((~mask.any(0)).sum())
    if seen:
        raise DataError(
            f"{seen} samples were seen by every reference model. Each needs at least one that was not trained on it: "
            "train two references on complementary halves of the data."
        )
    return mask
