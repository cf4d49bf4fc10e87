"""Classes that are gone: which ones stay, of which something is left, and which are said again.

Grams count labels. A class without samples is gone: a request before this one has taken it out.
"""

from __future__ import annotations

from torch import Tensor, nn

from unweave.behaviour.outcomes import Outcomes
from unweave.errors import ConfigError, DataError
from unweave.fit import observe_val
from unweave.grams import LayerGrams
from unweave.reading.batches import Loader

RECOGNISED = 5.0
"""Points above chance at which a class that is gone is said again."""


def check_forget_classes(labels: Tensor, classes: int) -> None:
    """Refuse to forget every class at once.

    Raises:
        ConfigError: the forget set has samples of all classes, so that nothing would be retained.
    """
    if len(labels.unique()) >= classes:
        raise ConfigError(
            f"The forget set has samples of all {classes} classes; forgetting every class leaves no model. "
            "Use task='samples' to forget samples of several classes."
        )


def classes_that_stay(retained: LayerGrams, before: Outcomes) -> set[int]:
    """Those that samples are left of and that are not to be forgotten now.

    Raises:
        DataError: there is none.
    """
    stay = classes_left(retained, before) - set(before.labels.tolist())
    if not stay:
        raise DataError("No class would stay: all others were forgotten before. Keep at least one.")
    return stay


def classes_to_choose_from(grams: LayerGrams, before: Outcomes) -> set[int]:
    """What samples with wrong labels may be taken for: not for a class that is gone.

    Raises:
        DataError: there is no choice.
    """
    known = classes_left(grams, before)
    if len(known) < 2:
        raise DataError("There is one class only, so nothing else that samples with wrong labels could be taken for.")
    return known


def classes_left(grams: LayerGrams, before: Outcomes) -> set[int]:
    """The classes that Grams have counted samples of; all, where they do not count."""
    return {c for c, count in enumerate(grams.origin.labels or (1,) * before.classes) if count}


def classes_gone(grams: LayerGrams) -> list[int]:
    """The classes of which no sample is left; none are known where Grams do not count."""
    return [c for c, count in enumerate(grams.origin.labels) if not count]


def left_of_classes(retained: LayerGrams, before: Outcomes) -> list[str]:
    """A warning for each class that is to be forgotten and of which samples are left."""
    left = {c: retained.origin.labels[c] for c in before.labels.unique().tolist() if retained.origin.labels}
    return [
        f"{count} samples of class {c} were not passed and are still retained: what they use is protected, and yet "
        "they are to be taken for another class. Pass all samples of a class, or use task='samples'"
        for c, count in left.items()
        if count
    ]


def said_again(net: nn.Module, grams: LayerGrams, val: Loader | None) -> list[str]:
    """A warning for each class that was gone before a request (whose Grams these are) and that its network says again.

    Only held-out samples can tell, if there are any of that class.
    """
    gone = classes_gone(grams)
    if val is None or not gone:
        return []
    outcomes = observe_val(net, val)
    recognised = {c: 100 - error for c, error in outcomes.error_by_class().items() if c in gone}
    return [
        f"{share:.0f} % of held-out samples of class {c} are recognised, though it was forgotten before: nothing holds "
        "it down any more. Cut its row off with drop_classes"
        for c, share in recognised.items()
        if share > 100 / outcomes.classes + RECOGNISED
    ]
