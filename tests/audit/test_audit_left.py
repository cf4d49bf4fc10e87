"""A class that lost most of its samples: what retraining would have cost it too is no damage."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from worlds import World

from unweave.audit import Answers, Ensemble, Evidence
from unweave.audit.behaviour import check_held_out, check_own_classes, reweighted
from unweave.audit.checks import Check
from unweave.audit.files import load_evidence, save_evidence
from unweave.audit.limits import Thresholds
from unweave.errors import DataError

LEFT = {0: 0.25}


def posteriors(shares: np.ndarray, temperature: float = 1.0) -> Ensemble:
    """What somebody says who knows the densities, normal around 0, 1, 2, and how often each class comes."""
    points = np.linspace(-3, 5, 600)
    logits = np.log(shares) - 0.5 * (points[:, None] - np.arange(3)) ** 2
    rng = np.random.default_rng(0)
    labels = [rng.choice(3, p=np.exp(z) / np.exp(z).sum()) for z in logits]
    return Ensemble.of(temperature * logits[None], np.array(labels))


def test_a_network_reweighted_is_one_that_saw_fewer_samples() -> None:
    before, after = (posteriors(np.array(shares)) for shares in ([0.4, 0.4, 0.2], [0.1, 0.4, 0.2]))
    found = reweighted(before, LEFT)
    moved = found.logits - before.logits
    assert moved[..., 1:] == pytest.approx(0)
    temperature = moved[0, 0, 0] / math.log(0.25)
    assert temperature == pytest.approx(1, abs=0.15), "its own outputs are honest"
    exact = Ensemble(after.logits, before.labels)
    agree = np.mean(found.logits.argmax(2) == exact.logits.argmax(2))
    assert agree > 0.97
    assert np.mean(before.logits.argmax(2) == exact.logits.argmax(2)) < 0.9


def the_class_suffers(by: float) -> tuple[Answers, Answers]:
    """Original, and unlearned: forgotten samples of class 0, whose new samples lost so much of their margins."""
    world = World(forget=400, held_out=9000)
    world.labels["forget"][:] = 0
    original, unlearned = world.answers(memory=3.0), world.answers(memory=0.0)
    changed = []
    for part in (unlearned.forget, unlearned.held_out):
        assert part is not None
        logits = part.logits.copy()
        logits[:, part.labels == 0, 0] -= by
        changed.append(Ensemble(logits, part.labels))
    return original, replace(unlearned, forget=changed[0], held_out=changed[1])


def own_classes(evidence: Evidence) -> Check:
    check = check_own_classes(evidence, Thresholds())
    assert check is not None
    return check


def test_what_fewer_samples_cost_a_class_is_no_damage() -> None:
    original, unlearned = the_class_suffers(by=0.7)
    assert own_classes(Evidence(unlearned, original)).outcome == "fail"
    assert own_classes(Evidence(unlearned, original, left={0: 0.9})).outcome == "fail", "a tenth is no excuse for it"
    check = own_classes(Evidence(unlearned, original, left=LEFT))
    assert check.outcome == "pass"
    assert "reweighted original" in check.sentence


def test_more_than_that_is_damage_and_is_measured_by_what_is_left() -> None:
    original, unlearned = the_class_suffers(by=2.0)
    found, plain = (own_classes(Evidence(unlearned, original, left=left)) for left in (LEFT, {}))
    assert found.outcome == plain.outcome == "fail"
    assert found.sentence.endswith("than with the reweighted original network.")
    assert plain.sentence.endswith("than with the original network.")
    assert found.measured is not None
    assert plain.measured is not None
    assert found.measured.value < plain.measured.value - 5


def test_other_tasks_are_not_excused() -> None:
    world = World()
    evidence = Evidence(world.answers(memory=0.0, skill=-3.0), world.answers(memory=3.0), left=LEFT, task="poison")
    still_works = check_held_out(evidence, Thresholds())
    assert still_works.outcome == "fail"
    assert "reweighted" not in still_works.sentence


@pytest.mark.parametrize("left", [{0: 1.5}, {0: -0.1}, {10: 0.5}, {-1: 0.5}, {0: float("nan")}])
def test_shares_that_cannot_be_are_refused(left: dict[int, float]) -> None:
    world = World()
    with pytest.raises(DataError, match="left"):
        Evidence(world.answers(memory=0.0), world.answers(memory=3.0), left=left)


def test_shares_come_with_outputs_on_disk(tmp_path: Path) -> None:
    original, unlearned = the_class_suffers(by=0.7)
    arrays = {"forget_labels": unlearned.forget.labels, "held_out_labels": unlearned.held_out.labels}  # type: ignore[union-attr]
    for name, group in (("unlearned", unlearned), ("original", original)):
        arrays |= {f"{name}_forget": group.forget.logits, f"{name}_held_out": group.held_out.logits}  # type: ignore[union-attr]
    save_evidence(tmp_path / "outputs.npz", **arrays, left=np.array([0.25] + [1.0] * 9))
    assert own_classes(load_evidence(tmp_path / "outputs.npz")).outcome == "pass"
    save_evidence(tmp_path / "wrong.npz", **arrays, left=np.ones(11))
    with pytest.raises(DataError, match="left"):
        load_evidence(tmp_path / "wrong.npz")
