"""Jobs: one network or one way of forgetting, one seed; what they hand back is small and all that a table needs.

The outcome of CASE by METHOD with SEED is kept as SETTING/CASE/METHOD/SEED: errors, seconds and the story in JSON,
outputs on the forget set and on held-out samples of its classes as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from experiments.running.jobs import Job
from experiments.running.readout import read_out
from experiments.running.sources import recipe_of
from experiments.running.training_sets import FULL, RETRAINED_SEEDS, retained
from experiments.running.work import Work
from experiments.settings import Case
from experiments.trials import KNOBS, SCHEME
from experiments.ways.methods import TITLES, forget_by
from experiments.ways.tuning import chosen_settings, trial_names, trials_of
from unweave.audit.shadow_classifier import FEWEST, Split

Result = tuple[dict[str, Any], dict[str, np.ndarray]]


def row_name(case: Case, method: str, seed: int) -> str:
    """Where an outcome is kept."""
    return f"{case.setting.name}/{case.name}/{method}/{seed}"


def job(case: Case, method: str, seed: int, run: Callable[[], Result], after: tuple[str, ...] = (), **more: Any) -> Job:
    """A job with the settings that tell it from others of its name."""
    settings = {"recipe": recipe_of(case.setting).settings(), "case": case.name, "method": method, "seed": seed}
    return Job(row_name(case, method, seed), run, {**settings, **more}, after)


def original_job(work: Work, case: Case, seed: int) -> Job:
    """The network trained on everything, on the sets of this request."""

    def run() -> Result:
        net = work.network(case.setting, FULL, seed)
        return described(work, case, net, work.seconds_to_train(case.setting, FULL, seed), {})

    return job(case, "original", seed, run)


def retrained_job(work: Work, case: Case, seed: int) -> Job:
    """The network trained without what is to be forgotten."""

    def run() -> Result:
        key = case.setting, retained(case), RETRAINED_SEEDS + seed
        return described(work, case, work.network(*key), work.seconds_to_train(*key), {})

    return job(case, "retrained", seed, run)


def method_job(work: Work, case: Case, method: str, seed: int) -> Job:
    """The original network made to forget; a baseline takes the settings that tuning chose."""
    scheme = {"tuning": SCHEME} if method in KNOBS else {}
    trials = trial_names(work, case, method)
    return job(case, method, seed, partial(_by_method, work, case, method, seed), trials, **scheme)


def _by_method(work: Work, case: Case, method: str, seed: int) -> Result:
    used = chosen_settings(work, case, method)
    outcome = forget_by(work, case, method, seed, used)
    tried = {} if method in TITLES else {"trials": len(trials_of(work, case, method))}  # 0: the authors' own value
    return described(work, case, outcome.net, outcome.seconds, {**outcome.story, **tried})


def variant_job(
    work: Work,
    case: Case,
    name: str,
    method: str,
    seed: int,
    settings: dict[str, Any],
    also: dict[str, Any] | None = None,
) -> Job:
    """A method with some settings changed, kept under a name of its own.

    ``also``: settings that its outcome is not told by, because they were the default when the first outcomes were made:
    those stay valid, and newer ones do not change with the default.
    """

    def run() -> Result:
        outcome = forget_by(work, case, method, seed, {**settings, **(also or {})})
        return described(work, case, outcome.net, outcome.seconds, outcome.story)

    return job(case, name, seed, run, changed=settings)


def described(work: Work, case: Case, net: nn.Module, seconds: float | None, story: dict[str, Any]) -> Result:
    """The row and the arrays of one network; seconds: None where they were not timed (``Work.crowded``)."""
    errors, arrays = read_out(net, case, work.parts(case))
    return {"errors": errors, "seconds": seconds, **story}, arrays


def both_kinds(work: Work, case: Case, seeds: Sequence[int]) -> list[Job]:
    """Original and retrained networks, seed by seed, so that an interrupted run has pairs.

    Those beyond the table's seeds are trained several at once; the table's own alone, because their time is shown.
    """
    extra = [seed for seed in seeds if seed >= work.scale.seeds]
    work.expect(case.setting, FULL, _to_train(work, case, "original", extra))
    retrained = _to_train(work, case, "retrained", extra)
    work.expect(case.setting, retained(case), [RETRAINED_SEEDS + seed for seed in retrained])
    return [make(work, case, seed) for seed in seeds for make in (original_job, retrained_job)]


def _to_train(work: Work, case: Case, kind: str, seeds: Iterable[int]) -> list[int]:
    """Those without an outcome: a network of which there is one needs no training, though its weights may be gone."""
    return [seed for seed in seeds if not work.has(row_name(case, kind, seed))]


def attack_networks(work: Work, case: Case) -> list[Job]:
    """Networks for the attacks beside the table's own, where fewer are trained than for table 1.

    Of full ones there are some more than of retrained ones: as many as it takes for the classifier to be asked about
    the unlearned networks of all the table's seeds, and to learn from originals of none of them.
    """
    seeds, models = work.scale.seeds, max(work.scale.seeds, work.scale.fewer_models)
    made = both_kinds(work, case, range(seeds, models))
    asked_about = Split.of(models, "full").tested if models >= FEWEST else seeds
    more = range(models, models + max(0, seeds - asked_about))
    work.expect(case.setting, FULL, _to_train(work, case, "original", more))
    return made + [original_job(work, case, seed) for seed in more]
