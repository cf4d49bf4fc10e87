"""Attackers with many networks, on made-up outputs whose truth is known."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.documents import many
from experiments.documents.many import Attackers
from experiments.documents.margins import beside_retraining
from experiments.documents.summary import attacks, entropies, method_rows
from experiments.running.jobs import Job, run_jobs
from experiments.running.training_sets import FULL, RETRAINED_SEEDS, retained
from experiments.running.work import Work
from experiments.settings import SMOKE, samples_of_class_0
from experiments.ways.requests import attack_networks
from unweave.audit import Ensemble
from unweave.audit.shadow_classifier import ShadowClassifier, Split

CASE = samples_of_class_0(SMOKE)
SAMPLES, CLASSES = 60, 10


def outputs(rng: np.random.Generator, lift: float) -> dict[str, np.ndarray]:
    """A network that is surer of the forget set's label by ``lift``."""
    arrays = {}
    for part, more in (("forget", lift), ("held_out", 0.0)):
        logits = rng.normal(size=(SAMPLES, CLASSES)).astype(np.float32)
        logits[:, 0] += 2 + more
        arrays |= {part: logits, f"{part}_labels": np.zeros(SAMPLES, dtype=np.int16)}
    return arrays


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Ten networks a kind: "good" answers like retrained ones, "bad" like the originals."""
    work = Work(tmp_path_factory.mktemp("work"), SMOKE, torch.device("cpu"))
    rng = np.random.default_rng(0)
    for method, lift in {"original": 2.0, "retrained": 0.0, "good": 0.0, "bad": 2.0}.items():
        row = {"errors": {"forgotten": lift}, "seconds": 1.0}
        jobs = [Job(str(s), lambda row=row, lift=lift: (row, outputs(rng, lift))) for s in range(10)]
        run_jobs(jobs, work.rows / CASE.setting.name / CASE.name / method, say=lambda _: None)
    return work


@pytest.mark.parametrize(("attack", "every"), [("xgboost", False), ("xgboost", True), ("u-lira", True), ("rmia", True)])
def test_an_attack_finds_what_is_left_and_nothing_else(work: Work, attack: str, every: bool) -> None:
    found = attacks(work, CASE, ["original", "retrained", "good", "bad"], (attack,), every=every)["methods"]
    assert found["bad"][attack]["auc"]["value"] > 0.75
    assert found["original"][attack]["auc"]["value"] > 0.75
    for method in ("good", "retrained") if (attack, every) != ("xgboost", True) else ("good",):
        assert 0.4 < found[method][attack]["auc"]["value"] < 0.6
    if (attack, every) != ("xgboost", True):  # classifiers of several turns have no scale of scores in common
        roc = found["bad"][attack]["roc"]
        assert len(roc["fpr"]) == len(roc["tpr"]) <= 60
    else:
        assert found["bad"][attack]["rests on"] == {"full": 10, "retrained": 10, "on trial": 10}


def test_a_classifier_in_turns_has_met_none_of_the_networks_it_is_asked_about(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to learn from, nor to choose settings by; an unlearned network counts as its original."""
    attackers = Attackers(work, CASE, ["good", "bad"], every=True)
    asked = []

    class Watched(ShadowClassifier):
        """Remembers what it has met, and asks of everything it is shown which network that is."""

        def fit(self, full: Ensemble, retrained: Ensemble, **more: object) -> ShadowClassifier:
            super().fit(full, retrained)
            self.met = [
                group.logits[: split.test.start]
                for group, split in zip((full, retrained), self.splits.values(), strict=True)
            ]
            return self

        def score(self, ensemble: Ensemble) -> np.ndarray:
            for logits in ensemble.logits:
                kind, seed = next(
                    (kind, seed)
                    for kind in ("bad", "retrained")
                    for seed in range(10)
                    if np.array_equal(attackers.outputs(kind, [seed]).logits[0], logits)
                )
                original = attackers.outputs("original" if kind == "bad" else kind, [seed]).logits[0]
                assert not any(np.array_equal(original, one) for group in self.met for one in group)
                asked.append((kind, seed))
            return super().score(ensemble)

    monkeypatch.setattr(many, "ShadowClassifier", Watched)
    found = attackers.about("bad", only=("xgboost",))["xgboost"]
    assert set(asked) == {(kind, seed) for kind in ("bad", "retrained") for seed in range(10)}
    assert found["turns"] == 16, "four blocks of each kind"


def test_the_hardest_quarter_is_asked_about_on_its_own(work: Work, tmp_path: Path) -> None:
    """Networks that remember the hard samples alone stand out there, and less where all are looked at."""
    folder = tmp_path / "work"
    shutil.copytree(work.folder, folder)
    hard = np.arange(SAMPLES) % 4 == 1
    own, rng = Work(folder, SMOKE, torch.device("cpu")), np.random.default_rng(1)

    def harder(lift: float) -> tuple[dict[str, object], dict[str, np.ndarray]]:
        arrays = outputs(rng, 0.0)
        arrays["forget"][hard, 0] += lift - 6
        return {"errors": {"forgotten": 0.0}, "seconds": 1.0}, arrays

    for method, lift in (("retrained", 0.0), ("bad", 3.0), ("good", 0.0)):
        place = own.rows / CASE.setting.name / CASE.name / method
        shutil.rmtree(place)
        run_jobs([Job(str(s), lambda lift=lift: harder(lift)) for s in range(10)], place, say=lambda _: None)
    assert (Attackers(own, CASE).hardest == hard.nonzero()[0]).all()
    found = attacks(own, CASE, ["good", "bad", "retrained"], only=("u-lira",), every=True)["methods"]
    bad, good, floor = (found[method]["u-lira"] for method in ("bad", "good", "retrained"))
    assert bad["hardest quarter"]["value"] > bad["auc"]["value"] + 0.15
    assert 0.35 < good["hardest quarter"]["value"] < 0.65
    assert 0.35 < floor["hardest quarter"]["value"] < 0.65


def test_the_distance_of_a_good_method_is_at_its_floor(work: Work) -> None:
    found = attacks(work, CASE, ["good", "bad"], only=("klom",), every=True)["methods"]
    floor = found["good"]["klom"]["retrained"]["value"]
    # Five networks in twenty bins: even the floor is high, and the ceiling is 11.5.
    assert found["good"]["klom"]["unlearned"]["value"] == pytest.approx(floor, abs=0.6)
    assert found["bad"]["klom"]["unlearned"]["value"] > floor + 0.9


def test_the_classifier_learns_from_no_network_that_a_method_was_applied_to(work: Work) -> None:
    attackers = Attackers(work, CASE)
    assert attackers.full_seeds[-SMOKE.seeds :] == list(range(SMOKE.seeds))
    assert set(range(SMOKE.seeds)) <= set(attackers.tested())


def test_with_more_full_networks_than_retrained_all_the_tables_seeds_are_on_trial(work: Work, tmp_path: Path) -> None:
    """Five unlearned networks, and a classifier that has met the original of none of them in any role."""
    shutil.copytree(work.rows, tmp_path / "rows")
    for seed in (8, 9):
        (tmp_path / "rows" / CASE.setting.name / CASE.name / "retrained" / f"{seed}.json").unlink()
    wider = Work(tmp_path, replace(SMOKE, seeds=4), torch.device("cpu"))
    attackers = Attackers(wider, CASE, ["good", "bad"])
    split = attackers.classifier().splits["full"]
    assert attackers.full_seeds == [*range(4, 10), 0, 1, 2, 3]
    assert (split.train, split.validation, split.test) == (slice(3), slice(3, 6), slice(6, 10))
    found = attackers.about("bad", only=("xgboost",))["xgboost"]
    assert found["rests on"] == {"full": 10, "retrained": 8, "on trial": 4}
    assert found["models"] == [4, 2]
    assert attackers.about("original", only=("xgboost",))["xgboost"]["rests on"]["on trial"] == 4
    few = Attackers(Work(tmp_path, replace(SMOKE, seeds=2), torch.device("cpu")), CASE, ["good", "bad"])
    assert few.classifier().splits["full"] == Split.of(10, "full"), "where as many are tested as methods have, or more"
    for seed in range(3, 8):
        (tmp_path / "rows" / CASE.setting.name / CASE.name / "retrained" / f"{seed}.json").unlink()
    for seed in range(7, 10):
        (tmp_path / "rows" / CASE.setting.name / CASE.name / "original" / f"{seed}.json").unlink()
    cut = Attackers(Work(tmp_path, replace(SMOKE, seeds=5), torch.device("cpu")), CASE, ["good", "bad"])
    assert (len(cut.full_seeds), len(cut.retrained_seeds)) == (7, 3)
    assert cut.classifier().splits["full"].tested == 4, "one is left to learn from, and two to choose settings by"


def test_the_network_that_most_methods_were_applied_to_is_on_trial(work: Work, tmp_path: Path) -> None:
    shutil.copytree(work.rows, tmp_path / "rows")
    for seed in (0, 2):
        (tmp_path / "rows" / CASE.setting.name / CASE.name / "good" / f"{seed}.json").unlink()
    wider = Work(tmp_path, replace(SMOKE, seeds=3), torch.device("cpu"))
    assert Attackers(wider, CASE, ["good", "bad"]).full_seeds == [*range(3, 10), 0, 2, 1]
    assert Attackers(wider, CASE, ["bad"]).full_seeds == [*range(3, 10), 0, 1, 2]


def test_entropies_of_a_good_method_are_those_of_retraining(work: Work) -> None:
    distance = entropies(work, CASE, ["retrained", "good", "bad"])["distance to retrained"]
    assert distance["retrained"] == 0
    assert distance["good"] < 0.25 < distance["bad"]


def test_rows_are_about_the_tables_seeds_or_all(work: Work) -> None:
    rows = method_rows(work, CASE, ["good", "not there"])
    assert list(rows) == ["good"]
    assert rows["good"]["seeds"] == list(range(SMOKE.seeds))
    assert method_rows(work, CASE, ["good"], every=True)["good"]["seeds"] == list(range(10))


def test_folders_without_networks_say_nothing(tmp_path: Path) -> None:
    empty = Work(tmp_path, SMOKE, torch.device("cpu"))
    assert attacks(empty, CASE, ["original"]) == {}
    assert entropies(empty, CASE, ["original", "retrained"]) == {}


def test_attacks_are_about_as_many_networks_of_every_method_unless_all_are_asked_for(
    work: Work, tmp_path: Path
) -> None:
    shutil.copytree(work.rows, tmp_path / "rows")
    (tmp_path / "rows" / CASE.setting.name / CASE.name / "bad" / "9.json").unlink()
    wider = Work(tmp_path, replace(SMOKE, seeds=4), torch.device("cpu"))
    methods = ["good", "bad", "retrained"]
    for every, behind in ((False, [4, 4]), (True, [10, 9])):
        found = attacks(wider, CASE, methods, only=("u-lira", "rmia", "klom"), every=every)["methods"]
        assert [found[m]["u-lira"]["rests on"]["on trial"] for m in methods[:2]] == behind
        assert [found[m]["rmia"]["rests on"]["on trial"] for m in methods[:2]] == behind
        assert found["retrained"]["u-lira"]["rests on"] == {"retrained": 5, "on trial": 5}


def test_margins_of_all_networks_are_told_beside_retraining(work: Work) -> None:
    attackers = Attackers(work, CASE, ["original", "retrained", "good", "bad"], every=True)
    found = beside_retraining(attackers)
    assert {method: one["networks"] for method, one in found.items()} == dict.fromkeys(attackers.methods, 10)
    retrained = np.stack([margin(attackers.read("retrained", seed)["forget"]) for seed in range(10)]).mean(0)
    bad = np.stack([margin(attackers.read("bad", seed)["forget"]) for seed in range(10)]).mean(0)
    assert found["bad"]["higher"] == pytest.approx((bad - retrained).mean(), abs=1e-4)
    hardest = np.argsort(retrained)[: SAMPLES // 4]
    assert found["bad"]["higher, hardest quarter"] == pytest.approx((bad - retrained)[hardest].mean(), abs=1e-4)
    assert abs(found["good"]["higher"]) < 0.3 < 1.5 < found["bad"]["higher"]
    assert found["retrained"]["higher"] == 0.0
    assert found["retrained"]["spread"] == 1.0


def margin(logits: np.ndarray) -> np.ndarray:
    """Of label 0."""
    return logits[:, 0] - np.log(np.exp(logits[:, 1:].astype(np.float64)).sum(1))


def test_networks_with_an_outcome_are_not_announced_for_training(work: Work, tmp_path: Path) -> None:
    """Their weights may be gone; they would be trained beside one that is missing, for nothing."""
    shutil.copytree(work.rows, tmp_path / "rows")
    kept = tmp_path / "rows" / CASE.setting.name / CASE.name
    for kind, seed in (("original", 4), ("retrained", 5)):
        (kept / kind / f"{seed}.json").unlink()
    here = Work(tmp_path, replace(SMOKE, seeds=2, fewer_models=6), torch.device("cpu"))
    jobs = attack_networks(here, CASE)
    announced = {training: seeds for (_, training), seeds in here._expected.items()}
    assert announced == {FULL.name: [4], retained(CASE).name: [RETRAINED_SEEDS + 5]}
    assert sum(not here.has(job.name) for job in jobs) == 2
