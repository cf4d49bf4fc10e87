"""Several audits side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unweave.errors import ConfigError, DataError
from unweave.report.charts.attacks import auc_dots, roc, roc_table
from unweave.report.document import problem
from unweave.report.figures import Canvas, Figure, Table
from unweave.report.looks import PARTS, Look, legend, look_of_run, swatch
from unweave.report.markup import Markup, escape, join, plain, tag
from unweave.report.method import bullets
from unweave.report.numbers import EN_DASH, count, flattened, interval, moment, number, seconds, times
from unweave.report.page import download, page
from unweave.report.tables import Row, error_lines, side_by_side, small
from unweave.report.verdict import badge

Runs = Mapping[str, Mapping[str, Any]]
"""Results by the name of the run."""


def render_comparison(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """One HTML page that puts the results of several audits side by side.

    Args:
        results: at least two.
        names: what to call each of them, all different.

    Raises:
        DataError: a result is not what ``schema.json`` says.
        ConfigError: too few results, names that do not fit them; or the libraries for reports are not installed.
    """
    _check(results, names)
    runs = dict(zip(map(plain, names), results, strict=True))
    looks = {name: look_of_run(i) for i, name in enumerate(runs)}
    canvas = Canvas()
    sections: list[tuple[str, str, Markup | None]] = [
        ("runs", "The runs", join([_runs(runs, looks), _aucs(runs)])),
        ("attacks", "What attackers can tell", _attacks(canvas, runs, looks)),
        ("verdicts", "The verdicts in words", _verdicts(runs)),
        ("differences", "What differs in the settings", _differences(runs)),
        ("care", "Read with care", bullets(_cautions(runs))),
        ("again", "Run them again", _again(runs)),
    ]
    title = f"{len(runs)} audits side by side"
    header = join([tag("p", "Unlearning audit", class_="kicker"), tag("h1", title)])
    there = [(anchor, heading, body) for anchor, heading, body in sections if body is not None]
    return page(title, header, there, canvas.specs)


def _check(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    if len(results) < 2:
        raise ConfigError(f"A comparison of {count(len(results), 'result')}. Supported: two or more.")
    if len(names) != len(results) or len({plain(name) for name in names}) != len(names):
        raise ConfigError(
            f"Invalid names: {list(names)!r:.200}. Supported: a different one for each of {len(results)} results."
        )
    for name, result in zip(names, results, strict=True):
        wrong = problem(result)
        if wrong is not None:
            raise DataError(f"Invalid result of an audit, {name!r}: {wrong}")


def _model(result: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((model for model in result["models"] if model["name"] == name), {})


def _runs(runs: Runs, looks: Mapping[str, Look]) -> Markup:
    parts = [part for part in PARTS if any(part in _model(run, "unlearned").get("errors", {}) for run in runs.values())]
    rows: list[Row] = []
    for name, run in runs.items():
        errors = _model(run, "unlearned").get("errors", {})
        cells = [[badge(run["verdict"]["outcome"]), small(f"audit of strength {run['tier']['name']}")]]
        cells += [error_lines(errors.get(part), counted=True) for part in parts]
        who = [swatch(looks[name], "point"), escape(name), small(run["request"]["title"])]
        rows.append((who, [*cells, _time(run)], None))
    head = ["Run", "Verdict", *(PARTS[part] for part in parts), "Time taken"]
    return side_by_side("Percent wrong of the unlearned networks, with intervals", head, rows)


def _aucs(runs: Runs) -> Markup | None:
    """Every attack on every unlearned network, in numbers."""
    titles = _titles(runs)
    rows = []
    for name, run in runs.items():
        found = {attack["name"]: attack["unlearned"]["auc"] for attack in run["attacks"]}
        rows.append([name, *(interval(found[key], "auc") if key in found else EN_DASH for key in titles)])
    return Table(["Run", *titles.values()], rows).html("AUC of each attack, with intervals") if titles else None


def _titles(runs: Runs) -> dict[str, str]:
    """Attacks by name, with the title that the first run gives them."""
    titles: dict[str, str] = {}
    for run in runs.values():
        for attack in run["attacks"]:
            titles.setdefault(attack["name"], attack["title"])
    return titles


def _time(run: Mapping[str, Any]) -> list[Markup]:
    taken, retraining = _model(run, "unlearned").get("seconds"), _model(run, "retrained").get("seconds")
    if taken is None:
        return [escape(EN_DASH)]
    shown = [escape(seconds(taken))]
    return [*shown, small(times(taken / retraining))] if retraining and taken > 0 else shown


def _attacks(canvas: Canvas, runs: Runs, looks: Mapping[str, Look]) -> Markup | None:
    """By the name of the attack, as far as runs have it."""
    drawn = [_attack(canvas, title, _found(runs, name), looks) for name, title in _titles(runs).items()]
    return join(drawn) if drawn else None


def _found(runs: Runs, name: str) -> dict[str, Mapping[str, Any]]:
    found = {run: {attack["name"]: attack for attack in result["attacks"]} for run, result in runs.items()}
    return {run: attacks[name]["unlearned"] for run, attacks in found.items() if name in attacks}


def _attack(canvas: Canvas, title: str, found: Mapping[str, Mapping[str, Any]], looks: Mapping[str, Look]) -> Markup:
    there = {name: looks[name] for name in found}
    rows = [
        {"run": name, "who": name, **one["auc"], "text": interval(one["auc"], "auc")} for name, one in found.items()
    ]
    table = Table(
        ["Run", "AUC", "Smallest noticeable AUC", "Samples"],
        [
            [
                name,
                interval(one["auc"], "auc"),
                number(one["detectable_auc"], "auc"),
                " against ".join(f"{n:,}" for n in one["samples"]),
            ]
            for name, one in found.items()
        ],
    )
    caption = "The attacker's AUC on each unlearned network; at 0.5, the dashed line, there is nothing to tell."
    dots = Figure("AUC", caption, [("", auc_dots(f"AUC: {title}", rows, "run", there, offset=False))], table)
    curves = {name: one["roc"] for name, one in found.items() if one["roc"]["fpr"]}
    figures = [canvas.add(dots, level=4)]
    if curves:
        caption = "Forgotten samples found, against false alarms. On the diagonal, the attacker guesses."
        spec = roc(title, curves, there, "run")
        lines = legend(there, curves, "line")
        figures.append(canvas.add(Figure("ROC curves", caption, [("", spec)], roc_table(curves), lines), level=4))
    return tag("article", tag("h3", title), tag("div", *figures, class_="two"))


def _verdicts(runs: Runs) -> Markup:
    items = [
        tag("li", tag("h3", name, badge(run["verdict"]["outcome"])), tag("p", run["verdict"]["sentence"]))
        for name, run in runs.items()
    ]
    return tag("ol", join(items), class_="checks")


def _differences(runs: Runs) -> Markup | None:
    """Settings, limits and versions that are not the same everywhere."""
    listed = {
        name: dict(flattened({"settings": run["settings"], "limits": run["thresholds"], "made by": run["made_by"]}))
        for name, run in runs.items()
    }
    keys = dict.fromkeys(key for settings in listed.values() for key in settings)
    rows = [[key, *(settings.get(key, EN_DASH) for settings in listed.values())] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table(["Setting", *runs], rows).html("Settings that differ") if rows else None


def _cautions(runs: Runs) -> list[str]:
    found = [
        "Each verdict holds for its own run. Of many runs, the best-looking one is partly lucky: intervals do not know "
        "that it was chosen.",
        "Runs whose intervals overlap have not been shown to differ.",
    ]
    if len({run["tier"]["name"] for run in runs.values()}) > 1:
        found.append("These audits are of different strength: a pass in a weaker one says less.")
    if len({(run["request"]["title"], run["request"]["samples"]) for run in runs.values()}) > 1:
        found.append("These are different requests: some are harder than others, whatever the method.")
    if len({tuple(sorted(run["thresholds"].items())) for run in runs.values()}) > 1:
        found.append("The limits differ: the same numbers may pass in one run and fail in another.")
    return found


def _again(runs: Runs) -> Markup:
    items = [
        tag(
            "li",
            tag("h3", name),
            tag("p", f"{moment(run['created'])}"),
            tag("pre", tag("code", run["rerun"]), tabindex=0, role="region", aria_label=f"Command of {name}"),
            tag("p", download(run, f"{name}.json", "Download the result as JSON")),
        )
        for name, run in runs.items()
    ]
    return tag("ol", join(items), class_="checks")
