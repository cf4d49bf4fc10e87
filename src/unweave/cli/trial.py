"""The evidence that settings describe: runs the models before and after on the samples that the audit needs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import unweave
from unweave.audit.document import Story
from unweave.audit.evidence import Answers, Before, Evidence, Task, Yardstick
from unweave.audit.inside import Inside, look_inside
from unweave.audit.outputs import collect
from unweave.audit.references import References
from unweave.cli.configfile import Values
from unweave.cli.data import open_source
from unweave.cli.ids import read_ids
from unweave.cli.model import load_model, load_weights
from unweave.cli.outputs import Places
from unweave.cli.past import Past
from unweave.cli.screen import Report
from unweave.cli.selection import Selection, select
from unweave.cli.words import for_the_shell
from unweave.errors import ConfigError, StoreError
from unweave.reading.batches import Loader
from unweave.reading.rest import duplicate, fingerprint


def evidence_of(
    arguments: argparse.Namespace, values: Values, report: Report, rerun: str
) -> tuple[Evidence, Story, Inside | None]:
    """Run the original, the unlearned and, if there is one, the retrained network.

    Raises:
        UnweaveError: a model, a file or samples that cannot be used.
    """
    selection = select(arguments, values)
    weights = {
        "unlearned": values.require("forget", "out"),
        "retrained": values.get("audit", "retrained"),
    }
    if not weights["unlearned"].is_file():
        raise ConfigError(
            f"There is no {weights['unlearned']}, the network to be audited. Run 'unweave forget' first, or name what "
            "it wrote with --out."
        )
    networks = {"original": load_model(values)}
    for name, path in weights.items():
        if path is not None:
            networks[name] = duplicate(networks["original"])
            load_weights(networks[name], path)
    record, grams = _record(values), _grams(values)
    earlier = _earlier(arguments, values)
    parts = _parts(values, selection, earlier.values(), Past.of(networks["unlearned"], grams, record))
    groups: dict[str, Answers] = {}
    for done, (name, model) in enumerate(networks.items(), start=1):
        groups[name] = _answers(model, parts)
        report("audit", done, len(networks))
    task = _task(arguments, values, record)
    evidence = Evidence(
        replace(groups["unlearned"], seconds=record.get("seconds")),
        groups["original"],
        groups.get("retrained"),
        references=_references(values, selection, groups["unlearned"]),
        task=task,
        class_names=list(selection.source.class_names or ()) if selection.source else (),
        earlier={title: _before(request, networks) for title, request in earlier.items()},
        left=_left(networks["original"], grams, record),
    )
    seed = values.get("audit", "seed")
    wanted = task != "poison" and not arguments.attack  # wrong labels have no strangers of their own
    inside = look_inside(networks, parts["forget"], parts["held_out"], seed=seed) if wanted else None
    return evidence, _story(values, record, grams, rerun), inside


def _left(original: nn.Module, grams: unweave.LayerGrams | None, record: Mapping[str, Any]) -> dict[int, float]:
    """What is left of the classes: of what the first model was trained on, if that is the original, or of before."""
    first = grams is not None and fingerprint(original) == grams.origin.first
    left = (record.get("left of all") if first else None) or record.get("left", {})
    return {int(c): share for c, share in left.items()}


def _task(arguments: argparse.Namespace, values: Values, record: Mapping[str, Any]) -> Task:
    """What the flags say, else the record of the request, else the settings; samples where nothing does."""
    if arguments.classes or arguments.poisoned:
        return "classes" if arguments.classes else "poison"
    task: Task = arguments.task or record.get("config", {}).get("task") or values.get("forget", "task") or "samples"
    return task


def _parts(values: Values, selection: Selection, earlier: Iterable[Selection], past: Past | None) -> dict[str, Loader]:
    """The three sets: what was forgotten, what nobody saw, and some of what was kept.

    What earlier requests took out was not kept: their samples are left out by position, and by the digests of the past.
    """
    key = "test" if values.get("data", "test") is not None else "val"
    if values.get("data", key) is None:
        raise ConfigError("An audit needs samples that nobody trained on. Set [data] test (or pass --test).")
    parts = {"forget": list(selection.loader), "held_out": open_source(values, key).loader()}
    others = Past() if past is None else past.before(parts["forget"], values.require("forget", "out").name)
    if selection.positions is not None and selection.source is not None and values.get("data", "forget") is None:
        labels = selection.source.labels()
        asked = [position for request in (selection, *earlier) for position in request.positions or ()]
        rest = np.setdiff1d(np.arange(len(labels)), asked)
        order = np.random.default_rng(values.get("audit", "seed")).permutation(rest).tolist()
        chosen = others.kept(selection.source, order, values.get("audit", "retained"))
        if chosen:
            parts["retained"] = selection.source.only(chosen)
    return parts


def _answers(model: nn.Module, parts: dict[str, Loader]) -> Answers:
    made = {part: collect(model, loader, part.replace("_", " ")) for part, loader in parts.items()}
    return Answers.of(made["forget"], made["held_out"], made.get("retained"))


def _earlier(arguments: argparse.Namespace, values: Values) -> dict[str, Selection]:
    """The samples of earlier requests, by the names of the files with their ids."""
    found = {}
    for path in map(Path, arguments.earlier or ()):
        source = open_source(values, "train")
        positions = read_ids(path, source)
        found[path.stem] = Selection(list(source.only(positions)), positions=tuple(positions), source=source)
    return found


def _before(request: Selection, networks: dict[str, nn.Module]) -> Before:
    """What the present and the first network say about the samples of an earlier request."""
    return Before.of(*(collect(networks[name], request.loader, "earlier") for name in ("unlearned", "original")))


def _references(values: Values, selection: Selection, unlearned: Answers) -> Yardstick | None:
    """The reference models' outputs on the forget set, by its positions in the training set."""
    path = values.get("audit", "references")
    if path is None:
        return None
    if selection.positions is None or unlearned.held_out is None:
        raise ConfigError("[audit] references go by position in the training set. Name the samples with --ids.")
    references = References.load(path)
    forget, out = references.of(np.array(selection.positions))
    held_out = references.on_held_out()
    if held_out is None:
        raise StoreError(f"{path} has no outputs on held-out samples. Make it with train_references(held_out=…).")
    return Yardstick(forget, out, held_out)


def _record(values: Values) -> dict[str, Any]:
    """What 'unweave forget' wrote about the request; nothing where it was not this tool that forgot."""
    path: Path = Places.of(values).result
    if not path.exists():
        return {}
    try:
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read as the record of a request ({error}). Move it away.") from error
    return record if record.get("command") == "forget" else {}


def _grams(values: Values) -> unweave.LayerGrams | None:
    """The Grams beside the new weights, if there are any."""
    path = Places.of(values).grams
    with for_the_shell("Restore it, or move it away: the audit does without it."):
        return unweave.LayerGrams.load(path) if path.exists() else None


def _story(values: Values, record: dict[str, Any], grams: unweave.LayerGrams | None, rerun: str) -> Story:
    """How the request went, from its record and the Grams that go with the new model."""
    from unweave.audit.leakage import leakage

    wanted = {"epoch": "epoch", "forget_error": "forget_error", "held_out_error": "val_error", "auc": "auc"}
    epochs = [{name: look.get(key) for name, key in wanted.items()} for look in record.get("history", [])]
    ranks: dict[str, Any] = record.get("ranks", {})
    layers = [
        {"name": name, "kept": _total(kept), "dimension": grams.layers[name].d * grams.layers[name].groups}
        for name, kept in ranks.items()
        if grams is not None and name in grams.layers
    ]
    return Story(
        method=f"Projected-Gradient Unlearning, objective {record['config']['objective']}" if record else "",
        rerun=rerun,
        epochs=epochs,
        layers=layers,
        leakage=leakage(grams) if grams is not None else [],
        settings={"settings": values.as_dict(), "request": record.get("config", {}), "torch": str(torch.__version__)},
    )


def _total(kept: int | list[int]) -> int:
    return kept if isinstance(kept, int) else sum(kept)
