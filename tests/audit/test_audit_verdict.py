"""The verdict: passes what has forgotten, and never a no-op, a ruin, swapped arguments or too little data."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch
from worlds import CLASSES, World, fair, with_margins

from unweave.audit.behaviour import check_held_out
from unweave.audit.checks import Check, needed, place
from unweave.audit.evidence import Answers, Before, Evidence
from unweave.audit.examine import ATTACKS, examine
from unweave.audit.limits import Thresholds
from unweave.audit.measure import Interval
from unweave.audit.outputs import Ensemble
from unweave.errors import ConfigError, DataError


def outcome(evidence: Evidence, **options: object) -> str:
    return examine(evidence, **options).verdict.outcome  # type: ignore[arg-type]


def test_a_model_that_has_forgotten_passes() -> None:
    audit = examine(fair(World()))
    assert audit.verdict.outcome == "pass"
    assert "As far as this audit can see" in audit.verdict.sentence
    assert {check.outcome for check in audit.verdict.checks if not check.blind} == {"pass"}


def test_a_no_op_fails() -> None:
    original = World().answers(memory=3.0)
    audit = examine(Evidence(original, original))
    assert audit.verdict.outcome == "fail"
    assert {check.name for check in audit.verdict.checks if check.outcome == "fail"} >= {"Margin", "Something changed"}


def test_a_no_op_fails_even_where_no_attack_can_see() -> None:
    original = World().answers(memory=0.0)
    assert outcome(Evidence(original, original)) == "fail"


def test_half_forgotten_fails() -> None:
    world = World()
    assert outcome(Evidence(world.answers(memory=1.5), world.answers(memory=3.0))) == "fail"


def test_less_like_a_member_than_strangers_fails() -> None:
    world = World()
    audit = examine(Evidence(world.answers(memory=-1.5), world.answers(memory=3.0)))
    assert audit.verdict.outcome == "fail"
    assert "less familiar than strangers" in audit.verdict.sentence


def test_samples_that_were_harder_than_strangers_before_are_no_mark_of_forgetting() -> None:
    world = World()
    for before, expected in ((-1.0, "inconclusive"), (0.0, "fail"), (3.0, "fail")):
        audit = examine(Evidence(world.answers(memory=-1.5), world.answers(memory=before)))
        check = next(check for check in audit.verdict.checks if check.name == "Margin")
        assert check.outcome == expected
        assert ("as they did to the original network" in check.sentence) == (expected == "inconclusive")
    beside = Evidence(world.answers(memory=-1.5), world.answers(memory=-1.0), world.answers(memory=0.0))
    check = next(check for check in examine(beside).verdict.checks if check.name == "Margin")
    assert check.outcome == "fail", "a retrained network tells what is to be expected"


@pytest.mark.parametrize("ruin", ["random", "constant"])
def test_a_ruin_fails(ruin: str) -> None:
    world = World()
    audit = examine(Evidence(getattr(world, ruin)(), world.answers(memory=3.0)))
    assert audit.verdict.outcome == "fail"
    assert "it was damaged" in " ".join(check.sentence for check in audit.verdict.checks)


@pytest.mark.parametrize("ruin", ["random", "constant"])
def test_a_ruin_does_not_pass_without_the_original(ruin: str) -> None:
    assert outcome(Evidence(getattr(World(), ruin)())) != "pass"


def test_a_quiet_ruin_of_the_retained_samples_fails() -> None:
    world = World()
    assert outcome(Evidence(world.answers(memory=0.0, kept=1.0), world.answers(memory=3.0))) == "fail"


def test_models_swapped_fail() -> None:
    world = World()
    assert outcome(Evidence(world.answers(memory=3.0), world.answers(memory=0.0))) == "fail"


def test_sets_swapped_do_not_pass_and_it_is_said() -> None:
    evidence = fair(World(forget=1500, held_out=1500))
    swapped = {
        name: dataclasses.replace(answers, forget=answers.held_out, held_out=answers.forget)
        for name, answers in evidence.groups()
        if answers.held_out is not None
    }
    audit = examine(Evidence(**swapped))
    assert audit.verdict.outcome != "pass"
    assert any("swapped?" in check.sentence for check in audit.verdict.checks)


def test_the_same_set_twice_does_not_pass() -> None:
    evidence = fair(World())
    same = {name: dataclasses.replace(a, held_out=a.forget) for name, a in evidence.groups()}
    with pytest.raises(DataError, match="seem to be the same samples"):
        Evidence(**same)
    with pytest.raises(DataError, match=r"300 of 300 held-out samples .* seem to be the same samples"):
        Evidence(same["unlearned"])


def test_the_same_samples_several_times_over_are_refused_too() -> None:
    alone = World().answers(memory=0.0)
    logits, labels = np.concatenate([alone.forget.logits] * 2, 1), np.concatenate([alone.forget.labels] * 2)
    with pytest.raises(DataError, match=r"600 of 600 held-out samples"):
        Evidence(dataclasses.replace(alone, held_out=dataclasses.replace(alone.forget, logits=logits, labels=labels)))


@pytest.mark.parametrize("seed", range(3))
def test_outputs_that_are_rounded_to_few_values_are_no_proof_of_the_same_samples(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def rounded(count: int) -> Ensemble:
        z = 3 * torch.randn(count, generator=generator)
        logits = torch.stack([-z + 0.1 * torch.randn(count, generator=generator), z], 1).bfloat16().double()
        return Ensemble.of(logits[None].numpy(), torch.arange(count).numpy() % 2)

    forget, held_out = rounded(1000), rounded(3000)
    same = {row.tobytes() for row in forget.logits[0]} & {row.tobytes() for row in held_out.logits[0]}
    assert len(same) > 0.01 * 3000, "or this says nothing"
    Evidence(Answers(forget, held_out))


def test_some_of_the_same_samples_are_refused_without_the_original() -> None:
    alone = World().answers(memory=0.0)
    assert alone.held_out is not None
    alone.held_out.logits[:, :20] = alone.forget.logits[:, :20]
    with pytest.raises(DataError, match=r"20 of 1500 held-out samples .* seem to be the same samples"):
        Evidence(alone)


def test_a_network_that_says_the_same_of_many_samples_is_no_sign_of_the_same_samples() -> None:
    """Half of its answers are one and the same, as where a layer has died."""
    alone = World().answers(memory=0.0)
    for part in (alone.forget, alone.held_out):
        assert part is not None
        part.logits[:, ::2] = np.linspace(0, 3, CLASSES)
    assert outcome(Evidence(alone)) != "pass"


@pytest.mark.parametrize("forget, held_out", [(5, 1500), (15, 1500), (300, 12), (40, 60)])
def test_too_little_data_is_inconclusive(forget: int, held_out: int) -> None:
    world = World(forget=forget, held_out=held_out)
    world.labels["held_out"][:CLASSES] = np.arange(CLASSES)  # at least one stranger of every class
    assert outcome(fair(world)) != "pass"


def test_without_the_original_nothing_passes() -> None:
    audit = examine(Evidence(World().answers(memory=0.0)))
    assert audit.verdict.outcome == "inconclusive"
    said = " ".join(check.sentence for check in audit.verdict.checks)
    assert "Without the original network nobody knows whether Margin would notice it." in said


def test_an_original_that_remembers_nothing_gives_no_pass() -> None:
    world = World()
    audit = examine(Evidence(world.answers(memory=0.0), world.answers(memory=0.1)))
    assert audit.verdict.outcome == "inconclusive"
    assert any(check.blind for check in audit.verdict.checks)


def test_an_attack_that_sees_nothing_of_the_original_is_named() -> None:
    world = World()
    audit = examine(Evidence(world.answers(memory=0.0), world.answers(memory=0.0)), only=["margin"])
    control = audit.attacks[0].original
    assert control is not None
    assert control.auc.low <= 0.5 <= control.auc.high
    assert "Margin does not see the original network's memory of the samples either" in audit.verdict.sentence


@pytest.mark.parametrize(
    "memory, words",
    [
        (0.3, r"Margin sees .* \(AUC 0\.5\d\) no more than is allowed \(0\.60\), so it cannot tell what is gone"),
        (0.6, r"Margin sees .* \(AUC 0\.6\d\) but not for certain more than is allowed \(0\.60; it may be 0\.5\d\)"),
    ],
)
def test_an_original_that_remembers_no_more_than_is_allowed(memory: float, words: str) -> None:
    """The attack does see, so that a smaller limit lets it speak."""
    world = World()
    evidence = Evidence(world.answers(memory=0.0), world.answers(memory=memory))
    audit = examine(evidence, only=["margin"])
    control = audit.attacks[0].original
    assert control is not None
    assert 0.5 < control.auc.low <= 0.6
    assert audit.verdict.outcome == "inconclusive"
    (margin,) = (check for check in audit.verdict.checks if check.name == "Margin")
    assert margin.blind
    assert re.match(words, margin.sentence)
    assert "--auc" in margin.sentence
    asked_more = examine(evidence, Thresholds(auc=control.auc.low - 0.501), only=["margin"]).verdict
    assert not next(check for check in asked_more.checks if check.name == "Margin").blind


def test_without_held_out_samples_nothing_passes() -> None:
    world = World()
    bare = [Answers(world.answers(memory=memory).forget) for memory in (0.0, 3.0)]
    audit = examine(Evidence(*bare))
    assert audit.verdict.outcome == "inconclusive"
    assert audit.attacks == []


def test_a_harder_forget_set_is_judged_by_the_retrained_model() -> None:
    world = World(held_out=5000)
    world.ease["forget"] -= 1.5
    unlearned, original = world.answers(memory=0.0), world.answers(memory=4.0)
    assert outcome(Evidence(unlearned, original)) == "fail"  # nobody can know that these samples are harder …
    retrained = world.answers(memory=0.0)
    assert outcome(Evidence(unlearned, original, retrained)) == "pass"  # … but a retrained network shows it


def test_what_retraining_costs_too_is_no_damage() -> None:
    world = World(held_out=5000)
    unlearned, original = world.answers(memory=0.0, skill=-0.6), world.answers(memory=4.0)
    assert outcome(Evidence(unlearned, original)) == "fail"
    retrained = world.answers(memory=0.0, skill=-0.6)
    found = {c.name: c.outcome for c in examine(Evidence(unlearned, original, retrained)).verdict.checks}
    assert found["Still works"] == "pass"


def test_an_error_unlike_the_retrained_ones_fails() -> None:
    world = World(forget=600)
    evidence = Evidence(world.answers(memory=1.2), world.answers(memory=4.0), world.answers(memory=-0.8))
    found = {check.name: check.outcome for check in examine(evidence).verdict.checks}
    assert found["Error on the forget set"] == "fail"


# ------------------------------------------------------------------------------------- what a mean over samples hides


@pytest.mark.parametrize("ruin", ["random", "constant"])
def test_a_ruin_is_not_excused_by_another_ruin(ruin: str) -> None:
    world = World()
    world_of_ruins = getattr(world, ruin)(), getattr(world, ruin)()
    original = world.answers(memory=3.0)
    if ruin == "constant":  # two of them are the same network
        with pytest.raises(DataError, match="exactly the same"):
            Evidence(world_of_ruins[0], original, world_of_ruins[1])
    else:
        assert outcome(Evidence(world_of_ruins[0], original, world_of_ruins[1])) != "pass"


def test_the_class_of_the_forgotten_samples_may_not_pay_for_it() -> None:
    world = World(forget=300, held_out=8000, retained=4000)
    world.labels["forget"][:] = 7
    original = world.answers(memory=3.0)
    for part in ("forget", "held_out", "retained"):
        world.ease[part] = world.ease[part] - np.where(world.labels[part] == 7, 0.9, 0.0)
    audit = examine(Evidence(world.answers(memory=0.0), original))
    found = {check.name: check.outcome for check in audit.verdict.checks}
    assert found["Still works"] == "pass", "the average over all classes hides it"
    assert found["Their classes still work"] == "fail"
    assert audit.verdict.outcome == "fail"


def mixed(world: World, gains: np.ndarray) -> Evidence:
    """An unlearned model whose forget samples gained something each."""
    fair_answers = world.answers(memory=0.0)
    labels = world.labels["forget"]
    margins = world.ease["forget"] + gains + world.rng.normal(0, 0.5, (1, len(labels)))
    forget = Ensemble.of(with_margins(margins, labels, world.rng), labels)
    return Evidence(dataclasses.replace(fair_answers, forget=forget), world.answers(memory=3.0))


def test_half_too_little_and_half_too_much_does_not_pass() -> None:
    world = World(forget=500)
    assert outcome(mixed(world, np.where(np.arange(500) % 2 == 0, 3.0, -3.0))) != "pass"


def test_margins_squeezed_to_one_value_do_not_pass() -> None:
    world = World(forget=500)
    assert outcome(mixed(world, 1.5 - world.ease["forget"])) == "fail"


def test_a_third_that_was_not_forgotten_does_not_pass() -> None:
    world = World(forget=600, held_out=3000)
    assert outcome(mixed(world, np.where(np.arange(600) % 3 == 0, 4.0, 0.0))) != "pass"


def test_one_stranger_of_the_class_that_matters_is_not_enough() -> None:
    world = World(forget=300, held_out=1500)
    world.labels["forget"][:290] = 3
    world.labels["held_out"][world.labels["held_out"] == 3] = 4
    world.labels["held_out"][0] = 3
    assert outcome(fair(world)) != "pass"


def test_a_network_is_not_its_own_yardstick() -> None:
    world = World()
    one, two = world.answers(memory=0.0), world.answers(memory=3.0)
    with pytest.raises(DataError, match="given twice"):
        Evidence(one, two, one)
    with pytest.raises(DataError, match="given twice"):
        Evidence(one, two, two)


def test_what_is_right_passes_and_what_is_at_the_border_seldom_does() -> None:
    """Of worlds with a forgetful model; and of worlds whose true AUC is at the limit, where one in twenty may pass."""
    right = [outcome(fair(World(held_out=3000, seed=seed))) for seed in range(8)]
    assert right.count("pass") >= 6
    assert "fail" not in right
    border = []
    for seed in range(8):
        world = World(held_out=3000, seed=seed)
        border.append(outcome(Evidence(world.answers(memory=0.74), world.answers(memory=3.0))))  # AUC 0.60
    assert border.count("pass") <= 1


# ------------------------------------------------------------------------------------------- classes, poison, earlier


def class_world(recognised: bool, seed: int = 0) -> Evidence:
    world = World(forget=400, held_out=6000, seed=seed)
    world.labels["forget"][:] = 3
    gone = world.labels["held_out"] == 3
    original = world.answers(memory=3.0)
    if not recognised:
        world.ease["held_out"] = np.where(gone, world.ease["held_out"] - 12, world.ease["held_out"])
        world.ease["forget"] = world.ease["forget"] - 12
    return Evidence(world.answers(memory=0.0), original, task="classes")


def test_a_class_that_is_gone_passes() -> None:
    assert outcome(class_world(recognised=False)) == "pass"


def test_a_class_that_is_still_recognised_fails() -> None:
    audit = examine(class_world(recognised=True))
    assert audit.verdict.outcome == "fail"
    assert "still recognised" in " ".join(check.sentence for check in audit.verdict.checks)


def as_samples(evidence: Evidence, retained: np.ndarray) -> Evidence:
    """The same outputs under the task of samples, with some of the retained samples."""
    groups = {
        n: dataclasses.replace(a, retained=a.retained and a.retained.where(retained)) for n, a in evidence.groups()
    }
    return dataclasses.replace(evidence, task="samples", **groups)


def test_where_no_sample_of_the_forgotten_classes_was_retained_it_is_said_that_the_task_may_be_another() -> None:
    evidence = class_world(recognised=False)
    assert evidence.unlearned.retained is not None
    labels = evidence.unlearned.retained.labels
    without, fewer = as_samples(evidence, labels != 3), as_samples(evidence, (labels != 3) & (labels != 4))
    audit = examine(without)
    assert audit.verdict.outcome == "fail", "a class that is gone is damage, where samples were to be forgotten"
    assert audit.verdict.sentence.endswith("if these were to go altogether, the task is 'classes'.")
    for plain in (as_samples(evidence, labels >= 0), fewer, dataclasses.replace(without, task="classes")):
        assert "the task is" not in examine(plain).verdict.sentence


def test_a_pass_says_nothing_of_another_task() -> None:
    world = World(held_out=6000)
    world.labels["forget"][:] = 3
    world.labels["retained"][world.labels["retained"] == 3] = 4
    evidence = fair(world)
    assert evidence.may_be_classes
    verdict = examine(evidence).verdict
    assert verdict.outcome == "pass"
    assert "the task is" not in verdict.sentence


def test_poison_is_judged_by_its_labels() -> None:
    world = World()
    followed, cured = world.answers(memory=4.0), world.answers(memory=-8.0)
    assert outcome(Evidence(cured, followed, task="poison")) == "pass"
    assert outcome(Evidence(world.answers(memory=3.0), followed, task="poison")) == "fail"
    assert outcome(Evidence(followed, followed, task="poison")) == "fail"
    assert outcome(Evidence(cured, task="poison")) == "inconclusive"


def test_poison_that_was_never_followed_cannot_have_left() -> None:
    world = World()
    evidence = Evidence(world.answers(memory=-8.5), world.answers(memory=-8.0), task="poison")
    assert outcome(evidence) == "inconclusive"


def test_a_no_op_among_several_originals_is_noticed() -> None:
    original = World().answers(memory=3.0, models=3)
    one = {part: Ensemble(answer.logits[1:2], answer.labels) for part, answer in original.parts()}
    unlearned = Answers(one["forget"], one["held out"], one["retained"])
    found = {check.name: check.outcome for check in examine(Evidence(unlearned, original)).verdict.checks}
    assert found["Something changed"] == "fail"


def test_an_earlier_request_that_came_back_fails() -> None:
    world = World()
    evidence = fair(world)
    labels = world.rng.integers(0, CLASSES, 300)

    def earlier(memory: float) -> Ensemble:
        return Ensemble.of(with_margins(world.rng.normal(1.5 + memory, 2, (1, 300)), labels, world.rng), labels)

    good = dataclasses.replace(evidence, earlier={"first": Before(earlier(0.0), earlier(3.0))})
    bad = dataclasses.replace(evidence, earlier={"first": Before(earlier(3.0), earlier(3.0))})
    unknown = dataclasses.replace(evidence, earlier={"first": Before(earlier(0.7))})
    assert outcome(good) == "pass"
    assert outcome(bad) == "fail"
    assert outcome(unknown) == "inconclusive"


def test_an_earlier_request_needs_strangers() -> None:
    world = World()
    with pytest.raises(DataError, match="held-out"):
        Evidence(Answers(world.answers(memory=0.0).forget), earlier={"a": Before(world.answers(memory=0.0).forget)})


# ------------------------------------------------------------------------------------------------- what is printed


def test_an_audit_is_printed_as_its_verdict_and_its_checks() -> None:
    world = World()
    audit = examine(Evidence(world.answers(memory=0.0, skill=-2.0), world.answers(memory=3.0)), only=["margin"])
    first, *lines = audit.summary().splitlines()
    assert str(audit) == audit.summary()
    assert first == f"fail (T0): {audit.verdict.sentence}"
    assert lines[: len(audit.verdict.checks)] == [f"  {check.summary()}" for check in audit.verdict.checks]
    assert lines[len(audit.verdict.checks) :] == [f"  left out: {text}" for text in audit.left_out]


@pytest.mark.parametrize(
    "numbers, words",
    [
        ((None, None, None), ""),
        (
            (Interval(0.5274, 0.49, 0.5637), (0.4, 0.6), "auc"),
            " [measured AUC 0.527 (0.490 to 0.564); allowed 0.400 to 0.600]",
        ),
        (
            (Interval(-0.04, -1.73, 0.9), (None, 2.0), "points"),
            " [measured 0.0 (-1.7 to 0.9) points; allowed at most 2.0 points]",
        ),
        ((Interval(1.3, 0.0, 2.7), (5.0, None), "percent"), " [measured 1.3 (0.0 to 2.7) %; allowed at least 5.0 %]"),
        ((None, (None, 0.14), "share"), " [allowed at most 0.140]"),
    ],
)
def test_a_check_is_one_line_with_its_numbers(numbers: Any, words: str) -> None:
    assert Check("Still works", "pass", "It does.", *numbers).summary() == f"pass: Still works. It does.{words}"


def test_what_an_audit_holds_is_short_to_look_at() -> None:
    audit = examine(fair(World()))
    assert repr(audit) == f"Audit(pass: {audit.verdict.sentence})"
    assert repr(audit.evidence.unlearned.forget) == "Ensemble(models=1, samples=300, classes=10)"
    assert repr(audit.evidence.unlearned.forget[0]) == "Outputs(samples=300, classes=10)"
    assert repr(audit.attacks[0].unlearned) == "Separation(AUC 0.527 (0.491 to 0.564), 300 against 1500 samples)"
    for part in (audit.evidence, audit.attacks):
        assert "array" not in repr(part)
        assert len(repr(part)) < 2000


# --------------------------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    "low, high, expected",
    [
        (-0.5, 0.5, "pass"),
        (0.9, 1.1, "inconclusive"),
        (-3.0, 3.0, "inconclusive"),
        (1.1, 2.0, "fail"),
        (-2.0, -1.1, "fail"),
    ],
)
def test_an_interval_passes_inside_fails_outside_and_else_says_nothing(low: float, high: float, expected: str) -> None:
    assert place(lambda confidence: Interval((low + high) / 2, low, high), (-1.0, 1.0), samples=100) == expected


def held_out_check(skill: float, samples: int = 1000, seed: int = 1, models: int = 1) -> Check:
    world = World(held_out=samples, seed=seed)
    original = world.answers(memory=3.0)
    return check_held_out(Evidence(world.answers(memory=0.0, skill=skill, models=models), original), Thresholds())


def test_at_the_border_it_is_said_what_was_measured_and_what_would_tell() -> None:
    below, above = held_out_check(skill=-0.2), held_out_check(skill=-0.3)
    assert below.outcome == above.outcome == "inconclusive"
    for check in (below, above):
        assert check.measured is not None
        value, low, high = check.measured.value, check.measured.low, check.measured.high
        assert f"is {value:.1f} points ({low:.1f} to {high:.1f}) above the original network's" in check.sentence
        assert "it cannot be told whether the network was damaged" in check.sentence
        assert "Too little" not in check.sentence
    assert ", 2 are allowed: " in below.sentence
    assert ", more than the 2 allowed, but that may be chance: " in above.sentence
    assert "samples in place of 1,000 would tell" in below.sentence
    several = held_out_check(skill=-0.2, models=2)
    assert several.outcome == "inconclusive"
    assert "in place of" not in several.sentence, "how far models differ is not settled by samples"


def test_too_few_samples_are_not_called_a_border() -> None:
    few = held_out_check(skill=0.0, samples=15)
    assert few.sentence == "15 samples are too few to tell whether the network was damaged."


@pytest.mark.parametrize("value, most, expected", [(1.0, 2.0, 400), (3.0, 2.0, 570), (1.9, 2.0, None), (2, 2, None)])
def test_how_many_samples_would_tell(value: float, most: float, expected: int | None) -> None:
    """One point away, an interval of 1.645 points to pass, or 1.96 to fail, has to shrink to one point."""

    def at(confidence: float) -> Interval:
        reach = {0.90: 1.645, 0.95: 1.96}[confidence]
        return Interval(value, value - reach, value + reach)

    assert needed(at, most, samples=148) == expected


def test_few_samples_never_pass() -> None:
    assert place(lambda confidence: Interval(0, 0, 0), (-1.0, 1.0), samples=19) == "inconclusive"


def test_several_attacks_share_the_chance_of_a_false_alarm() -> None:
    asked: list[float] = []

    def at(confidence: float) -> Interval:
        asked.append(confidence)
        return Interval(0, -1, 1)

    place(at, (-2, 2), samples=100, tries=5)
    assert asked[0] == pytest.approx(0.99)


@pytest.mark.parametrize("change", [{"auc": 0.0}, {"auc": 0.6}, {"held_out_rise": -1}, {"followed": "many"}])
def test_limits_that_make_no_sense_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        Thresholds(**change)  # type: ignore[arg-type]


def test_limits_decide() -> None:
    world = World(forget=2000, held_out=5000)
    evidence = Evidence(world.answers(memory=0.5), world.answers(memory=3.0))
    assert outcome(evidence, limits=Thresholds(auc=0.15)) == "pass"
    assert outcome(evidence, limits=Thresholds(auc=0.01)) == "fail"


def test_only_some_attacks() -> None:
    audit = examine(fair(World()), only=["margin"])
    assert [found.attack.name for found in audit.attacks] == ["margin"]
    assert audit.distances == []
    assert audit.verdict.outcome == "inconclusive", "an attacker of one's own choice proves nothing"
    assert "entropy" in audit.left_out[0]


def test_an_unknown_attack_is_refused() -> None:
    with pytest.raises(ConfigError, match="Unknown attack guess"):
        examine(fair(World()), only=["guess"])


@pytest.mark.parametrize("name", ["rmia", "xgboost", "u-lira", "klom"])
def test_an_attack_without_its_evidence_is_refused(name: str) -> None:
    assert name in ATTACKS
    with pytest.raises(ConfigError, match=f"{name} needs"):
        examine(fair(World()), only=[name])


def test_one_unlearned_model_among_many_others_runs_what_it_can() -> None:
    world = World(forget=60, held_out=200, retained=20)
    groups = world.answers(memory=0.0), world.answers(memory=3.0, models=6), world.answers(memory=0.0, models=6)
    audit = examine(Evidence(*groups))
    assert "u-lira" not in {found.attack.name for found in audit.attacks}
    with pytest.raises(ConfigError, match=r"u-lira needs at least 3 unlearned models \(there: 1\)"):
        examine(Evidence(*groups), only=["u-lira"])


def test_unlearned_models_of_one_original_are_not_judged_by_their_origin() -> None:
    world = World(forget=60, held_out=200, retained=20)
    groups = [world.answers(memory=memory, models=9) for memory in (0.0, 3.0, 0.0)]
    found = {a.attack.name: a.judged for a in examine(Evidence(*groups, same_original=True)).attacks}
    assert not found["u-lira"]
    assert found["xgboost"]


def test_the_same_seed_gives_the_same_verdict() -> None:
    evidence = fair(World())
    one, two = (examine(evidence, seed=3).verdict.document() for _ in range(2))
    assert one == two
