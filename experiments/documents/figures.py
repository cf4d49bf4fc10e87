"""The figures as Vega-Lite charts, drawn as SVG from the JSON documents alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.documents.distances import retained_and_test, rise

Document = Mapping[str, Any]
Rows = list[dict[str, Any]]
Spec = dict[str, Any]

COLOURS = {
    "original": "#9a6700",
    "retrained": "#57606a",
    "pgu": "#cf222e",
    "paper": "#8250df",
    "match": "#0969da",
    "solved": "#0550ae",
    "unweave": "#0969da",
    "scrub": "#1a7f37",
    "eu_k": "#bf3989",
    "ntk": "#953800",
    "unlearned": "#cf222e",
}
CONFIG = {"background": "white", "view": {"stroke": None}, "axis": {"grid": False, "labelFontSize": 11}}
SPARE = ("#0969da", "#cf222e", "#1a7f37", "#8250df")
PAPERS = "the paper's "
"""Before a method's name: the paper's own curve, in the same colour, dashed."""
NAMED = {"odds": "unweave"}
"""Methods whose key in a document says less than this."""
SHOWN = (*COLOURS, *NAMED)
"""Methods in a figure of many: the paper's and ours."""


def line(
    rows: Rows, x: str, y: str, title: str, *, step: bool = False, zero: bool = False, points: bool = False
) -> Spec:
    """Lines by ``who``; ``x`` and ``y`` are names of fields and titles of axes."""
    names = list(dict.fromkeys(row["who"] for row in rows))
    palette = [COLOURS.get(name.removeprefix(PAPERS), SPARE[i % len(SPARE)]) for i, name in enumerate(names)]
    dashes = [[4, 3] if name.startswith("the paper") else [1, 0] for name in names]
    mark: Spec = {"type": "line", "strokeWidth": 2, "point": points}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": title,
        "width": 300,
        "height": 190,
        "config": CONFIG,
        "data": {"values": rows},
        "mark": mark | ({"interpolate": "step-after"} if step else {}),
        "encoding": {
            "x": {"field": x, "type": "quantitative", "scale": {"zero": False, "nice": False}},
            "y": {"field": y, "type": "quantitative", "scale": {"zero": zero}},
            "color": {"field": "who", "type": "nominal", "title": None, "scale": {"domain": names, "range": palette}},
            "strokeDash": {"field": "who", "title": None, "scale": {"domain": names, "range": dashes}},
        },
    }


def entropy(found: Document, title: str, shown: Iterable[str] = SHOWN) -> Spec | None:
    """Histograms of log10 entropy on the forget set."""
    shares = {name: values for name, values in found.get("shares", {}).items() if name in set(shown)}
    rows = [
        {"who": NAMED.get(name, name), "log10 entropy": edge, "share": share}
        for name, values in shares.items()
        for edge, share in zip(found["edges"], [*values, 0.0], strict=True)
    ]
    return line(rows, "log10 entropy", "share", title, step=True) if rows else None


def roc(attacks: Document, title: str, attack: str = "xgboost", shown: Iterable[str] = SHOWN) -> Spec | None:
    """ROC curves of one attack."""
    methods = {name: about[attack] for name, about in attacks.get("methods", {}).items() if attack in about}
    rows = [
        {"who": NAMED.get(name, name), "false alarms": fpr, "found": tpr}
        for name, about in methods.items()
        if name in set(shown)
        for fpr, tpr in zip(about["roc"]["fpr"], about["roc"]["tpr"], strict=True)
    ]
    return line(rows, "false alarms", "found", title) if rows else None


def table1(document: Document) -> dict[str, Spec | None]:
    """Figures 1 and 2, and the curve of the attack that the paper does not have."""
    return {
        "table1-entropy": entropy(document["entropy"], "Entropy on the forget set"),
        "table1-roc": roc(document["attacks"], "The paper's attack"),
        "table1-u-lira": roc(document["attacks"], "U-LiRA", "u-lira"),
    }


def table2(document: Document) -> dict[str, Spec | None]:
    """Entropy for each number of classes, ROC for the first."""
    (_, first), *more = document["requests"].items()
    others = {
        f"table2-entropy-{number}": entropy(request["entropy"], f"Entropy on {number} forgotten classes")
        for number, request in more
    }
    return {
        "table2-entropy": entropy(first["entropy"], "Entropy on the forgotten classes"),
        **others,
        "table2-roc": roc(document["attacks"], "The paper's attack"),
    }


def table3(document: Document) -> dict[str, Spec | None]:
    """Entropy after every step, ROC after the last."""
    drawn = {
        f"table3-entropy-{i}": entropy(step["entropy"], f"Entropy after step {i}")
        for i, step in enumerate(document["steps"], start=1)
    }
    return {**drawn, "table3-roc": roc(document["attacks"], "The paper's attack after the last step")}


def class_smallvgg(document: Document) -> dict[str, Spec | None]:
    """Where airplanes go, as bars."""
    rows = [
        {"who": NAMED.get(who, who), "taken for": name, "share": share}
        for who, shares in document["taken for"].items()
        if who in SHOWN and who != "original"
        for name, share in shares.items()
    ]
    if not rows:
        return {"class-smallvgg": None}
    names = list(dict.fromkeys(row["who"] for row in rows))
    spec = line(rows, "share", "share", "What forgotten airplanes are taken for")
    spec["mark"] = "bar"
    spec["width"] = 420
    spec["encoding"] = {
        "x": {"field": "taken for", "type": "nominal", "sort": None, "title": None},
        "xOffset": {"field": "who", "sort": names},
        "y": {"field": "share", "type": "quantitative", "axis": {"format": "%"}},
        "color": spec["encoding"]["color"],
    }
    return {"class-smallvgg": spec}


def gamma(document: Document) -> dict[str, Spec | None]:
    """Errors by γ."""
    rows = [
        {"who": method, "gamma": float(value), "error": row["errors"]["forgotten"]["mean"]}
        for method, found in document["methods"].items()
        for value, row in found.items()
    ]
    rows += [
        {"who": "the paper's pgu", "gamma": float(v), "error": row["forgotten"]}
        for v, row in document["paper"]["rows"].items()
    ]
    return {"gamma": line(rows, "gamma", "error", "Error on the forget set, percent", points=True, zero=True)}


def layers(document: Document) -> dict[str, Spec | None]:
    """AUC by how much moves, ours and the paper's."""
    return {f"layers-{key}": _moved(found, document["paper"][key], key) for key, found in document["networks"].items()}


def _moved(found: Document, paper: Document, key: str) -> Spec | None:
    rows: Rows = []
    attacks = found["attacks"].get("methods", {})
    for method in ("pgu", "eu_k"):
        for k in range(len(found["moved"]) + 1):
            about = attacks.get("original" if k == 0 else f"{method} last={k}", {}).get("xgboost")
            if about:
                rows.append({"who": method, "moved": k, "AUC": about["auc"]["value"]})
        rows += [{"who": PAPERS + method, "moved": k, "AUC": value} for k, value in enumerate(paper[method])]
    return line(rows, "moved", "AUC", f"AUC by layers or blocks moved, {key}", points=True)


def epochs(document: Document) -> dict[str, Spec | None]:
    """AUC and accuracy lost by epoch, and the attacker's scores at some of them."""
    drawn: dict[str, Spec | None] = {}
    for key, found in document["networks"].items():
        attacks = found["attacks"].get("methods", {})
        rows = [
            {"who": "pgu", "epochs": taken, "AUC": attacks[name]["xgboost"]["auc"]["value"]}
            for name, taken in found["epochs"].items()
            if "xgboost" in attacks.get(name, {})
        ]
        drawn[f"epochs-{key}"] = line(rows, "epochs", "AUC", "AUC of the paper's attack", points=True) if rows else None
        drawn[f"epochs-{key}-lost"] = _lost(found)
        moments = [papers[key] for papers in document["paper"].values() if isinstance(papers, dict) and key in papers]
        drawn[f"epochs-{key}-scores"] = _scores(found, moments)
    return drawn


def _lost(found: Document) -> Spec | None:
    """Accuracy lost by epoch, on retained and on test samples."""
    methods = found["methods"]
    rows = [
        {"who": which, "epochs": taken, "points": rise(methods[name], methods.get("original", {}), which)}
        for name, taken in found["epochs"].items()
        for which in retained_and_test(methods[name])
    ]
    rows = [row for row in rows if row["points"] is not None]
    return line(rows, "epochs", "points", "Accuracy lost, points", points=True, zero=True) if rows else None


def _scores(found: Document, papers: Sequence[int]) -> Spec | None:
    """What the attacker thinks of unlearned networks and of retrained ones, side by side at some moments.

    At first, where it sees least, where the rule stops, at last, and at the paper's moments: after so many epochs of
    the authors' schedule, whose first takes no step.
    """
    seen, taken = found["attacks"].get("methods", {}), found["epochs"]
    scored = [name for name in found["attacker's scores"] if "xgboost" in seen.get(name, {})]
    if not scored:
        return None
    blind = min(scored, key=lambda name: abs(seen[name]["xgboost"]["auc"]["value"] - 0.5))
    shown = {scored[0], blind, scored[-1], *found.get("stopped by the rule", ())}
    shown |= {name for name in scored if taken[name] + 1 in papers}
    rows = [
        {"who": who, "log-odds of member": edge, "share": share, "when": _when(found, name)}
        for name in scored
        if name in shown
        for who, key in (("unlearned", "positives"), ("retrained", "negatives"))
        for edge, share in _bars(found["attacker's scores"][name], key)
    ]
    spec = line(rows, "log-odds of member", "share", "The attacker's scores", step=True) | {"width": 170}
    in_order = list(dict.fromkeys(row["when"] for row in rows))
    spec["encoding"]["column"] = {"field": "when", "type": "nominal", "sort": in_order, "title": None}
    return spec


def _when(found: Document, name: str) -> str:
    taken = found["epochs"][name]
    told = f"after {taken} epochs" if taken else "before"
    return f"{told}, the rule's stop" if name in found.get("stopped by the rule", ()) else told


def _bars(histogram: Document, key: str) -> Iterable[tuple[float, float]]:
    return zip(histogram["edges"], [*histogram[key], 0.0], strict=True)


def incremental_long(document: Document) -> dict[str, Spec | None]:
    """Test accuracy over samples forgotten, for each network: the mean over seeds as far as all of them go."""
    rows: dict[str, Rows] = {}
    for name, run in document["runs"].items():
        network, _, who = name.split(", ")
        rows.setdefault(network.partition("-")[0], []).extend(
            {
                "who": who,
                "in steps of": str(run["per class"]),
                "forgotten a class": step * run["per class"],
                "accuracy": mean,
            }
            for step, mean in enumerate(sum(values) / len(values) for values in zip(*run["curves"], strict=False))
        )
    return {f"incremental-long-{network}": _accuracy(found, network) for network, found in rows.items()}


def _accuracy(rows: Rows, network: str) -> Spec:
    spec = line(rows, "forgotten a class", "accuracy", f"Test accuracy, percent, {network}")
    sizes = list(dict.fromkeys(row["in steps of"] for row in rows))
    dashes = {"domain": sizes, "range": [[1, 0], [6, 3], [2, 2]][: len(sizes)]}
    spec["encoding"]["strokeDash"] = {"field": "in steps of", "type": "nominal", "scale": dashes}
    return spec


def attacks(document: Document) -> dict[str, Spec | None]:
    """RMIA's curves."""
    return {"attacks-rmia": roc(document["attacks"], "RMIA", "rmia")}


FIGURES: dict[str, Callable[[Document], dict[str, Spec | None]]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "class-smallvgg": class_smallvgg,
    "gamma": gamma,
    "layers": layers,
    "epochs": epochs,
    "attacks": attacks,
    "incremental-long": incremental_long,
}


def drawn_from(name: str, document: Document) -> dict[str, Spec]:
    """The charts of a result that have something to show, by the name of their file."""
    found = FIGURES[name](document) if name in FIGURES else {}
    return {key: spec for key, spec in found.items() if spec is not None}


def write_svg(specs: Mapping[str, Spec], folder: Path) -> Sequence[Path]:
    """Draw them; needs vl-convert-python (the extra ``report``)."""
    import vl_convert

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, spec in specs.items():
        paths.append(folder / f"{name}.svg")
        paths[-1].write_text(vl_convert.vegalite_to_svg(spec) + "\n")
    return paths
