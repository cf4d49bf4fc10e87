"""The shell of a page: one file, nothing loaded from anywhere, and a policy that holds the browser to it.

Vega compiles its expressions with ``Function()``, which a policy without ``unsafe-eval`` forbids; its interpreter
(``ast: true``) needs no such thing. So scripts run only if their SHA-256 is in the policy, and nothing connects.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from unweave.report.markup import Markup, join, plain, tag
from unweave.report.vega import CONFIG, Spec, library


def page(title: str, header: Markup, sections: Sequence[tuple[str, str, Markup]], specs: Mapping[str, Spec]) -> str:
    """A whole document.

    Args:
        title: of the window.
        header: what stands above the contents.
        sections: an anchor, a heading and a body of each.
        specs: the charts, by the id of their places.

    Raises:
        ConfigError: the library of charts is not installed.
    """
    style = _own("style.css")
    scripts = [Markup(library()), Markup(_own("page.js"))] if specs else []
    links = join(tag("li", tag("a", heading, href=f"#{anchor}")) for anchor, heading, _ in sections)
    body = join(
        tag("section", tag("h2", heading, id=anchor), inner, aria_labelledby=anchor)
        for anchor, heading, inner in sections
    )
    head = join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, scripts)),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("title", title),
            tag("style", style),
        ]
    )
    notice = "The charts are drawn by scripts, which are off. “Show the numbers” below each of them works without."
    content = tag(
        "body",
        tag("header", header),
        tag("nav", tag("ul", links), aria_label="On this page"),
        tag("main", tag("noscript", tag("p", notice)), body, tag("div", id="tip", hidden="hidden")),
        tag("script", in_script({"config": CONFIG, "specs": specs}), type="application/json", id="charts"),
        join(tag("script", script) for script in scripts),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), content, lang='en')}\n"


def _own(name: str) -> Markup:
    return Markup(files("unweave.report").joinpath(name).read_text("utf-8"))


def _policy(style: str, scripts: Sequence[str]) -> str:
    allowed = " ".join(_source(script) for script in scripts) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_source(style)}; img-src data:; connect-src 'none'; "
        "base-uri 'none'; form-action 'none'"
    )


def _source(text: str) -> str:
    """The name of an inline script or style in a policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def in_script(value: Any) -> Markup:
    """JSON that can stand inside a script element: no ``<`` can end it or open a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def download(value: Any, name: str, label: str) -> Markup:
    """A link that holds the JSON itself."""
    content = base64.b64encode(json.dumps(value, allow_nan=False, indent=1).encode()).decode()
    href = f"data:application/json;base64,{content}"
    return tag("a", label, href=href, download=plain(name), class_="download")
