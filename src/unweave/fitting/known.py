"""Whether a model knows the samples that are said to be its training samples, better than samples it was not shown."""

from __future__ import annotations

import math
import warnings

from unweave.behaviour.outcomes import Outcomes
from unweave.errors import UnweaveWarning

WORSE = 5.0
"""Points by which the error on training samples may be above that on validation samples without a word."""


def warn_of_unknown(training: Outcomes, held_out: Outcomes) -> None:
    """Warn where a model is wrong on clearly more of its training samples than of its validation samples."""
    if not len(training) or not len(held_out):
        return
    errors = training.error, held_out.error
    pairs = zip(errors, (len(training), len(held_out)), strict=True)
    by_chance = math.sqrt(sum(error * (100 - error) / count for error, count in pairs))
    if errors[0] - errors[1] > max(WORSE, 4 * by_chance):
        warnings.warn(
            f"the model is wrong on {errors[0]:.1f} % of the training samples, and on {errors[1]:.1f} % of the "
            "validation samples. Unless many training labels are wrong: are these the samples it was trained on, with "
            "their own labels and under its transform? Requests take out what is counted here, and aim by it.",
            UnweaveWarning,
            stacklevel=4,  # the caller of fit(), and that is by_itself's
        )
