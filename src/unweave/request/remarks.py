"""What a person should look at after a request, even though, or especially because, it is done: its warnings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor, nn

from unweave.behaviour.outcomes import ClassProfile, Outcomes
from unweave.behaviour.ranking import FEW, few
from unweave.behaviour.strangers import Strangers
from unweave.config import ForgetConfig
from unweave.fitting.twins import SHARED
from unweave.grams import LayerGrams
from unweave.layers import find_layers
from unweave.reading.batches import device_of
from unweave.request.gone import classes_gone
from unweave.result import Look
from unweave.space import CoreSpace
from unweave.stopping import SAID, Goal

LARGE_SHIFT = 0.1
"""A relative change of a layer's outputs on retained samples that is worth a warning. On small problems whose training
sets are known by heart 0.14 came with more than a point of the retained samples lost; the demonstration has 0.02, 0.04.

Where labels are wrong the last layer is rescaled, and it is mostly more (there: 0.40)."""
LARGE_CLASS_RISE = 10.0
"""A rise of one class's held-out error, in points, that is worth a warning though the average may hide it."""
LARGE_VAL_RISE = 2.0
"""A rise of the validation error, in points, that is worth a warning: by one request, or by all so far."""
LARGE_RISE = 5.0
"""A rise of the held-out error over all requests so far, of other samples than at first, that is worth a warning."""
OTHER_VAL = 5.0
"""A difference of the validation error from what it was when the Grams were fitted, in points, that is worth one."""
UNSURE = 5.0
"""A standard error of the target, in points, that is worth a warning."""
NEARLY_WHOLE = 0.15
"""A share of a class that is worth a warning where no more is left of it: where a tenth was left, 74 % of what was
forgotten was wrong on the demonstration's network, by retraining 84; where two fifths were, 48 and 50."""
FEW_WEIGHTS = 0.5
"""A share of the parameters below which it is worth saying that no others can move."""


def elsewhere(grams: LayerGrams, original: nn.Module) -> list[str]:
    """A warning where the samples were read in another precision than the Grams."""
    if grams.origin.convolutions != "tf32" or device_of(original).type == "cuda":
        return []
    return [
        "the Grams were fitted with tf32=True on a GPU, this request ran on a CPU: what it took out is what was added "
        "to about 1e-3 only. Run it on the same kind of GPU, or fit without tf32"
    ]


def read_otherwise(grams: LayerGrams, given: LayerGrams, unsteady: bool) -> list[str]:
    """Warnings where samples of the request are not read as they were for the Grams; ``unsteady``: nor twice alike."""
    again = "what was taken out is not what was added. Start again from the model and Grams of before, with the samples"
    if grams.origin.unsteady:
        return [
            "when these Grams were fitted, a sample was another each time it was read (random augmentation?): what was "
            "taken out is not what was added, and what was aimed at may be wrong. Fit the model of before again, with "
            "every sample as it is"
        ]
    if unsteady:
        return [f"a sample of the request is another each time it is read (random augmentation?): {again} as fitted"]
    for name, info in grams.layers.items():
        rows, samples = given.layers[name].rows, given.samples
        each, rest = divmod(info.rows, grams.samples)
        if not rest and each * samples != rows:  # with a rest, it is not the same for each sample anyway
            words = f"samples of the request bring {rows / samples:.4g} rows each, those that were fitted {each}"
            return [
                f"to layer {name!r} {words} on average. If those had all one length, {again} padded or cropped to it"
            ]
    return []


def copies(digests: tuple[str, ...]) -> int:
    """How many samples of the request are copies of others in it."""
    return len(digests) - len(set(digests))


def repeated(digests: tuple[str, ...]) -> list[str]:
    """A warning where a sample was taken out more than once: a training set may hold it twice, a loader repeat it."""
    more = copies(digests)
    if not more:
        return []
    return [
        f"{more} of these {len(digests)} samples are copies of others in the request, and each was taken out of the "
        "Grams: that is right if the training set held them as often. If the loader repeats samples, start again from "
        "the model and Grams of before, with each of them once"
    ]


def some_strangers(found: Strangers | None) -> list[str]:
    """A warning where a few of many samples were not fitted as they are here."""
    if found is None or not found.least:
        return []
    words = str(found).rstrip(".")
    return [f"{words[0].lower()}{words[1:]}. They were taken out all the same: look whether they belong there"]


def ranked_by_chance(grams: LayerGrams, before: Outcomes, config: ForgetConfig) -> list[str]:
    """A warning where there are few samples of a class and nobody knows how hard they were to learn."""
    rarest = int(before.labels.bincount()[before.labels].min())
    if grams.margins is not None or config.stop != "held-out" or rarest >= FEW:
        return []
    return [
        f"of a class with fewer than {FEW} samples in the request, these Grams do not say how hard each was to learn "
        "(they are of an earlier release, or there are too many classes), so that a single one goes to the middle of "
        "their class: gather requests, or fit again"
    ]


def not_held_out(met: int, count: int) -> list[str]:
    """A warning where so many of the samples to forget are among the validation samples."""
    if met <= SHARED * count:
        return []
    return [
        f"{met} of these {count} samples are among the validation samples as well, which are to be held out: what is "
        "aimed at and what is watched rest on samples that were trained on. Unless their inputs are alike by chance, "
        "start again from the model and Grams of before, with a val= (--val) that was not trained on"
    ]


def aimed_at_few(goal: Goal, held_out: ClassProfile | None, before: Outcomes, config: ForgetConfig) -> list[str]:
    """A warning where so few held-out samples say what to aim at that they may well say something else.

    Not where each sample of the request stands for itself.
    """
    if held_out is None or config.stop != "held-out" or (goal.few and bool(few(before).all())):
        return []
    off = _off_by_chance(held_out, before.labels)
    if off <= UNSURE:
        return []
    return [
        f"the target rests on {int(held_out.count[before.labels.unique()].sum())} held-out samples of these classes, "
        f"and may be {2 * off:.0f} points off by chance: a larger val= (--val) makes it surer"
    ]


def _off_by_chance(held_out: ClassProfile, labels: Tensor) -> float:
    """The standard error of the held-out error of these labels' classes, in their proportions, in points.

    To each class one that is wrong and one that is right are added: a few that are all right are no certainty.
    """
    shares, count = labels.bincount(minlength=held_out.classes) / len(labels), held_out.count + 2
    wrong = (held_out.error * held_out.count + 1) / count
    return 100 * math.sqrt((shares**2 * wrong * (1 - wrong) / count)[shares > 0].sum().item())


def aimed_at_trained(kept: ClassProfile | None, seen: Outcomes | None, config: ForgetConfig) -> list[str]:
    """A warning where what is aimed at rests on samples that were trained on, as fit saw.

    Args:
        kept: of fit's validation samples.
        seen: those that are aimed at in their place; they are taken for the same ones where they are as many.
        config: of the request.
    """
    if kept is None or config.stop != "held-out" or (seen is not None and not kept.counts_as(seen)):
        return []
    met, count = float(kept.overlap), int(kept.count.sum())
    if not met > SHARED * count:  # nor where nobody looked
        return []
    return [
        f"{met:.0f} of the {count} validation samples that these Grams were fitted with were trained on as well: what "
        "is aimed at is too low an error. Fit again with a val= (--val) that was not trained on, and start from the "
        "model of before"
    ]


def another_val(grams: LayerGrams, seen: Outcomes | None) -> list[str]:
    """A warning where validation samples are not like those that the Grams were fitted with, by the same model."""
    kept = grams.held_out
    if seen is None or kept is None or grams.origin.forgotten or not kept.has(seen.labels):
        return []
    before = kept.expected_error(seen.labels)
    by_chance = math.hypot(_off_by_chance(kept, seen.labels), _standard_error(before, len(seen)))
    if abs(seen.error - before) <= max(OTHER_VAL, 4 * by_chance):
        return []
    return [
        f"before the first step {seen.error:.1f} % of the validation samples were wrong, where {before:.1f} % of those "
        "were that the Grams were fitted with: are they of the same kind, under the same transform, with their right "
        "labels? If not, what was aimed at is wrong as well: start again from the model and Grams of before"
    ]


def drifted(space: CoreSpace, grams: LayerGrams, given: LayerGrams) -> list[str]:
    """A warning where what was taken out is not what had been added."""
    clipped = max((layer.clipped for layer in space.layers.values()), default=0.0)
    if clipped < 1e-3 and grams.origin.first == given.origin.first:
        return []
    if clipped < 1e-3:
        return [
            "earlier requests have changed the network, and where it makes something else of these samples now, they "
            "were not taken out exactly: retained samples are protected less with every such request. first= "
            "(--first), the model that the Grams were fitted with, keeps it exact but for rounding"
        ]
    words = f"{100 * clipped:.1f} % of a layer's spectrum was negative and clipped"
    if grams.origin.first != given.origin.first:
        words += (
            ": earlier requests have changed what the network makes of these samples, so that they were not taken out "
            "exactly. With more of it a request is refused; first= (--first) keeps it exact"
        )
    elif grams.origin.drifted:
        words += (
            ": earlier requests without first= (--first) did not take their samples out exactly. With more of it a "
            "request is refused; from the first model and its Grams all of them are exact"
        )
    return [words]


def risen(first: Look, final: Look, due: float, samples: int) -> list[str]:
    """A warning where a request has cost held-out samples, by more than retraining would and by more than chance.

    Args:
        first: before the first step.
        final: at the end.
        due: points of the rise that retraining would have cost too.
        samples: that were watched.
    """
    before, after = first.val_error, final.val_error
    if before is None or after is None:
        return []
    changed = min(max((after - before) / 100, 0.0), 1.0)  # of all samples at least so many have become wrong
    by_chance = 100 * math.sqrt(changed / max(samples, 1))
    if after - before - due <= max(LARGE_VAL_RISE, 2 * by_chance):
        return []
    return [f"the validation error rose from {before:.1f} to {after:.1f} %: this request cost other samples"]


def about_the_end(
    shift: dict[str, float],
    first: Look,
    final: Look,
    goal: Goal,
    config: ForgetConfig,
    gone: Collection[int] = (),
    soft: Collection[str] = (),
) -> list[str]:
    """What a person should look at even though, or especially because, the request is done.

    ``gone``: classes that were forgotten before; ``soft``: layers that were protected softly.
    """
    warnings = []
    as_held_out = goal.error if goal.held_out_error is None else goal.held_out_error
    if not goal.at_least and first.forget_error >= as_held_out and goal.error > 0:
        warnings.append(
            f"before the first step the forget error, {first.forget_error:.1f} %, was no better than held out. Where "
            "these samples are hard ones that is so, and none is made better; if not: were they trained on, under this "
            "very transform, and is the validation set held out?"
        )
    if goal.held_out_error == 0 and not first.val_error:  # one of another class that is wrong clears it
        warnings.append(
            "the target is an error of 0 %, because none of the held-out samples of these classes is wrong: is the "
            "validation set really held out? It must not hold training samples"
        )
    most, name, words = _felt_most(shift)
    if most > LARGE_SHIFT:
        gentler = name not in soft and config.task != "poison"  # rescaling is felt whatever the protection
        warnings.append(f"{words}; from the original, protect='soft' may do less" if gentler else words)
    before, after = first.val_error_by_class or {}, final.val_error_by_class or {}
    for c in sorted(set(after) - set(gone)):
        due = goal.due.get(c, 0.0)
        if after[c] - before[c] > due + LARGE_CLASS_RISE:
            words = f"the held-out error of class {c} rose from {before[c]:.1f} to {after[c]:.1f} %"
            warnings.append(f"{words} (by retraining to about {before[c] + due:.1f})" if due > SAID else words)
    return warnings


def whole_classes(retained: LayerGrams, before: Outcomes) -> list[str]:
    """A warning where samples were to be forgotten and none of their class is left."""
    counts = retained.origin.labels
    gone = [c for c in before.labels.unique().tolist() if counts and not counts[c]]
    if not gone:
        return []
    return [
        f"no training sample of class {', '.join(map(str, gone))} is left, and yet samples of it are still recognised, "
        "as held-out ones were. To forget a class as a whole, start from the model and Grams of before this request, "
        "with task='classes' (--classes)"
    ]


def nearly_whole_classes(grams: LayerGrams, retained: LayerGrams, before: Outcomes) -> list[str]:
    """A warning for each class of which one request leaves so few samples that what is aimed at falls short."""
    was, left = grams.origin.labels, retained.origin.labels
    if not was or len(was) != len(left):
        return []
    asked = [c for c in before.labels.unique().tolist() if 0 < left[c] < NEARLY_WHOLE * was[c]]
    return [
        f"{left[c]} of {was[c]} samples of class {c} are left: a network that was trained on these alone would hardly "
        "know the class, and what was aimed at falls short of that. If the class is to go, start from the model and "
        "Grams of before with all of its samples and task='classes' (--classes)"
        for c in asked
    ]


def about_the_labels(first: Look, goal: Goal, config: ForgetConfig) -> list[str]:
    """A warning where labels that are said to be wrong were not followed before the first step."""
    if config.task != "poison" or not goal.reached(first.forget_error):
        return []
    return [
        f"before the first step {first.forget_error:.1f} % of these samples were taken for something else than the "
        "labels given: are these the wrong labels, as they were trained on, and not the right ones? If not, start "
        "again from the model and Grams of before"
    ]


def nothing_recovered(first: Look, final: Look, moved: bool, goal: Goal, config: ForgetConfig) -> list[str]:
    """A warning where wrong labels are no longer followed, and held-out samples are no better off for it."""
    before, after = first.val_error, final.val_error
    if config.task != "poison" or not moved or not goal.reached(final.forget_error):
        return []
    if not before or after is None or after < before:  # where none is wrong there is nothing to repair
        return []
    return [
        f"the validation error did not fall ({before:.2f} -> {after:.2f} %): the wrong labels are no longer followed, "
        "but as far as it tells nothing was repaired, and samples with right labels may have paid for it. The model "
        "of before may be the better one; or try from there protect='soft', or task='samples', which leaves them where "
        "new samples would be. Who knows the right labels can try unweave.baselines.BASELINES['first_order']"
    ]


def _standard_error(error: float, samples: int) -> float:
    """Of an error in percent that so many samples have, in points; as of 1 % where it is less."""
    share = min(max(error / 100, 0.01), 0.99)
    return 100 * math.sqrt(share * (1 - share) / max(samples, 1))


def felt_since(shift: Mapping[str, float], shift_now: Mapping[str, float]) -> list[str]:
    """A warning where retained samples feel all requests together, though not the last one by itself.

    Args:
        shift: since the first model; empty where that is not there, or was the model of this request.
        shift_now: since the model of this request.
    """
    most, _, words = _felt_most(shift)
    return [f"over all requests so far {words}"] if most > LARGE_SHIFT >= _felt_most(shift_now)[0] else []


def _felt_most(shift: Mapping[str, float]) -> tuple[float, str, str]:
    """The largest change of a layer, of which one, and what to say of it."""
    most, name = max(((value, name) for name, value in shift.items()), default=(0.0, ""))
    words = f"retained samples feel layer {name!r} change by {100 * most:.0f} %"
    return most, name, f"{words}: check the errors of those that are still there"


def risen_since(
    grams: LayerGrams, retained: LayerGrams, final: Look, samples: int, same_set: bool = False
) -> list[str]:
    """A warning where held-out errors have risen over all requests, of which each sees its own share only.

    What counts is the median over classes, so that a class that was forgotten does not, and a rise by chance neither.

    Args:
        grams: of before the request; they keep what the first model made of held-out samples.
        retained: what is left of them.
        final: how the model stands now …
        samples: … on so many validation samples.
        same_set: whether these are the samples that the Grams know of: then less of a rise is chance.
    """
    kept, after, gone = grams.held_out, final.val_error_by_class, classes_gone(retained)
    known = [c for c in after or {} if kept is not None and kept.count[c] > 0 and c not in gone]
    if not grams.origin.forgotten or not grams.origin.labels or kept is None or not after or not known:
        return []
    due = kept.without(retained.origin.labels).error  # with fewer samples of a class more of it is wrong by any way
    rise = statistics.median(after[c] - 100 * float(due[c]) for c in known)
    before, now = 100 * float(kept.error[known].mean()), statistics.fmean(after[c] for c in known)
    if same_set:
        least = max(LARGE_VAL_RISE, 200 * math.sqrt(max(now - before, 0) / 100 / max(samples, 1)))
    else:
        other_samples = _standard_error(now, samples), _standard_error(now, int(kept.count.sum()))
        least = max(LARGE_RISE, 3 * math.hypot(*other_samples))
    if rise <= least or now <= before:
        return []
    words = f"the classes' held-out errors rose by {rise:.1f} points in the middle class"
    words += f", and on average they rose from {before:.1f} to {now:.1f} %"
    return [f"over all requests so far {words}: damage adds up. Consider training anew"]


def what_can_move(net: nn.Module, names: Sequence[str]) -> list[str]:
    """A warning where most of what was trained is in layers that stay as they are, because of their kind."""
    layers = find_layers(net, list(names))
    movable = {id(layers[name].parameter): layers[name].parameter.numel() for name in names}
    free = any(parameter.requires_grad for parameter in net.parameters())
    trained = sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad or not free)
    share = sum(movable.values()) / trained
    if share >= FEW_WEIGHTS:
        return []
    return [
        f"only {100 * share:.0f} % of the model's parameters could move: others are in layers of kinds that stay as "
        "they are. What those know of the samples, they still know"
    ]
