"""All an audit is given: the outputs of up to three groups of models on up to three sets of samples.

Groups: *unlearned* (what is on trial), *original* (before), *retrained* (never saw the forget set). Sets: *forget*,
*held out* (seen by nobody; the same classes), *retained*. A group is one model or many; all models of all groups answer
about the same samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from unweave.audit.outputs import Ensemble, Outputs, same_samples
from unweave.errors import ConfigError, DataError

Task = Literal["samples", "classes", "poison"]
Answer = Outputs | Ensemble

GROUPS = ("original", "unlearned", "retrained")
PARTS = ("forget", "held out", "retained")
OVERLAP = 0.01
"""Share of held-out samples that may have the outputs of a forget sample, by chance."""
MANY = 3
"""Models a group must have for the attacks that learn from other models."""

MEANINGS = {
    "T0": "The model before and after, the forget set, and samples nobody was trained on.",
    "T1": "Besides, models that were trained without the forgotten samples and serve as a yardstick.",
    "T2": "Many models of each kind: attacks that learn how forgetting looks.",
    "T3": "Besides, a model retrained without the forgotten samples: the real goal.",
}


@dataclass(frozen=True)
class Answers:
    """What one group of models says: on the forget set, and on as many of the other sets as there are."""

    forget: Ensemble
    held_out: Ensemble | None = None
    retained: Ensemble | None = None
    seconds: float | None = None
    """What it took to make one such model."""

    @classmethod
    def of(
        cls,
        forget: Answer,
        held_out: Answer | None = None,
        retained: Answer | None = None,
        seconds: float | None = None,
    ) -> Answers:
        """From one model's outputs, or from an ensemble's."""
        rest = None if held_out is None else _many(held_out), None if retained is None else _many(retained)
        return cls(_many(forget), *rest, seconds=seconds)

    def parts(self) -> Iterator[tuple[str, Ensemble]]:
        """The sets there are, by name."""
        for name, answer in zip(PARTS, (self.forget, self.held_out, self.retained), strict=True):
            if answer is not None:
                yield name, answer


@dataclass(frozen=True)
class Yardstick:
    """Outputs of reference models: on the forget set where they were not trained on it, and on the held-out set."""

    forget: Ensemble
    out: np.typing.NDArray[np.bool_]
    """Which model was trained without which sample, [N, n]."""
    held_out: Ensemble


@dataclass(frozen=True)
class Before:
    """An earlier request's forget set: what the models of now and of the beginning say about it."""

    unlearned: Ensemble
    original: Ensemble | None = None

    @classmethod
    def of(cls, unlearned: Answer, original: Answer | None = None) -> Before:
        """From one model's outputs each, or from ensembles'."""
        return cls(_many(unlearned), None if original is None else _many(original))


@dataclass(frozen=True)
class Evidence:
    """Everything on the table.

    Raises:
        ConfigError: an unknown task, or classes that do not fit it.
        DataError: groups that do not speak of the same samples.
    """

    unlearned: Answers
    original: Answers | None = None
    retrained: Answers | None = None
    references: Yardstick | None = None
    task: Task = "samples"
    """What was to be forgotten: some samples, every sample of their classes, or wrong labels. The outputs do not tell,
    and under another task than the request's the verdict is wrong."""
    class_names: Sequence[str] = ()
    same_original: bool = False
    """All unlearned models were made of one original. U-LiRA then sees the common origin, and is not judged."""
    earlier: dict[str, Before] = field(default_factory=dict)
    """Earlier requests by title, to be tested again."""
    left: Mapping[int, float] = field(default_factory=dict)
    """Of each class that lost samples, the share that is left of what the original was trained on: ``result.left``, or
    ``result.left_of_all`` beside the first model of several requests. Who is trained on fewer samples of a class gets
    more of it wrong: that is no damage."""

    def __post_init__(self) -> None:
        if self.task not in ("samples", "classes", "poison"):
            raise ConfigError(f"Invalid task: {self.task!r}. Supported: 'samples', 'classes', 'poison'.")
        for part in PARTS:
            answers = {f"{name} on {part}": dict(group.parts()).get(part) for name, group in self.groups()}
            same_samples(**{name: answer for name, answer in answers.items() if answer is not None})
        if self.class_names and len(self.class_names) != self.unlearned.forget.classes:
            raise DataError(f"{len(self.class_names)} class names for {self.unlearned.forget.classes} classes.")
        if len(set(self.class_names)) < len(self.class_names):
            raise DataError("Two classes have the same name. Give each its own.")
        if len(self.removed) == self.unlearned.forget.classes:
            raise ConfigError(
                "task='classes' is for requests to remove whole classes, and these samples are of all classes there "
                "are. Use task='samples' (or 'poison')."
            )
        strange = {c: share for c, share in self.left.items() if not (_is_class(self, c) and 0 <= share <= 1)}
        if strange:
            raise DataError(
                f"Invalid left: {strange}. Supported: for classes, the share of their samples that is left."
            )
        _check_yardsticks_are_others(self)
        _check_no_overlap(self)
        _check_yardstick(self.references, self.unlearned)
        if self.earlier and self.unlearned.held_out is None:
            raise DataError("Earlier requests are tested against held-out samples, which are missing.")
        if self.original is None and any(before.original is not None for before in self.earlier.values()):
            raise DataError("The original model's outputs are there for an earlier request, but not for this one.")

    def groups(self) -> Iterator[tuple[str, Answers]]:
        """The groups there are, by name."""
        for name, answers in zip(GROUPS, (self.original, self.unlearned, self.retrained), strict=True):
            if answers is not None:
                yield name, answers

    @property
    def forget_classes(self) -> list[int]:
        return [int(c) for c in np.unique(self.unlearned.forget.labels)]

    @property
    def removed(self) -> list[int]:
        """The classes that are to go, in a request to remove classes."""
        return self.forget_classes if self.task == "classes" else []

    @property
    def may_be_classes(self) -> bool:
        """Whether samples of every class but the forgotten ones were retained, though the task is not to remove those.

        No proof, for the retained samples need not be all there are.
        """
        if self.task != "samples" or self.unlearned.retained is None:
            return False
        kept = {int(c) for c in self.unlearned.retained.labels}
        return kept == set(range(self.unlearned.forget.classes)) - set(self.forget_classes)

    def name_of(self, label: int) -> str:
        return str(self.class_names[label]) if self.class_names else str(label)

    @property
    def is_ensemble(self) -> bool:
        """Whether there are several models of each kind, for attacks that learn from models."""
        groups = (self.original, self.retrained)
        return all(group is not None and len(group.forget) >= MANY for group in groups)

    def tier(self) -> dict[str, Any]:
        """Which tier this is, what it has, and what it lacks; as the report's schema wants it."""
        ensemble, retrained = self.is_ensemble, self.retrained is not None
        name = "T2" if ensemble else "T3" if retrained else "T1" if self.references is not None else "T0"
        given = [f"{group}: {_described(answers)}" for group, answers in self.groups()]
        if self.references is not None:
            given.append(f"references: {len(self.references.forget)} models trained without some of the samples")
        return {"name": name, "meaning": MEANINGS[name], "given": given, "missing": self._missing()}

    def _missing(self) -> list[str]:
        lacks = {
            "the original model's outputs: without them no attack can show that it is not blind": self.original is None,
            "held-out samples of the forgotten classes": self.unlearned.held_out is None,
            "retained samples: whether they suffered was not looked at": self.unlearned.retained is None,
            "reference models trained without the samples (T1)": self.references is None and self.retrained is None,
            "a model retrained without the samples (T3)": self.retrained is None,
            "many models of each kind, for attacks that learn how forgetting looks (T2, the strongest)": (
                not self.is_ensemble
            ),
        }
        return [text for text, lacking in lacks.items() if lacking]


def _is_class(evidence: Evidence, label: int) -> bool:
    return label in range(evidence.unlearned.forget.classes)


def _many(answer: Answer) -> Ensemble:
    return answer if isinstance(answer, Ensemble) else Ensemble(answer.logits[None], answer.labels)


def _described(answers: Answers) -> str:
    count = len(answers.forget)
    sets = ", ".join(f"{part} ({answer.samples} samples)" for part, answer in answers.parts())
    return f"{count} model{'s' if count > 1 else ''} on {sets}"


def _check_yardsticks_are_others(evidence: Evidence) -> None:
    """Refuse a network that is its own yardstick: whatever it does would be right."""
    named = dict(evidence.groups())
    for one, other in (("unlearned", "retrained"), ("original", "retrained")):
        pair = [named[name].forget.logits for name in (one, other) if name in named]
        if len(pair) == 2 and any(np.array_equal(a, b) for a in pair[0] for b in pair[1]):
            raise DataError(f"An {one} and a {other} network say exactly the same. Was one file given twice?")


def _check_no_overlap(evidence: Evidence) -> None:
    """Refuse held-out samples that are in the forget set, found by a network's outputs: they are no strangers.

    The network is the original where it is there. Other samples may get the same outputs too, of a network that has
    collapsed or that rounds to few answers: as often, at least, as within the set that repeats itself less.
    """
    given = [(answers.forget, answers.held_out) for _, answers in evidence.groups() if answers.held_out is not None]
    if not given:
        return
    forget, held_out = given[0]
    mine, theirs = (Counter(row.tobytes() for row in answers.logits[0]) for answers in (forget, held_out))
    same = sum(count for row, count in theirs.items() if row in mine)
    alike = min(_share_of_equal_pairs(mine), _share_of_equal_pairs(theirs))
    by_chance = alike * forget.samples * held_out.samples
    if len(mine) > 1 and same > OVERLAP * held_out.samples + 3 * by_chance:
        raise DataError(
            f"{same} of {held_out.samples} held-out samples get the very outputs of a sample of the forget set, so "
            "they seem to be the same samples. Give held-out samples that nobody was trained on."
        )


def _share_of_equal_pairs(counts: Counter[bytes]) -> float:
    """How likely two samples of a set are to get the same outputs."""
    total = counts.total()
    return sum(c * (c - 1) for c in counts.values()) / max(1, total * (total - 1))


def _check_yardstick(references: Yardstick | None, unlearned: Answers) -> None:
    if references is None:
        return
    same_samples(**{"references on forget": references.forget, "unlearned on forget": unlearned.forget})
    if unlearned.held_out is not None:
        same_samples(**{"references on held out": references.held_out, "unlearned on held out": unlearned.held_out})
    if references.out.shape != references.forget.logits.shape[:2]:
        shape = list(references.forget.logits.shape[:2])
        raise DataError(f"The mask of untrained samples is {list(references.out.shape)}, expected {shape}.")
