"""Parts of a page that are made from results: each stands between two markers of its own."""

from __future__ import annotations

import re


def replaced(page: str, start: str, end: str, block: str) -> str:
    """The page with ``block``, which has its markers, in place of all from ``start`` to ``end``."""
    return re.sub(re.escape(start) + ".*?" + re.escape(end), lambda _: block, page, flags=re.DOTALL)
