"""The report on one audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from unweave.report.charts import attacks, classes, course, entropies, layers
from unweave.report.document import require_valid
from unweave.report.figures import Canvas, Figure
from unweave.report.files import place, require_place
from unweave.report.markup import Markup, join, tag
from unweave.report.method import again, bullets, method, strength
from unweave.report.numbers import count, moment
from unweave.report.page import page
from unweave.report.tables import distances, networks
from unweave.report.verdict import banner, checks, earlier

TASKS = {"samples": "", "classes": ", whole classes", "poison": " with wrong labels"}


def render(result: Mapping[str, Any]) -> str:
    """One HTML page, complete in itself, from the result of one audit.

    Raises:
        DataError: it is not what ``schema.json`` says.
        ConfigError: the libraries for reports are not installed.
    """
    require_valid(result)
    canvas = Canvas()
    title = f"Request to forget: {result['request']['title']}"
    sections: list[tuple[str, str, Markup | None]] = [
        ("networks", "The networks compared", networks(result["models"], result["request"]["task"])),
        ("checks", "The checks", checks(result["verdict"]["checks"])),
        ("attacks", "What attackers can tell", _attacks(canvas, result)),
        ("traces", "Other traces", _traces(canvas, result)),
        ("classes", "Single classes", _classes(canvas, result)),
        ("work", "How the network was changed", _work(canvas, result)),
        ("earlier", "Earlier requests", _earlier(result)),
        ("method", "How this was tested", method(result)),
        ("strength", "How strong this audit is", strength(result["tier"])),
        ("not-covered", "What is not covered", _not_covered(result)),
        ("again", "Run it again", again(result, "result.json")),
    ]
    there = [(anchor, heading, body) for anchor, heading, body in sections if body is not None]
    return page(title, _header(title, result), there, canvas.specs)


def write(result: Mapping[str, Any], path: str | PathLike[str], *, force: bool = False) -> None:
    """Render, and put the page in its place: all of it, or nothing.

    Raises:
        DataError, ConfigError: as :func:`render`; ConfigError also for a place that is taken, or no file.
        StoreError: the place cannot be written.
    """
    require_place(path, force=force)
    place(render(result), path)


def _header(title: str, result: Mapping[str, Any]) -> Markup:
    request, tier = result["request"], result["tier"]
    facts: list[tuple[str, object]] = [
        ("To be forgotten", f"{count(request['samples'], 'sample')}{TASKS[request['task']]}"),
        ("Classes", _few(request.get("classes", ()))),
        ("Method", request.get("method")),
        ("Strength of the audit", tag("a", f"{tier['name']} of T0–T3", href="#strength")),
        ("Date", moment(result["created"])),
    ]
    shown = join(tag("div", tag("dt", term), tag("dd", text)) for term, text in facts if text)
    return join(
        [
            tag("p", "Unlearning audit", class_="kicker"),
            tag("h1", title),
            banner(result["verdict"]),
            tag("dl", shown, class_="facts"),
        ]
    )


def _few(names: Sequence[str]) -> str:
    """Names as long as they are few; the rest is in the settings."""
    return ", ".join(names) if len(names) <= 5 else f"{', '.join(names[:4])} and {len(names) - 4} more"


def _figures(canvas: Canvas, *figures: Figure | None) -> Markup | None:
    drawn = [canvas.add(figure) for figure in figures if figure is not None]
    return join(drawn) if drawn else None


def _attacks(canvas: Canvas, result: Mapping[str, Any]) -> Markup | None:
    overview = _figures(canvas, attacks.overview(result["attacks"]))
    if overview is None:
        return None
    return join([overview, *(_attack(canvas, attack) for attack in result["attacks"])])


def _attack(canvas: Canvas, attack: Mapping[str, Any]) -> Markup:
    rests = "The verdict rests on this attack." if attack.get("judged") else None
    return tag(
        "article",
        tag("h3", attack["title"]),
        tag("p", attack["explanation"], " ", tag("strong", rests) if rests else None),
        tag("div", *(canvas.add(figure, level=4) for figure in attacks.attack_figures(attack)), class_="two"),
        tag("details", tag("summary", "All rates of this attack"), attacks.facts(attack)),
    )


def _traces(canvas: Canvas, result: Mapping[str, Any]) -> Markup | None:
    figures = _figures(canvas, entropies.entropies(result["entropies"]))
    found = result["distances"]
    table = join([tag("h3", "Distances"), distances(found)]) if found else None
    return join([figures, table]) if figures or table else None


def _classes(canvas: Canvas, result: Mapping[str, Any]) -> Markup | None:
    return _figures(
        canvas, classes.errors_by_class(result["models"]), classes.destinations(result.get("destinations", []))
    )


def _work(canvas: Canvas, result: Mapping[str, Any]) -> Markup | None:
    return _figures(
        canvas,
        course.course(result.get("epochs", [])),
        layers.protected(result.get("layers", [])),
        layers.leakage(result.get("leakage", [])),
    )


def _earlier(result: Mapping[str, Any]) -> Markup | None:
    return earlier(result["earlier"]) if result.get("earlier") else None


def _not_covered(result: Mapping[str, Any]) -> Markup | None:
    return bullets(result["not_covered"]) if result["not_covered"] else None
