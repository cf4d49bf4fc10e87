"""The JSON of an audit: valid by its schema, strict, and written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from worlds import World, fair

import unweave.report
from unweave.audit.document import Story, document, save
from unweave.audit.evidence import Before, Evidence, Yardstick
from unweave.audit.examine import examine
from unweave.audit.files import arrays_of, load_evidence, save_evidence
from unweave.errors import DataError, StoreError

SCHEMA = json.loads((Path(unweave.report.__file__).parent / "schema.json").read_text())


def valid(evidence: Evidence, story: Story | None = None) -> dict[str, object]:
    found = document(examine(evidence), story)
    jsonschema.validate(json.loads(json.dumps(found, allow_nan=False)), SCHEMA)
    return found


def test_of_one_model() -> None:
    found = valid(fair(World()))
    assert found["tier"]["name"] == "T0"  # type: ignore[index]
    assert "destinations" not in found


def test_of_a_class_without_its_samples_among_the_held_out_error() -> None:
    world = World()
    world.labels["forget"][:] = 3
    found = valid(Evidence(world.answers(memory=0.0), world.answers(memory=3.0), task="classes"))
    held_out = world.labels["held_out"]
    assert found["models"][0]["errors"]["held out"]["samples"] == int((held_out != 3).sum())  # type: ignore[index]
    assert sum(found["destinations"][0]["shares"].values()) == pytest.approx(1)  # type: ignore[index]


def test_of_many_models_with_earlier_requests_and_all_that_is_known() -> None:
    world = World(forget=60, held_out=300, retained=20)
    groups = [world.answers(memory=memory, models=8) for memory in (0.0, 3.0, 0.0)]
    before = Before(groups[0].forget, groups[1].forget)
    evidence = Evidence(*groups, class_names=list("abcdefghij"), earlier={"last week": before})
    story = Story(
        title="60 people",
        method="by hand",
        epochs=[{"epoch": 0, "forget_error": 1.0, "held_out_error": None, "auc": None}],
        layers=[{"name": "fc", "kept": 3, "dimension": 5}],
    )
    found = valid(evidence, story)
    assert found["tier"]["name"] == "T2"  # type: ignore[index]
    assert {attack["name"] for attack in found["attacks"]} >= {"xgboost", "u-lira", "margin"}  # type: ignore[attr-defined]
    assert found["earlier"][0]["title"] == "last week"  # type: ignore[index]
    assert found["request"]["title"] == "60 people"  # type: ignore[index]


def test_saving_into_nowhere_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        save(document(examine(fair(World()))), tmp_path / "nowhere" / "audit.json")
    assert list(tmp_path.iterdir()) == []


def test_evidence_survives_a_file(tmp_path: Path) -> None:
    evidence = Evidence(*(World().answers(memory=memory) for memory in (0.0, 3.0)), class_names=list("abcdefghij"))
    save_evidence(tmp_path / "e.npz", **dict(arrays_of(evidence)))
    back = load_evidence(tmp_path / "e.npz")
    assert list(back.class_names) == list("abcdefghij")
    for (name, one), (same, two) in zip(evidence.groups(), back.groups(), strict=True):
        assert name == same
        for (part, before), (_, after) in zip(one.parts(), two.parts(), strict=True):
            np.testing.assert_allclose(after.logits, before.logits, rtol=1e-6, err_msg=part)
            np.testing.assert_array_equal(after.labels, before.labels)


def test_references_and_earlier_requests_survive_a_file_and_are_used(tmp_path: Path) -> None:
    world = World(forget=100, held_out=600)
    world.labels["held_out"] = np.arange(600) % 10  # in turns, as data sets often are
    unlearned, original = world.answers(memory=0.0), world.answers(memory=3.0)
    others = world.answers(memory=0.0, models=2)
    assert others.held_out is not None
    yardstick = Yardstick(others.forget, np.ones((2, 100), dtype=bool), others.held_out)
    before = {"may": Before(unlearned.forget, original.forget)}
    evidence = Evidence(unlearned, original, references=yardstick, earlier=before)
    save_evidence(tmp_path / "e.npz", **dict(arrays_of(evidence)))
    found = valid(load_evidence(tmp_path / "e.npz"))
    assert found["tier"]["name"] == "T1"  # type: ignore[index]
    assert "rmia" in {attack["name"] for attack in found["attacks"]}  # type: ignore[attr-defined]
    assert found["earlier"][0]["title"] == "may"  # type: ignore[index]


def test_an_unknown_array_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Unknown array guess"):
        save_evidence(tmp_path / "e.npz", guess=np.zeros(3))


def test_groups_about_other_samples_are_refused() -> None:
    with pytest.raises(DataError, match="labels of original on forget and unlearned on forget differ"):
        Evidence(World(seed=0).answers(memory=0.0), World(seed=1).answers(memory=3.0))
