"""Attackers after one step of a chain of requests.

A chain is one outcome: of the steps before its last one there are the outputs on all that was forgotten so far, but not
those on held-out samples. So RMIA, which needs them, cannot be asked about these steps; see
experiments/documents/many.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.documents.many import TRAINED, Attackers
from experiments.running.work import Work
from experiments.settings import Case

WITHOUT_HELD_OUT = ("xgboost", "u-lira", "klom")
"""Attacks that look at the forget set alone."""


class AfterStep(Attackers):
    """The unlearned networks of chains after a step, against networks retrained without everything forgotten so far."""

    def __init__(
        self, work: Work, steps: Sequence[Case], number: int, methods: Sequence[str] = (), *, every: bool = False
    ) -> None:
        """Args: ``steps``: what is forgotten after each; ``number``: of the step, from 1; the others as Attackers'."""
        self.last, self.number = steps[-1], number
        super().__init__(work, steps[number - 1], methods, every=every)

    def place(self, method: str) -> str:
        """What was only trained is kept with the step's own request, chains with the last one's."""
        return super().place(method) if method in TRAINED else f"{self.last.setting.name}/{self.last.name}/{method}"

    def seeds(self, method: str) -> list[int]:
        """Of chains: those that came so far."""
        return [s for s in super().seeds(method) if method in TRAINED or self._made(method, s) >= self.number]

    def _made(self, method: str, seed: int) -> int:
        return len(self.work.row(f"{self.place(method)}/{seed}")["steps"])

    def read(self, method: str, seed: int) -> dict[str, np.ndarray]:
        """Of chains: ``forget`` and its labels, which are those that the retrained networks were read out with."""
        found = super().read(method, seed)
        if method in TRAINED:
            return found
        labels = super().read("retrained", self.retrained_seeds[0])["forget_labels"]
        return {"forget": found[f"step_{self.number}"], "forget_labels": labels}
