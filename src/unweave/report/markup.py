"""HTML in which every text is escaped unless it is markup by its type, so that forgetting to escape is impossible."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

VOID = {"meta", "br"}

UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, halves of surrogate pairs, and the overrides that make a text read backwards."""


class Markup(str):
    """A string that is HTML already."""


def plain(text: object) -> str:
    """A text without characters that a page cannot hold or that disturb what is around them."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(text))


def escape(text: object) -> Markup:
    """Markup as it is; anything else as text."""
    return text if isinstance(text, Markup) else Markup(html.escape(plain(text)))


def join(parts: Iterable[object], between: str = "") -> Markup:
    """Parts after each other; None is left out."""
    return Markup(escape(between).join(escape(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. ``class_`` means class, ``aria_label`` means aria-label; None leaves out a child or an attribute."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>" if name in VOID else f"<{name}{written}>{join(children)}</{name}>")
