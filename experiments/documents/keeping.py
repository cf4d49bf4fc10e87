"""Parts of an earlier document that are taken over where their outcomes are gone (``--keep FOLDER``).

Some documents consist of parts that rest on outcomes of their own: networks, runs, or a method with so many wrong
labels. Where a folder has outcomes of some of them only, the others are taken over from the document of before as they
are, and "kept" names them. So are attacks and entropies of a table, and attacks on a network, whose numbers are here
without networks' outputs.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from experiments.documents.many import TRAINED
from unweave.errors import ConfigError, MismatchError, StoreError, UnweaveWarning

PARTS = {
    "layers": "networks",
    "epochs": "networks",
    "incremental-long": "runs",
    "table4": "networks",
    "table4-tiny": "networks",
    "table2": "requests",
}
"""Experiment → where its document has its parts, or most of them."""
BY_BUDGET = ("table4", "table4-tiny")
"""Their parts are single cells: a method's of one budget, below a network."""
RIGHT_LABELS = "networks trained on right labels alone"
"""What "whole" of BY_BUDGET is called where it is taken over."""

OF_OUTPUTS = ("table2",)
"""Their parts are what is made of networks' outputs: the attacks, and the entropies of each request."""
MADE_OF_OUTPUTS = ("attacks", "attacker's scores")
"""What a network of PARTS has of them."""

Document = Mapping[str, Any]


def earlier(folder: Path, name: str, scale: str) -> dict[str, Any]:
    """FOLDER/NAME.json, for an experiment of PARTS that is run at a scale.

    Raises:
        ConfigError: it is not there. StoreError: it is no document of this experiment. MismatchError: it is of another
            scale, which had better come out before hours of jobs.
    """
    path = folder / f"{name}.json"
    if not path.is_file():
        raise ConfigError(
            f"Invalid --keep: there is no {path}. Name the folder with the earlier {name}.json, or leave --keep out."
        )
    try:
        document = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise StoreError(f"{path} is no JSON ({error}). Pass the file that was assembled, unaltered.") from error
    if not isinstance(document, dict) or document.get("experiment") != name or PARTS[name] not in document:
        raise StoreError(f"{path} is no document of {name}. Pass the file that was assembled, unaltered.")
    _check_same_terms({"experiment": name, "scale": scale}, document, ("scale",))
    return document


def with_kept(new: Document, old: Document) -> dict[str, Any]:
    """The new document with those parts of the old one for which it has no outcomes; without any, as it was.

    "kept" names what was taken over. "made_by" is that of both: which of the old document's entries belong to the parts
    taken over cannot be told, so all of them are there. "recipes" are the new document's, but for the networks taken
    over, which have theirs. "seconds" are of what was assembled here alone.

    Raises:
        MismatchError: they are of different scales, or one network would need two recipes, or a method two tunings.
    """
    if new["experiment"] in OF_OUTPUTS:
        return _with_kept_of_outputs(new, old)
    kind, of_new, of_old = PARTS[new["experiment"]], _parts(new), _parts(old)
    here = {name: part for name, part in of_new.items() if _has_outcomes(part)}
    kept = {n: part for n, part in of_old.items() if n not in here and _has_outcomes(part) and _has_place(n, new)}
    attacked = {name: found for name, part in here.items() if (found := _attacked_before(part, of_old.get(name, {})))}
    whole = _whole_before(new, old)
    if not kept and not attacked and not whole:
        return dict(new)
    _check_same_terms(new, old)
    recipes = {setting: old["recipes"][setting] for setting in _settings(kept)}
    _check_one_recipe_each(new["recipes"], recipes, _settings(here))
    parts = {**of_new, **attacked, **{name: with_seeds(part) for name, part in kept.items()}}
    order = [name for name in in_place(of_new, of_old) if name in parts]
    return {
        **{key: value for key, value in new.items() if key != kind},
        **_with_trials(new, old, kept),
        **whole,
        "made_by": _made_by_both(new, old),
        "recipes": {**new["recipes"], **recipes},
        "kept": [
            *(name if name in kept else f"attacks of {name}" for name in order if name in kept or name in attacked),
            *(RIGHT_LABELS for _ in whole),
        ],
        kind: _put_together(new, {name: parts[name] for name in order}),
    }


def _attacked_before(part: Document, before: Document) -> dict[str, Any] | None:
    """A network whose outputs are not here, with the attacks of before; None where there is nothing to take over.

    Nor is there where one of the networks attacked has other errors than it had: the attacks are not about it, which is
    told. Networks that were only trained may have become more.
    """
    found = before.get("attacks") or {}
    if not found or part.get("attacks"):
        return None
    rows, old = part["methods"], before["methods"]
    others = [name for name in found["methods"] if name not in rows or not _goes_on(rows[name], old[name], name)]
    if others:
        words = f"Attacks of before are left out: {', '.join(others)} have other networks now than were attacked."
        warnings.warn(words, UnweaveWarning, stacklevel=2)
        return None
    return {**part, **{key: before[key] for key in MADE_OF_OUTPUTS if key in before}}


def _goes_on(row: Document, before: Document, name: str) -> bool:
    """Whether a method's networks are those of before; of networks that were only trained there may be others too."""
    if name not in TRAINED:
        return bool(row["errors"] == before["errors"])
    now = {key: dict(zip(row["seeds"], one["values"], strict=True)) for key, one in row["errors"].items()}
    then = {key: dict(zip(before["seeds"], one["values"], strict=True)) for key, one in before["errors"].items()}
    return all(then[key].items() <= now.get(key, {}).items() for key in then)


def _whole_before(new: Document, old: Document) -> dict[str, Any]:
    """The accuracy with right labels alone, which is of another experiment's networks, where these are gone."""
    if new.get("whole") or not old.get("whole"):
        return {}
    _check_one_recipe_each(new["recipes"], old["recipes"], set(new["recipes"]))
    return {"whole": old["whole"]}


def with_seeds(part: Document) -> dict[str, Any]:
    """A cell or a run that does not say its seeds, with them: every run begins with seed 0, and goes on in order.

    That they were inferred stands beside them; a part that says them stays as it is.
    """
    measured = part.get("curves") or next((found["values"] for found in part.get("accuracy", {}).values()), None)
    if "seeds" in part or measured is None:
        return dict(part)
    return {**part, "seeds": list(range(len(measured))), "seeds inferred": True}


def _with_kept_of_outputs(new: Document, old: Document) -> dict[str, Any]:
    """Attacks and entropies of before, where there are none of a request that is here."""
    requests, kept = dict(new["requests"]), list[str]()
    for number, request in new["requests"].items():
        for key, words in (("entropy", "entropies"), ("attacks", "attacks")):
            before = old["requests"].get(number, {}).get(key)
            if before and not request.get(key):
                requests[number] = {**requests[number], key: before}
                kept.append(f"{words} of {number} classes")
    takes_attacks = bool(old["attacks"]) and not new["attacks"]
    kept += ["attacks"] if takes_attacks else []
    if not kept:
        return dict(new)
    _check_same_terms(new, old, ("scale", "recipes"))
    attacks = old["attacks"] if takes_attacks else new["attacks"]
    return {**new, "made_by": _made_by_both(new, old), "kept": kept, "requests": requests, "attacks": attacks}


def _made_by_both(new: Document, old: Document) -> list[Any]:
    return [*new["made_by"], *(made for made in old["made_by"] if made not in new["made_by"])]


def _parts(document: Document) -> dict[str, Any]:
    """By name, in order."""
    found: dict[str, Any] = document[PARTS[document["experiment"]]]
    if document["experiment"] not in BY_BUDGET:
        return found
    return {
        f"{setting}, {budget}, {method}": cell
        for setting, budgets in found.items()
        for budget, cells in budgets.items()
        for method, cell in cells.items()
    }


def _put_together(document: Document, parts: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`_parts` took apart; a budget stays where it is, with or without cells."""
    if document["experiment"] not in BY_BUDGET:
        return dict(parts)
    whole: dict[str, Any] = {s: {b: {} for b in budgets} for s, budgets in document["networks"].items()}
    for name, cell in parts.items():
        setting, budget, method = name.split(", ")
        whole.setdefault(setting, {}).setdefault(budget, {})[method] = cell
    return whole


def _has_place(name: str, new: Document) -> bool:
    """A budget that the new document does not ask for has none."""
    if new["experiment"] not in BY_BUDGET:
        return True
    setting, budget, _ = name.split(", ")
    return budget in new["networks"].get(setting, {})


def _with_trials(new: Document, old: Document, kept: Collection[str]) -> dict[str, Any]:
    """Trials belong to the cells whose settings they chose."""
    if new["experiment"] not in BY_BUDGET:
        return {}
    methods = {name.split(", ")[2] for name in kept}
    trials = {method: made for method, made in old["tuning"]["methods"].items() if method in methods}
    here = new["tuning"]["methods"]
    for method in trials:
        if here.get(method, trials[method]) != trials[method]:
            raise MismatchError(
                f"{method} was tuned here and, in another way, in the document of --keep, so cells of both cannot "
                "stand in one row. Run the jobs that are missing here, or leave --keep out."
            )
    return {"tuning": {**new["tuning"], "methods": {**here, **trials}}}


def in_place(new: Collection[str], old: Collection[str]) -> list[str]:
    """Names of both: the new ones in their order, each of the others behind the one it follows among the old ones."""
    names = list(new)
    before: str | None = None
    for name in old:
        if name not in names:
            names.insert(0 if before is None else names.index(before) + 1, name)
        before = name
    return names


def _has_outcomes(part: Document) -> bool:
    """A network is there with no methods where nothing was run; a run is not there at all."""
    return bool(part.get("methods", True))


def _settings(parts: Document) -> set[str]:
    """The settings that parts are of, by whose names recipes are kept: told by the part, or in its name."""
    return {part["request"]["network"] if "request" in part else name.partition(",")[0] for name, part in parts.items()}


def _check_same_terms(new: Document, old: Document, terms: Collection[str] = ("scale", "drop")) -> None:
    for key in terms:  # said once, of all parts
        if new.get(key) != old.get(key):
            raise MismatchError(
                f"{new['experiment']}: {key} is {new.get(key)} here and {old.get(key)} in the document of --keep, so "
                "its parts cannot stand beside the new ones. Leave --keep out, or name another folder."
            )


def _check_one_recipe_each(new: Document, kept: Document, here: set[str]) -> None:
    """A document has one recipe a network: with another one, either the new or the old parts would be told wrong."""
    for setting in sorted(here & set(kept)):
        if new[setting] != kept[setting]:
            raise MismatchError(
                f"{setting} has outcomes here that were made by another recipe than the parts of it that --keep would "
                "take over. Run the jobs that are missing here, or leave --keep out."
            )
