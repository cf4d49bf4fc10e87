"""The demonstration's audits: three networks of each request before the same judge, and the pages for people.

The original is put on trial too, as if it had been unlearned, and so is the retrained one: a judge who passes the first
or fails the second is not worth listening to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unweave
from unweave.audit.document import Story as Account
from unweave.audit.document import document, save
from unweave.audit.evidence import Answers, Evidence, Task
from unweave.audit.examine import examine
from unweave.audit.inside import Inside, look_inside
from unweave.audit.leakage import leakage
from unweave.audit.outputs import collect
from unweave.demo.data import CLASSES, Images
from unweave.report import place, render, render_comparison

RETAINED = 1000
"""Retained samples that the audit looks at."""


@dataclass(frozen=True)
class Trial:
    """What one request's audit needs: its networks, its samples, and how the request went."""

    name: str
    title: str
    task: Task
    networks: Mapping[str, nn.Module]
    """original, unlearned, retrained."""
    seconds: Mapping[str, float]
    parts: Mapping[str, Images]
    """forget (with the labels that were trained on), held_out, retained."""
    result: unweave.ForgetResult


def hold(trials: list[Trial], out: Path, seed: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Audit every request, and the original and the retrained network of the first; write JSON and pages.

    Returns the documents of the requests, in their order.
    """
    evidence = [_evidence(trial) for trial in trials]
    documents = []
    for trial, own in zip(trials, evidence, strict=True):
        documents.append(document(examine(own, inside=_inside(trial, seed), seed=seed), _account(trial, seed)))
        say(f"audit    {trial.title}: {documents[-1]['verdict']['outcome']}. {documents[-1]['verdict']['sentence']}")
        save(documents[-1], out / f"audit-{trial.name}.json")
    compared = {trial.title: found for trial, found in zip(trials, documents, strict=True)}
    for name in ("original", "retrained"):
        on_trial = replace(evidence[0], unlearned=dict(evidence[0].groups())[name], retrained=None)
        found = document(examine(on_trial, seed=seed), Account(f"{trials[0].title}: the {name} network on trial"))
        say(f"audit    {trials[0].title}, were the {name} network handed in: {found['verdict']['outcome']}")
        compared[f"{trials[0].title}, {name}"] = found
    place(render(documents[0]), out / "report.html")
    place(render_comparison(list(compared.values()), list(compared)), out / "compare.html")
    return documents


def _evidence(trial: Trial) -> Evidence:
    groups = {}
    for name, net in trial.networks.items():
        made = {part: collect(net, images.batches(), part) for part, images in trial.parts.items()}
        answers = Answers.of(made["forget"], made["held_out"], made["retained"], trial.seconds.get(name))
        groups[name] = answers
    return Evidence(groups["unlearned"], groups["original"], groups["retrained"], task=trial.task, class_names=CLASSES)


def _inside(trial: Trial, seed: int) -> Inside | None:
    """The features only: relearning takes long. Wrong labels have no strangers of their own to be told from."""
    if trial.task == "poison":
        return None
    parts = {part: trial.parts[part].batches() for part in ("forget", "held_out")}
    return look_inside(trial.networks, parts["forget"], parts["held_out"], relearn=0, seed=seed)


def _account(trial: Trial, seed: int) -> Account:
    result = trial.result
    layers = [
        {"name": name, "kept": kept, "dimension": result.grams.layers[name].d, "shift": result.shift[name]}
        for name, kept in result.ranks.items()
        if isinstance(kept, int)
    ]
    epochs = [
        {"epoch": look.epoch, "forget_error": look.forget_error, "held_out_error": look.val_error, "auc": look.auc}
        for look in result.history
    ]
    return Account(
        title=trial.title,
        method=f"Projected-Gradient Unlearning, objective {result.config.objective}, without the training set",
        rerun=f"unweave demo --seed {seed}",
        epochs=epochs,
        layers=layers,
        leakage=leakage(result.grams),
        settings={"request": result.config.as_dict(), "torch": str(torch.__version__)},
    )
