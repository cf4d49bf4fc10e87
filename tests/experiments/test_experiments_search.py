"""The search for a knob's strength: on responses whose answer is known, with ruins, noise, bounds and interruptions."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.running.turns import Options, together
from experiments.running.turns import run as run_all
from experiments.running.work import Work
from experiments.search import TOLERANCE, Knob, Tried, lowest, towards, verdict_of
from experiments.settings import PAPER as FULL_SIZE
from experiments.settings import Case, Scale, samples_of_class_0
from experiments.table1 import UNTUNED, baselines
from experiments.trials import ALSO, KNOBS, SCHEME, baseline_of
from experiments.ways import tuning
from experiments.ways.methods import title_of
from experiments.ways.outcome import Outcome, all_finite
from experiments.ways.tuning import best_of, chosen_settings, rows_of, trials_of, tuning_jobs
from unweave.errors import ConfigError, MismatchError

TARGET = 8.2
TRIALS = 6
WIDE = Knob("lr", 1e-3, 1e-12, 1e6)
Response = Callable[[float], tuple[float | None, float]]
"""From a value to the forget error (None: ruined) and the rise of the validation error."""


def searched(knob: Knob, response: Response, target: float = TARGET, most: int = TRIALS) -> tuple[list[Tried], str]:
    """Trials until there are enough of them or the search ends."""
    tried = list[Tried]()
    while len(tried) < most:
        following = towards(knob, tried, target)
        if following.value is None:
            return tried, following.reason
        error, rise = response(following.value)
        verdict = verdict_of(error or 0.0, rise, target, sound=error is not None)
        tried.append(Tried(following.value, verdict, error))
    return tried, "no more trials"


def nearest(tried: list[Tried], target: float = TARGET) -> float:
    return min(abs(one.error - target) for one in tried if one.error is not None)


def logistic(right: float, steepness: float, down: bool = False) -> Response:
    """TARGET at ``right``; 0.2 % where nothing is forgotten."""
    at_target = math.log(TARGET / (100 - TARGET))

    def response(value: float) -> tuple[float | None, float]:
        u = math.log(value / right) * (-1 if down else 1)
        return max(0.2, 100 / (1 + math.exp(-at_target - steepness * u))), 0.0

    return response


@pytest.mark.parametrize("off", [1 / 100, 1 / 30, 1 / 3, 1.0, 5.0, 40.0, 100.0])
@pytest.mark.parametrize("steepness", [0.7, 1.0, 2.0, 4.0])
def test_a_start_that_is_off_by_a_hundred_finds_the_target_in_six_trials(off: float, steepness: float) -> None:
    tried, _ = searched(WIDE, logistic(WIDE.start * off, steepness))
    assert nearest(tried) <= 1.0, [(one.value, one.error) for one in tried]
    assert len(tried) <= TRIALS


def test_the_target_is_found_where_less_forgets_more_and_where_the_field_is_one_less() -> None:
    down = Knob("alpha", 10.0, 1e-3, 1e6, less_forgets_more=True)
    tried, _ = searched(down, logistic(700.0, 1.0, down=True))
    assert nearest(tried) <= 1.0
    assert tried[1].value == 60.0, "85 % forgotten at first: a larger alpha is weaker"
    plus = Knob("a", 1e-4, 1e-7, 0.9, from_one=True, along={"end": 0.5}, fixed={"norm": "frozen"})
    assert plus.settings(1e-4) == {"norm": "frozen", "a": 0.9999, "end": 5e-5}


def test_the_first_steps_are_a_factor_then_its_square() -> None:
    nothing: Response = lambda value: (0.2, 0.0)  # noqa: E731
    tried, why = searched(WIDE, nothing, most=4)
    assert [one.value / WIDE.start for one in tried] == pytest.approx([1, 6, 216, 7776], rel=0.01)
    assert why == "no more trials"


def test_a_crossing_by_hand() -> None:
    # Log-odds of 2 %, 50 % and 8.2 %: −3.892, 0, −2.415, so 0.379 of the way from 1 to 4 in the logarithm.
    tried = [Tried(1.0, "more", 2.0), Tried(4.0, "less", 50.0)]
    following = towards(WIDE, tried, TARGET)
    assert following.value == pytest.approx(4**0.3795, rel=0.005)
    assert (following.weak, following.strong) == (1.0, 4.0)
    # At 12 % the log-odds are −1.992: the upper end is 0.423 off, the lower one, left where it was, counts 1.476 / 2.
    again = towards(WIDE, [*tried, Tried(1.7, "less", 12.0)], TARGET)
    assert again.value == pytest.approx(1.7 ** (0.738 / (0.738 + 0.423)), rel=0.005)


def test_a_ruin_asks_for_less_and_tells_no_place() -> None:
    def response(value: float) -> tuple[float | None, float]:
        return (None, 0.0) if value > 0.05 else (logistic(0.03, 1.5)(value)[0], 0.0)

    tried, _ = searched(WIDE, response)
    assert [one.error is None for one in tried].count(True) >= 1
    assert nearest(tried) <= 1.0
    following = towards(WIDE, [Tried(1.0, "more", 3.0), Tried(4.0, "less", None)], TARGET)
    assert following.value == pytest.approx(2.0)
    from_ruin = searched(Knob("lr", 1.0, 1e-6, 10.0), response)[0]
    assert nearest(from_ruin) <= 1.0


@pytest.mark.parametrize("seed", range(20))
def test_noise_and_dips_mislead_by_little_and_every_trial_lies_between_the_ends(seed: int) -> None:
    draw = random.Random(seed)
    clean = logistic(WIDE.start * 20, 1.0)

    def response(value: float) -> tuple[float | None, float]:
        error = clean(value)[0]
        assert error is not None
        return min(100.0, max(0.0, error + draw.gauss(0, 0.6) - 15 * (error > 60))), abs(draw.gauss(0, 0.2))

    tried = list[Tried]()
    for _ in range(TRIALS):
        following = towards(WIDE, tried, TARGET)
        if following.value is None:
            break
        if following.weak is not None and following.strong is not None:
            assert following.weak < following.value < following.strong
        error, rise = response(following.value)
        assert error is not None
        tried.append(Tried(following.value, verdict_of(error, rise, TARGET, sound=True), error))
    assert len({one.value for one in tried}) == len(tried), "no trial twice"
    assert nearest(tried) <= 3.0


def test_a_bound_is_tried_once_and_ends_the_search() -> None:
    knob = Knob("lr", 0.01, 1e-4, 0.3)
    tried, why = searched(knob, lambda value: (0.4, 0.0))
    assert [one.value for one in tried] == [0.01, 0.06, 0.3]
    assert why == "bound"
    tried, why = searched(knob, lambda value: (90.0, 30.0))
    assert [one.value for one in tried] == [0.01, 0.00167, 0.0001]
    assert why == "bound"


def test_a_step_in_the_response_is_closed_in_on_and_left() -> None:
    tried, why = searched(WIDE, lambda value: (0.2 if value < 0.002 else 100.0, 0.0), most=20)
    assert why == "narrow"
    assert tried[-1].value == pytest.approx(0.002, rel=0.06)


def test_whole_classes_take_the_weakest_setting_that_forgets_them() -> None:
    def response(value: float) -> tuple[float | None, float]:
        return min(100.0, 100 * value / 0.05), max(0.0, 20 * math.log10(value / 0.06))

    tried, _ = searched(WIDE, response, target=100.0)
    costs = [100 - (one.error or 0) + response(one.value)[1] for one in tried]
    assert min(costs) <= 5.0, "0.05 forgets all of them, 0.06 at no cost; the first that did cost 0.6 points"
    assert verdict_of(100.0, 0.4, 100.0, sound=True) == "settled"
    assert verdict_of(100.0, 0.6, 100.0, sound=True) == "less"


def test_what_a_trial_asks_for() -> None:
    assert verdict_of(TARGET - TOLERANCE - 0.1, 9.0, TARGET, sound=True) == "more"
    assert verdict_of(TARGET + TOLERANCE + 0.1, 0.0, TARGET, sound=True) == "less"
    assert verdict_of(TARGET, 0.0, TARGET, sound=True) == "settled"
    assert verdict_of(0.0, 0.0, TARGET, sound=False) == "less"


@pytest.mark.parametrize("off", [1 / 20, 1.0, 20.0])
def test_the_lowest_score_is_closed_in_on(off: float) -> None:
    knob = Knob("tau", 2e-5, 1e-9, 1.0)
    tried = list[tuple[float, float]]()
    for _ in range(8):
        following = lowest(knob, tried)
        assert following.value is not None
        score = 10 + math.log(following.value / (knob.start * off)) ** 2
        tried.append((following.value, score if score < 60 else math.inf))
    assert min(score for _, score in tried) < 10.3
    assert len({value for value, _ in tried}) == len(tried)


def test_the_lowest_score_at_a_bound_or_in_ruins() -> None:
    knob = Knob("tau", 1.0, 0.1, 2.0)
    assert lowest(knob, [(1.0, math.inf)]).value == pytest.approx(1 / 6, rel=0.01), "nothing but ruins: weaker"
    assert lowest(knob, [(1.0, 5.0), (2.0, 4.0)]).value == pytest.approx(math.sqrt(2), rel=0.01), "into the only gap"
    assert lowest(knob, [(1.0, 5.0), (1.02, 6.0), (0.99, 6.0)]).reason == "narrow"


# ------------------------------------------------------------------------------------------------------- the knobs


@pytest.mark.parametrize("method", [name for name in KNOBS if name != "eu_k"])  # whose knob is its recipe's pace
def test_every_knob_is_a_setting_of_its_method_within_its_bounds(method: str) -> None:
    knob, kind = KNOBS[method], baseline_of(method).config
    for value in (knob.low, knob.start, knob.high):
        assert getattr(kind(**knob.settings(value)), knob.name) == pytest.approx(1 - value if knob.from_one else value)
    own = getattr(kind(), knob.name)
    assert (1 - own if knob.from_one else own) == pytest.approx(knob.start), "the authors' value"
    for name, ratio in knob.along.items():
        assert getattr(kind(), name) == pytest.approx(ratio * knob.start), "moves along from the authors' value too"
    assert json.loads(json.dumps(knob.described()))["name"] == knob.name


def test_a_method_with_other_fixed_settings_is_searched_from_the_same_value_under_a_name_of_its_own() -> None:
    for name, other in ALSO.items():
        own, theirs = (KNOBS[method].settings(0.01) for method in (name, other))
        assert own == {**theirs, **KNOBS[name].fixed} != theirs
        assert baseline_of(name) is baseline_of(other)
        assert title_of(name) != title_of(other)
        assert KNOBS[name].start == KNOBS[other].start
    assert KNOBS["scrub frozen"].fixed == KNOBS["salun frozen"].fixed == {"norm": "frozen"}


def test_eu_k_begins_at_the_pace_of_the_networks_recipe() -> None:
    assert KNOBS["eu_k"].settings(KNOBS["eu_k"].start) == {"pace": 1.0}


def test_every_method_of_table_1_has_a_knob() -> None:
    assert set(baselines()) - set(UNTUNED) <= set(KNOBS)
    assert not set(UNTUNED) & set(KNOBS)


# ------------------------------------------------------------------------------------------------- jobs and resuming

SCALE: Scale = FULL_SIZE
CASE: Case = samples_of_class_0(SCALE)


class Only(nn.Module):
    """A network of one weight."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(value))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Trials on a network that is nothing but the value of the knob; which ones were made."""
    calls = list[tuple[str, float]]()

    def forget(work: Work, case: Case, method: str, seed: int, settings: dict[str, Any]) -> Outcome:
        value = settings[KNOBS[method].name]
        calls.append((method, value))
        return Outcome(Only(math.inf if value > 0.03 else value), 1.0, {"ok": True})

    def look(net: nn.Module, case: Case, parts: object) -> dict[str, float]:
        assert isinstance(net, Only)
        value = net.weight.item()
        error = 0.0 if math.isinf(value) else logistic(0.02, 1.0)(value)[0]
        return {"forgotten": float(error or 0), "val": 9.0, "val own": TARGET}

    monkeypatch.setattr(tuning, "forget_by", forget)
    monkeypatch.setattr(tuning, "glance", look)
    monkeypatch.setattr(Work, "network", lambda *_: Only(1e-9))
    monkeypatch.setattr(Work, "parts", lambda *_: None)
    return calls


def run(work: Work, *, most: int | None = None, jobs: str = "*") -> list[str]:
    said = list[str]()
    wanted = tuning_jobs(work, CASE, ["scrub", "fine_tune"])[:most]
    run_all(work, wanted, Options(work.folder, SCALE, jobs=jobs), said.append, lambda options: (work, []))
    return said


def kept(work: Work) -> dict[str, Any]:
    return {name: work.row(name) for name in work.names()}


def test_an_interrupted_search_makes_the_same_trials(tmp_path: Path, made: list[tuple[str, float]]) -> None:
    whole, parts = (Work(tmp_path / name, SCALE, torch.device("cpu")) for name in ("whole", "parts"))
    run(whole)
    first, made[:] = list(made), []
    for most in (2, 3, 6, 9, None):
        run(Work(parts.folder, SCALE, parts.device), most=most)
    assert made == first
    assert kept(parts) == kept(whole)
    assert len(rows_of(whole, CASE, "scrub")) == SCALE.trials
    trials = trials_of(whole, CASE, "scrub")
    assert [trial["value"] for trial in trials[:2]] == [5e-4, 3e-3]
    assert min(abs(trial["forgotten"] - TARGET) for trial in trials) <= 1.5, "every other step ends in a ruin"
    best = best_of(trials)
    assert best is not None
    assert chosen_settings(whole, CASE, "scrub") == best["settings"] == {"lr": best["value"]}
    assert {"value", "forgotten", "val", "score", "bracket", "asks for"} <= set(best)


def test_a_settled_method_makes_no_more_trials_and_a_ruined_one_is_not_taken(
    tmp_path: Path, made: list[tuple[str, float]]
) -> None:
    work = Work(tmp_path, SCALE, torch.device("cpu"))
    run(work)
    rows = rows_of(work, CASE, "fine_tune")
    assert rows[0]["forgotten"] == pytest.approx(4.27, abs=0.05)
    assert rows[1]["value"] == 0.06
    settled = next(number for number, row in enumerate(rows) if row.get("asks for") == "settled")
    assert all(row == {"skipped": "settled", "bracket": row["bracket"]} for row in rows[settled + 1 :])
    assert len(rows) == SCALE.trials > settled + 1
    assert len(trials_of(work, CASE, "fine_tune")) == settled + 1
    ruined = [row for row in rows_of(work, CASE, "scrub") if "ok" in row and not row["ok"]]
    assert ruined, "0.108 is one step too far"
    assert all(row["asks for"] == "less" and row["forgotten"] == 0 for row in ruined)
    assert best_of([ruined[0] | {"score": 0.0}, rows[0]]) == rows[0]


def test_a_trial_that_has_no_trial_before_it_is_refused(tmp_path: Path, made: list[tuple[str, float]]) -> None:
    work = Work(tmp_path, SCALE, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"scrub-0 is not there.*--jobs"):
        run(work, jobs="*/scrub-1")


def test_another_knob_is_refused_before_anything_is_run(
    tmp_path: Path, made: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path, SCALE, torch.device("cpu"))
    run(work, most=4)
    monkeypatch.setitem(KNOBS, "scrub", Knob("lr", 5e-4, 1e-6, 0.2))
    made.clear()
    with pytest.raises(MismatchError, match=r"knob.*delete the file"):
        run(work)
    assert not made


def test_trials_of_one_method_never_run_at_once(tmp_path: Path) -> None:
    work = Work(tmp_path, SCALE, torch.device("cpu"))
    groups = [[job.name for job in group] for group in together(tuning_jobs(work, CASE, ["scrub", "delete"]))]
    folder = f"{CASE.setting.name}/{CASE.name}/{SCHEME}"
    assert groups[:2] == [[f"{folder}/original"], [f"{folder}/scrub-0", f"{folder}/delete-0"]]
    assert len(groups) == 1 + SCALE.trials


def test_weights_that_are_no_numbers_are_seen() -> None:
    net = nn.BatchNorm1d(2)
    assert all_finite(net)
    assert net.running_var is not None
    net.running_var[1] = math.nan
    assert not all_finite(net)


def test_outcomes_of_another_tuning_are_neither_used_nor_lost(tmp_path: Path) -> None:
    work = Work(tmp_path, SCALE, torch.device("cpu"))
    folder = f"{CASE.setting.name}/{CASE.name}"
    rows = {"scrub/0": {"method": "scrub"}, "scrub/1": {"method": "scrub", "tuning": SCHEME}}
    rows |= {"scrub/2": rows["scrub/1"], "scrub/3": rows["scrub/1"]}
    rows |= {"tuning/scrub-0": {"method": "scrub", "trial": {}}, "pgu/0": {"method": "pgu"}, "tuning/original": {}}
    results = {"scrub/2": {"config": {"alpha": 1.0}}, "scrub/3": {"config": {KNOBS["scrub"].name: 1.0}}}
    for name, settings in rows.items():
        path = work.rows / folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"settings": settings, "result": results.get(name, {})}))
    old = [name.removeprefix(f"{folder}/") for name in work.names() if work.of_another_tuning(name)]
    assert old == ["scrub/0", "scrub/2", "tuning/original", "tuning/scrub-0"], "another scheme, or another knob"
    assert work.seeds_of(f"{folder}/scrub") == [1, 3]
    assert work.seeds_of(f"{folder}/pgu") == [0]
    work.set_aside(f"{folder}/scrub/0")
    assert not work.has(f"{folder}/scrub/0")
    assert (tmp_path / "set-aside" / folder / "scrub" / "0.json").exists()
