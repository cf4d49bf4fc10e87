"""The one JSON of an audit, as ``unweave/report/schema.json`` describes it. It holds aggregates, never a sample."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os import PathLike
from typing import Any

import numpy as np
import scipy

from unweave import __version__
from unweave.audit import readouts
from unweave.audit.evidence import Answers, Evidence
from unweave.audit.examine import Audit
from unweave.audit.verdict import EARLIER
from unweave.files import write_atomically

VERSION = 1

NOT_COVERED = (
    "Approximate unlearning: there is no formal guarantee, and an attack that fails proves nothing about the next one.",
    "Raw data, backups, logs, older checkpoints and models derived from them are not looked at; the old weights still "
    "hold the samples and have to be withdrawn.",
    "Near-duplicates of forgotten samples that were retained keep their influence.",
    "The audit sees outputs only; what the weights themselves give away was not tested.",
)


@dataclass(frozen=True)
class Story:
    """What the audit itself cannot know: how the request went. All of it is optional."""

    title: str = ""
    method: str = ""
    rerun: str = ""
    epochs: list[dict[str, Any]] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    leakage: list[dict[str, Any]] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)


def document(audit: Audit, story: Story | None = None) -> dict[str, Any]:
    """Everything there is to say about an audit."""
    story = story or Story()
    evidence = audit.evidence
    result = {
        "format": "unweave.audit",
        "version": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "made_by": _made_by(),
        "request": _request(evidence, story),
        "tier": evidence.tier(),
        "thresholds": audit.limits.document(),
        "verdict": audit.verdict.document(),
        "models": [_model(name, answers, evidence) for name, answers in evidence.groups()],
        "attacks": [found.document() for found in audit.attacks],
        "distances": [found.document() for found in audit.distances],
        "entropies": _entropies(evidence),
        "destinations": _destinations(evidence),
        "epochs": story.epochs,
        "layers": story.layers,
        "leakage": story.leakage,
        "earlier": _earlier(audit),
        "not_covered": [*NOT_COVERED, *audit.left_out],
        "settings": {"seed": audit.seed, **story.settings},
        "rerun": story.rerun or "unweave.audit.examine(evidence)",
    }
    optional = ("destinations", "epochs", "layers", "leakage", "earlier")
    return {key: value for key, value in result.items() if value or key not in optional}


def save(result: Mapping[str, Any], path: str | PathLike[str]) -> None:
    """Write an audit's document; either all of it is there afterwards or nothing changed.

    Raises:
        StoreError: the file cannot be written.
    """
    write_atomically(path, as_json(result).encode())


def as_json(result: Mapping[str, Any]) -> str:
    """The document as text; a number that is not finite is a mistake, and raises ValueError."""
    return json.dumps(result, indent=1, allow_nan=False) + "\n"


def _made_by() -> dict[str, str]:
    return {
        "unweave": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": platform.machine(),
    }


def _request(evidence: Evidence, story: Story) -> dict[str, Any]:
    samples = evidence.unlearned.forget.samples
    names = [evidence.name_of(label) for label in evidence.forget_classes]
    titles = {
        "samples": f"{samples} samples",
        "classes": f"class {', '.join(names)}",
        "poison": f"{samples} wrong labels",
    }
    request = {"title": story.title or titles[evidence.task], "task": evidence.task, "samples": samples}
    return request | {"classes": names} | ({"method": story.method} if story.method else {})


def _model(name: str, answers: Answers, evidence: Evidence) -> dict[str, Any]:
    parts = dict(answers.parts())
    if evidence.removed and "held out" in parts:  # its samples cannot be right any more, and should not be
        parts["held out"] = parts["held out"].where(~np.isin(parts["held out"].labels, evidence.removed))
    model: dict[str, Any] = {
        "name": name,
        "models": len(answers.forget),
        "errors": {part: readouts.error(answer) for part, answer in parts.items() if answer.samples},
    }
    if answers.held_out is not None:
        model["by_class"] = readouts.errors_by_class(answers.held_out, evidence.name_of)
    return model | ({} if answers.seconds is None else {"seconds": answers.seconds})


def _entropies(evidence: Evidence) -> list[dict[str, Any]]:
    named = {name: dict(answers.parts()) for name, answers in evidence.groups()}
    return readouts.entropy_histograms(named, evidence.removed)


def _destinations(evidence: Evidence) -> list[dict[str, Any]]:
    """Where samples of a removed class go, by model; held-out ones where there are any."""
    found = []
    for name, answers in evidence.groups():
        for label in evidence.removed:
            answer = answers.held_out if answers.held_out is not None else answers.forget
            if (answer.labels == label).any():
                shares = readouts.destinations(answer, label, evidence.name_of)
                found.append({"model": name, "class": evidence.name_of(label), "shares": shares})
    return found


def _earlier(audit: Audit) -> list[dict[str, Any]]:
    checks = {
        check.name.removeprefix(EARLIER): check for check in audit.verdict.checks if check.name.startswith(EARLIER)
    }
    return [
        {
            "title": title,
            "samples": found.unlearned.samples[0],
            "outcome": checks[title].outcome,
            "sentence": checks[title].sentence,
            "auc": found.unlearned.auc.document(),
        }
        for title, found in audit.earlier.items()
    ]
