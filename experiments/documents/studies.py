"""Ablations, attacks and figures as Markdown tables, from their JSON documents alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.documents.attack_cells import ATTACKS, WITH_TURNS, each_attack, networks_behind, with_turns
from experiments.documents.basis import basis, count, span, timed_seeds, timed_steps
from experiments.documents.cells import MISSING, attack_of, auc, beside, mean, origin, papers, seconds, table
from experiments.documents.distances import retained_and_test, rise

Document = Mapping[str, Any]


def class_smallvgg(document: Document) -> str:
    """Where airplanes go."""
    taken = document["taken for"]
    apart = document["distance to retrained"], document["distance of single networks"]
    names = list(next(iter(taken.values()), {}))
    rows = [
        [
            document["methods"][method]["title"],
            *(f"{100 * shares[c]:.1f}" for c in names),
            *(f"{found[method]:.2f}" if method in found else MISSING for found in apart),
        ]
        for method, shares in taken.items()
    ]
    return "\n\n".join(
        [
            table(["taken for, percent", *names, "distance", "single networks'"], rows),
            simple(document["methods"]),
            *timed_seeds(document["methods"].values()),
            *_of_few(document),
            origin(document),
        ]
    )


def _of_few(document: Document) -> list[str]:
    """The attacks that as many networks allow as there are seeds; nothing where nobody attacked."""
    turned = document["attacks in turns"]
    rows = [
        [row["title"], *with_turns(document, turned, method)]
        for method, row in document["methods"].items()
        if method in document["attacks"].get("methods", {})
    ]
    return [table(["method", *WITH_TURNS], rows), networks_behind([document], [turned])] if rows else []


def simple(methods: Mapping[str, Any], keys: tuple[str, ...] = ("retained test", "retained", "forgotten")) -> str:
    """Some errors and the seconds of each method."""
    rows = [
        [row["title"], count(row), *(mean(row["errors"].get(k)) for k in keys), seconds(row["seconds"])]
        for row in methods.values()
    ]
    return table(["method", "n", *keys, "seconds"], rows)


def gamma(document: Document) -> str:
    """Errors by γ."""
    rows, known = [], document["paper"]["rows"]
    for method, by_gamma in document["methods"].items():
        for value, row in by_gamma.items():
            paper = known.get(value, {}) if method == "pgu" else {}
            rows.append(
                [
                    f"{method}, γ = {value}",
                    count(row),
                    *(beside(mean(row["errors"][k]), papers(paper.get(k))) for k in ("forgotten", "retained", "test")),
                ]
            )
    for name, row in document["references"].items():
        paper = document["paper"]["retrained"] if name == "retrained" else {}
        rows.append(
            [
                name,
                count(row),
                *(beside(mean(row["errors"][k]), papers(paper.get(k))) for k in ("forgotten", "retained", "test")),
            ]
        )
    return "\n\n".join([table(["method", "n", "forgotten", "retained", "test"], rows), origin(document)])


def layers(document: Document) -> str:
    """AUC by how much moves."""
    parts = []
    for key, found in document["networks"].items():
        known, rows = document["paper"][key], []
        for k in range(len(found["moved"]) + 1):
            cells, seeds = [str(k)], list[int]()
            for method in ("pgu", "eu_k"):
                name = "original" if k == 0 else f"{method} last={k}"
                paper = known[method][k] if k < len(known[method]) else None
                error = found["methods"].get(name, {}).get("errors", {}).get("forgotten")
                seeds += [] if error is None else [len(error["values"])]
                cells += [beside(auc(attack_of(found, name, "xgboost")), papers(paper, 3)), mean(error)]
            rows.append([cells[0], span(seeds) if seeds else MISSING, *cells[1:]])
        what = "blocks" if key == "resnet18" else "layers"
        columns = [f"last {what} moved", "n", "PGU: XGBoost attack", "forgotten", "EU-k: XGBoost attack", "forgotten"]
        parts.append(f"**{found['request']['network']}**\n\n{table(columns, rows)}\n\n{basis(found, ('xgboost',))}")
    return "\n\n".join([*parts, origin(document)])


def epochs(document: Document) -> str:
    """By epoch."""
    parts = []
    for found in document["networks"].values():
        rows = []
        before = found["methods"].get("original", {})
        for name, taken in found["epochs"].items():
            row = found["methods"][name]
            lost = [_shown(rise(row, before, key)) for key in retained_and_test(row)]
            attack = auc(attack_of(found, name, "xgboost"))
            when = f"{taken}, where the rule stops" if name in found.get("stopped by the rule", ()) else str(taken)
            rows.append([when, count(row), *lost, mean(row["errors"]["forgotten"]), attack])
        columns = ["epochs", "n", "retained accuracy lost", "test accuracy lost", "forgotten", "XGBoost attack"]
        parts.append(f"**{found['request']['network']}**\n\n{table(columns, rows)}\n\n{basis(found, ('xgboost',))}")
    return "\n\n".join([*parts, origin(document)])


def _shown(value: float | None) -> str:
    return MISSING if value is None else f"{round(value, 2) + 0.0:+.2f}"  # + 0.0: no "-0.00"


ATTACKED = {"retained": "retained", "forgotten": "forgotten", "test": "test", "own": "held-out of their class"}
"""Sets whose errors stand beside the attacks, and their columns."""


def attacks(document: Document) -> str:
    """All attacks, the same with more networks, then what each part is worth."""
    more, columns = document["more networks"], ["method", "n", *ATTACKED.values(), *ATTACKS]
    beyond = [
        "With all unlearned networks there are, the classifier in turns, fitted anew on others than it is asked about:",
        table(columns, _attacked(more)),
        basis(more),
        *_margins(more),
    ]
    return "\n\n".join(
        [
            table(columns, _attacked(document)),
            basis(document),
            *beyond,
            "One thing changed at a time:",
            table(columns, _attacked({**document, "methods": document["changes"]})),
            origin(document),
        ]
    )


def _margins(more: Document) -> list[str]:
    """How margins of forgotten samples differ from retrained networks'; nothing where there are too few networks."""
    found = more["margins"]
    if not found:
        return []
    rows = [
        [
            more["methods"][method]["title"],
            str(one["networks"]),
            *(f"{one[key] + 0.0:+.2f}" for key in ("higher", "higher, hardest quarter")),
            *(f"{one[key]:.2f}" for key in ("spread", "agreement", "truth")),
        ]
        for method, one in found.items()
    ]
    words = (
        "Margins on the forget set beside those of retrained networks: how much higher they are, how much a sample's "
        "changes from network to network (in units of retraining's), and, by Spearman's correlation, how far two "
        "networks agree on who is hard, and how far one agrees with the mean of retrained networks:"
    )
    return [
        words,
        table(["method", "networks", "higher", "on the hardest quarter", "spread", "agreement", "truth"], rows),
    ]


def _attacked(document: Document) -> list[list[str]]:
    """A row for each of a document's methods: errors, then every attack."""
    return [
        [row["title"], count(row), *(mean(row["errors"][key]) for key in ATTACKED), *each_attack(document, name)]
        for name, row in document["methods"].items()
    ]


def incremental_long(document: Document) -> str:
    """Where accuracy drops."""
    rows = []
    for name, run in document["runs"].items():
        first, last = (statistics_of(run["curves"], place) for place in (0, -1))
        after = ", ".join("not within the run" if n is None else str(n) for n in run["dropped after"])
        rows.append(
            [
                name,
                first,
                last,
                str(max(len(c) for c in run["curves"]) - 1),
                after,
                mean_of(run["step seconds"]),
            ]
        )
    columns = [
        "run",
        "accuracy before",
        "at the end",
        "steps",
        f"{document['drop']:.0f} points down after so many a class",
        "seconds a step",
    ]
    return "\n\n".join([table(columns, rows), *timed_steps(document["runs"].values()), origin(document)])


def mean_of(found: Mapping[str, Any] | None) -> str:
    """Without the deviation; seconds that were not timed are missing."""
    return MISSING if found is None else f"{found['mean']:.1f}"


def statistics_of(curves: list[list[float]], place: int) -> str:
    """The mean of all curves at one end."""
    return f"{sum(curve[place] for curve in curves) / len(curves):.2f}"
