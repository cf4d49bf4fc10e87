"""The paper's four tables as Markdown, and where every other result is turned into it; from JSON documents alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiments.documents.attack_cells import ATTACKS, WITH_TURNS, each_attack, networks_behind, with_turns
from experiments.documents.basis import basis, count, seeds_behind, span, tuning
from experiments.documents.cells import (
    MISSING,
    attack_of,
    auc,
    beside,
    mean,
    origin,
    papers,
    request_seconds,
    seconds,
    table,
    with_seconds,
)
from experiments.documents.distances import DISTANCE, NOTHING, distances, each_distance, times
from experiments.documents.studies import attacks, class_smallvgg, epochs, gamma, incremental_long, layers, simple
from experiments.settings import told_in
from experiments.trials import ALSO

Document = Mapping[str, Any]


def table1(document: Document) -> str:
    """All methods on table 1's request."""
    return "\n\n".join(
        [
            _methods(document, ("retained", "forgotten", "test", "own")),
            basis(document, ("xgboost", "u-lira", "rmia"), with_seconds(document["methods"])),
            tuning(document.get("tuning", {}), document["methods"]),
            _distances_of_samples(document),
            *_by_the_papers_schedule(document, "Networks", ("retained", "forgotten", "test")),
            origin(document),
        ]
    )


def _distances_of_samples(document: Document) -> str:
    known = (document["paper"] or {}).get("rows", {})
    return distances(document["methods"], known, ("pgu", "paper", "match", "solved"), ("forgotten", "retained", "test"))


def _methods(document: Document, sets: tuple[str, ...]) -> str:
    names = {"own": "held-out of their class"}
    columns = [
        "method",
        "n",
        *(names.get(key, key) for key in sets),
        "seconds",
        "XGBoost attack",
        "U-LiRA",
        "RMIA",
        "entropy",
    ]
    paper = document["paper"] or {"rows": {}}
    rows = []
    for method, row in document["methods"].items():
        known = paper["rows"].get(method, {})
        cells = [beside(mean(row["errors"].get(key)), papers(known.get(key))) for key in sets]
        cells.append(beside(request_seconds(method, row), papers(known.get("seconds"), 0)))
        cells.append(beside(auc(attack_of(document, method, "xgboost")), papers(paper.get("auc", {}).get(method), 3)))
        cells += [auc(attack_of(document, method, name)) for name in ("u-lira", "rmia")]
        rows.append([row["title"], count(row), *cells, _entropy_distance(document, method)])
    return table(columns, rows)


def table2(document: Document) -> str:
    """Each number of classes, the attacks beside the first."""
    parts = list[str]()
    for number, request in document["requests"].items():
        paper = document["paper"] if not parts else document["paper, 10 classes"]
        attacks = request.get("attacks", {}) if parts else document["attacks"]
        shown = _of_classes({**request, "attacks": attacks}, paper)
        if request["methods"]:
            sets = ("retained test", "retained")
            off = distances(request["methods"], paper["rows"], ("pgu", "paper", "odds"), sets)
            shown = f"{shown}\n\n{off}"
        parts.append(f"**{number} classes**\n\n{shown}")
        if request.get("attacks"):
            parts.append(networks_behind([request], []))
        if request.get("tuning"):
            parts.append(tuning(request["tuning"], request["methods"]))
    first: Document = next(iter(document["requests"].values()), {})
    tuned = tuning(document.get("tuning", {}), first.get("methods", {}))
    timed = [row for request in document["requests"].values() for row in with_seconds(request["methods"])]
    return "\n\n".join([*parts, basis(document, timed=timed), tuned, origin(document)])


def _of_classes(request: Document, paper: Document) -> str:
    """One number of classes: errors, seconds, entropies and what attackers found of each method."""
    rows = []
    for method, row in request["methods"].items():
        known, errors = paper["rows"].get(ALSO.get(method, method), {}), row["errors"]
        first, *others = each_attack(request, method)
        rows.append(
            [
                row["title"],
                count(row),
                *(beside(mean(errors.get(key)), papers(known.get(key))) for key in ("retained test", "retained")),
                mean(errors["forgotten"]),
                mean(errors.get("own")),
                beside(request_seconds(method, row), papers(known.get("seconds"), 0)),
                _entropy_distance(request, method),
                beside(first, papers(paper.get("auc", {}).get(method), 3)),
                *others,
            ]
        )
    errors_of = ("retained test", "retained", "forgotten, all rows", "held-out of their classes, all rows")
    return table(["method", "n", *errors_of, "seconds", "entropy", *ATTACKS], rows)


def _entropy_distance(found: Document, method: str) -> str:
    """From the entropies of retrained networks."""
    distance = found["entropy"].get("distance to retrained", {}).get(method)
    return MISSING if distance is None else f"{distance:.2f}"


def table3(document: Document) -> str:
    """Step by step."""
    rows = []
    timed = [row for step in document["steps"] for row in with_seconds(step["methods"])]
    for number, step in enumerate(document["steps"]):
        known = papers_step(document, number)
        for method, row in step["methods"].items():
            at = known.get(method, {})
            cells = [beside(mean(row["errors"][k]), papers(at.get(k))) for k in ("test", "retained", "forgotten")]
            cells.append(mean(row["errors"].get("step")))
            cells.append(beside(request_seconds(method, row), papers(at.get("seconds"), 0)))
            cells.append(_entropy_distance(step, method))
            rows.append([f"{number + 1}: {row['title']}", count(row), *cells])
    columns = [
        "step: method",
        "n",
        "test",
        "retained",
        "forgotten so far",
        "forgotten in this step",
        "seconds",
        "entropy",
    ]
    return "\n\n".join(
        [
            table(columns, rows),
            basis(document, (), timed),
            _distances_by_step(document),
            *_how_hard(document),
            _attacks_after_steps(document),
            *_by_the_papers_schedule(document, "The first step, networks", ("test", "retained", "forgotten")),
            origin(document),
        ]
    )


def _attacks_after_steps(document: Document) -> str:
    """After the first step and after the last, on all that was forgotten so far."""
    turned = document["attacks in turns"]
    ends = {
        1: ({"attacks": document["attacks after the first step"]}, turned["after the first step"]),
        len(document["steps"]): (document, turned["after the last step"]),
    }
    rows = [
        [f"{number}: {row['title']}", *with_turns(found, in_turns, method)]
        for number, (found, in_turns) in ends.items()
        for method, row in document["steps"][number - 1]["methods"].items()
        if method in found["attacks"].get("methods", {})
    ]
    behind = networks_behind(*zip(*ends.values(), strict=True))
    return "\n\n".join(["Attacks:", table(["after step: method", *WITH_TURNS], rows), behind]).rstrip()


def papers_step(document: Document, number: int) -> dict[str, dict[str, tuple[float, float]]]:
    """The paper's rows of one step, as far as it has so many."""
    every = document["paper"]["rows"].items()
    return {m: {k: values[number] for k, values in row.items() if number < len(values)} for m, row in every}


def _distances_by_step(document: Document) -> str:
    lines = [
        f"- step {number + 1}: {line}"
        for number, step in enumerate(document["steps"])
        if {"original", "retrained"} <= set(step["methods"])
        for line in each_distance(
            step["methods"],
            papers_step(document, number),
            ("pgu", "match", "match first"),
            ("forgotten", "retained", "test"),
        )
    ]
    return "\n".join([f"{DISTANCE}:", "", *lines]) if lines else NOTHING


def _how_hard(document: Document) -> list[str]:
    if not document.get("how hard"):
        return []
    networks, each = len(document["how hard"][0]["values"]), ", ".join(map(mean, document["how hard"]))
    return [
        f"Of each step's own samples networks that were retrained without all of them have wrong ({networks}): {each}."
    ]


def _by_the_papers_schedule(document: Document, of: str, keys: tuple[str, ...]) -> list[str]:
    """The same request of networks that were trained as long as the paper's, and how much longer retraining takes."""
    shown = []
    for setting, methods in document.get("the paper's schedule", {}).items():
        if methods:
            epochs = document["recipes"][setting]["epochs"]
            words = f"{of} of all {epochs} epochs of the schedule in the paper's {told_in(setting)}:"
            shown.append(f"{words}\n\n{simple(methods, keys)}")
            retrained = methods.get("retrained", {}).get("seconds")
            requests = [row for name, row in methods.items() if name not in ("original", "retrained")]
            faster = [(row["title"], times(retrained, row["seconds"])) for row in requests]
            lines = [f"- {title}: {words}" for title, words in faster if words]
            shown += ["\n".join(lines)] if lines else []
    return shown


BESIDE_THE_TEST = {
    "clean train": "Training samples whose labels were right, percent still right:",
    "poisoned right": "Training samples whose labels were wrong, percent taken for what they are:",
}
"""What else is told of networks with wrong labels, and how a table of it begins."""


def table4(document: Document) -> str:
    """Test accuracy by budget, for each way the networks were trained, and what it costs."""
    parts, timed = list[str](), list[Document]()
    for name, budgets in document["networks"].items():
        if rows := _by_budget(document["paper"], budgets, timed):
            columns = ["network", *(f"{int(budget):,} wrong labels" for budget in budgets)]
            epochs = document["recipes"][name]["epochs"]
            whole = [columns[0], "n", *columns[1:], "seconds"]
            parts.append(f"**{name}, {epochs} epochs**\n\n{table(whole, rows)}")
            parts += _right_labels(document)
            parts += [f"{words}\n\n{table(columns, _accuracies(budgets, k))}" for k, words in BESIDE_THE_TEST.items()]
    return "\n\n".join([*parts, basis(document, timed=timed), origin(document)])


def _right_labels(document: Document) -> list[str]:
    """What networks of the same recipe have with everything and its right labels, and the paper's."""
    found = document.get("whole")
    if not found:
        return []
    ours = f"{mean(found['accuracy']['test'])} (n = {seeds_behind(found)}; paper {document['paper']['full clean']:.2f})"
    return [f"Trained by the same recipe on everything, with right labels, networks have {ours}."]


def _by_budget(paper: Document, budgets: Document, timed: list[Document]) -> list[list[str]]:
    """A row for each method; what its seconds rest on goes to ``timed``."""
    rows = []
    for method, (title, *cells) in zip(_in_order(budgets), _accuracies(budgets, "test"), strict=True):
        known = dict(zip(map(str, paper["budgets"]), paper["rows"].get(method, ()), strict=False))
        compared = [
            beside(cell, papers(known.get(budget))) if method in found else cell
            for cell, (budget, found) in zip(cells, budgets.items(), strict=True)
        ]
        there = [found[method] for found in budgets.values() if method in found]
        timed.append(there[0])
        behind = span([seeds_behind(row) for row in there])
        rows.append([title, behind, *compared, seconds(there[0]["seconds"])])
    return rows


def _accuracies(budgets: Document, key: str) -> list[list[str]]:
    """A row for each method: its title, and its accuracy for each budget."""
    rows = []
    for method in _in_order(budgets):
        title = next(found[method]["title"] for found in budgets.values() if method in found)
        cells = (mean(found[method]["accuracy"][key]) if method in found else MISSING for found in budgets.values())
        rows.append([title, *cells])
    return rows


def _in_order(budgets: Document) -> list[str]:
    """Those with an outcome for any budget, in the order of the budget that has most of them."""
    fullest: Document = max(budgets.values(), key=len, default={})
    return list(dict.fromkeys([*fullest, *(method for found in budgets.values() for method in found)]))


TABLES: dict[str, Callable[[Document], str]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table4-tiny": table4,
    "class-smallvgg": class_smallvgg,
    "gamma": gamma,
    "layers": layers,
    "epochs": epochs,
    "attacks": attacks,
    "incremental-long": incremental_long,
}
