"""What tuning turns for every baseline: one knob of strength each, from its authors' value on (``search``).

A few settings are fixed by reasoning, in every trial of the method, and not searched:

- Batch norm is frozen for ``neg_grad``, ``neg_grad_plus`` and ``delete``. They send batches of the forget set alone
  through the network. Where that set is of one class, running statistics become that class's, whatever the learning
  rate: with batch norm in train mode on table 1's request, NegGrad stands at a forget error of 79 % with a tenth of its
  authors' rate and at 84 % with the rate itself, so that no rate forgets a little.
- ``scrub frozen`` and ``salun frozen`` are SCRUB and SalUn with frozen batch norm, beside both as their authors run
  them. They too pass batches of the forget set alone. The retain pass behind mends the running statistics, but the loss
  that the forget pass descends is another network's: with the statistics of one class, a student that is still its
  teacher's copy already disagrees with it (a small AllCNN like that of --quick: KL_T is 1.5 on a batch of one class,
  0.02 on one of all classes, and 0 on both with frozen batch norm).
- ``scrub of classes`` is SCRUB with what its authors take for a whole class: γ = 0.99, α = 0.001, two forget passes,
  three epochs. ``scrub`` has what they take for 100 samples of one.
- ``eu_k`` trains by the network's own recipe (``ways.last_layers``), as PGU's version does; its knob is so many
  times the recipe's learning rate. k stays 3, the paper's: another k is another row (``experiments.layers`` has it).
- The end of a schedule keeps its ratio to its beginning (``cf_k``).
- ``fisher`` looks at 2,000 retained samples.

Directions that do not go without saying: EU-k never sees the forget set again, so it errs more where it learns less: a
smaller learning rate forgets more. NTK forgets more with a larger μ: Δ itself shrinks, and the trapezium trick, which
brings it back to the length of training's own path along Δ, outweighs that; without the trick μ does next to nothing.
SCRUB's knob is the learning rate: of its settings the one that every notebook of its authors shares, and both its
passes scale with it. SSD forgets more where α is smaller: more weights are dampened. NegGrad+ weighs the forget set by
1 − a, for which its authors take 0.0001 and 0.05. Warnecke's second order stops after k of LiSSA's rounds, each of
which adds about v / s: δ, the damping's other factor, does nothing while k δ is small, so s is turned. Below half the
largest eigenvalue LiSSA diverges, which counts as a ruined network.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.search import Knob
from unweave.baselines import BASELINES, Method

SCHEME = "search"
"""How settings are chosen: part of the settings of every job that depends on it."""
FROZEN = {"norm": "frozen"}

ALSO = {"scrub frozen": "scrub", "salun frozen": "salun", "scrub of classes": "scrub"}
"""Methods that are run with other fixed settings as well → whose they are. Rows of their own, with a search of their
own: outcomes of one are never taken for the other's."""

_SCRUB = Knob("lr", 5e-4, 1e-6, 0.1)
_SALUN = Knob("lr", 0.013, 1e-5, 1.0)
KNOBS: dict[str, Knob] = {
    "fine_tune": Knob("lr", 0.01, 1e-4, 2.0),
    "eu_k": Knob("pace", 1.0, 1e-4, 10.0, less_forgets_more=True),
    "cf_k": Knob("lr", 0.1, 1e-3, 3.0, along={"lr_end": 0.05}),
    "neg_grad": Knob("lr", 1e-4, 1e-8, 0.1, fixed=FROZEN),
    "neg_grad_plus": Knob("a", 1e-4, 1e-7, 0.2, from_one=True, fixed=FROZEN),
    "random_label": Knob("lr", 1e-4, 1e-8, 0.01),
    "scrub": _SCRUB,
    "scrub frozen": replace(_SCRUB, fixed=FROZEN),
    "scrub of classes": replace(_SCRUB, fixed={"gamma": 0.99, "alpha": 0.001, "forget_epochs": 2, "epochs": 3}),
    "salun": _SALUN,
    "salun frozen": replace(_SALUN, fixed=FROZEN),
    "delete": Knob("lr", 1e-4, 1e-8, 0.1, fixed=FROZEN),
    "ssd": Knob("alpha", 10.0, 0.5, 1e6, less_forgets_more=True),
    "fisher": Knob("alpha", 1e-6, 1e-11, 1e-2, fixed={"samples": 2000}),
    "ntk": Knob("mu", 0.1, 1e-6, 1e4),
    "first_order": Knob("tau", 2e-5, 1e-8, 1e-2),
    "second_order": Knob("scale", 2e5, 1e3, 1e10, less_forgets_more=True),
}
"""Names of settings are those of ``baseline_of(method).config``."""


def baseline_of(name: str) -> Method:
    """The baseline that a row is of, whatever it is run with.

    Raises:
        KeyError: there is none of that name.
    """
    return BASELINES[ALSO.get(name, name)]
