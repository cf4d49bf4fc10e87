"""The top of the page: the verdict, and the checks it rests on. Colour, icon and word always say the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from unweave.report.looks import OUTCOMES
from unweave.report.markup import Markup, join, tag
from unweave.report.numbers import allowed, count, interval

ICONS = {
    "pass": ("M12 1.5a10.5 10.5 0 1 0 0 21a10.5 10.5 0 1 0 0-21z", "M7 12.5l3.4 3.4l6.6-7.4"),
    "fail": ("M7.6 1.5h8.8l6.1 6.1v8.8l-6.1 6.1h-8.8l-6.1-6.1v-8.8z", "M8 8l8 8M16 8l-8 8"),
    "inconclusive": ("M12 1.2l11 20.3h-22z", "M12 9.2v5.4M12 18v.2"),
}

KEY = (
    "The dot is what was measured, the line through it the range in which the true value plausibly lies, and the "
    "shaded band what was allowed."
)

NOT_A_PASS = "Inconclusive is not a pass: nothing has been shown either way."


def icon(outcome: str) -> Markup:
    """A disc, an octagon or a triangle, told apart without their colour."""
    shape, sign = ICONS[outcome]
    return tag(
        "svg",
        tag("path", d=shape, class_="shape"),
        tag("path", d=sign, class_="sign"),
        viewBox="0 0 24 24",
        class_="icon",
        aria_hidden="true",
    )


def badge(outcome: str) -> Markup:
    """Icon and word."""
    return tag("span", icon(outcome), OUTCOMES[outcome], class_=f"badge {outcome}")


def banner(verdict: Mapping[str, Any]) -> Markup:
    """The verdict in one sentence, and how the checks went."""
    outcome = verdict["outcome"]
    tally = Counter(check["outcome"] for check in verdict["checks"])
    words = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive"}
    counts = ", ".join(f"{tally[name]} {word}" for name, word in words.items() if tally[name])
    total = len(verdict["checks"])
    return tag(
        "section",
        tag("h2", icon(outcome), OUTCOMES[outcome], id="verdict"),
        tag("p", verdict["sentence"], class_="sentence"),
        tag("p", NOT_A_PASS, class_="tally") if outcome == "inconclusive" else None,
        tag("p", tag("a", f"{count(total, 'check')}: {counts}", href="#checks"), class_="tally"),
        class_=f"verdict {outcome}",
        aria_labelledby="verdict",
    )


def checks(found: Sequence[Mapping[str, Any]]) -> Markup:
    """A list of checks with what was measured, what was allowed, and what could have been detected."""
    drawn = any("measured" in check for check in found)
    items = join(tag("li", *_check(check)) for check in found)
    return join([tag("p", KEY, class_="lead") if drawn else None, tag("ol", items, class_="checks")])


def _check(check: Mapping[str, Any]) -> list[Markup | None]:
    unit, measured, bounds = check.get("unit"), check.get("measured"), check.get("allowed")
    facts = [
        ("Measured", interval(measured, unit) if measured else None),
        ("Allowed", allowed(bounds, unit) if bounds else None),
        ("Power", check.get("power")),
    ]
    shown = [(term, text) for term, text in facts if text]
    return [
        tag("h3", check["name"], badge(check["outcome"])),
        tag("p", check["sentence"]),
        range_bar(measured, bounds, unit, check["outcome"]) if measured else None,
        tag("dl", join(tag("div", tag("dt", term), tag("dd", text)) for term, text in shown)) if shown else None,
    ]


def earlier(found: Sequence[Mapping[str, Any]]) -> Markup:
    """Earlier requests, tested again, in the same form as the checks."""
    items = []
    for one in found:
        facts = [("Attacker's AUC now", interval(one["auc"], "auc")), ("Samples", f"{one['samples']:,}")]
        items.append(
            tag(
                "li",
                tag("h3", one["title"], badge(one["outcome"])),
                tag("p", one["sentence"]),
                range_bar(one["auc"], None, "auc", one["outcome"]),
                tag("dl", join(tag("div", tag("dt", term), tag("dd", text)) for term, text in facts)),
            )
        )
    return tag("ol", join(items), class_="checks")


def range_bar(
    measured: Mapping[str, float], bounds: Sequence[float | None] | None, unit: str | None, outcome: str
) -> Markup:
    """The measured value and its interval over the band of what is allowed; the numbers stand beside it as text."""
    low, high = bounds or (None, None)
    ends = [measured["low"], measured["high"], *(bound for bound in (low, high) if bound is not None)]
    ends += [0.4, 1.0] if unit == "auc" else [0.0]
    left, right = min(ends), max(ends)
    margin = 0.0 if unit == "auc" else 0.12 * (right - left or 1.0)
    left, right = left - margin, right + margin

    def at(value: float) -> float:
        return round(8 + 304 * (value - left) / (right - left or 1.0), 1)

    band_from, band_to = at(left if low is None else low), at(right if high is None else high)
    band = tag("rect", x=band_from, y=4, width=max(band_to - band_from, 1.5), height=16, rx=3, class_="allowed")
    a, b, value = at(measured["low"]), at(measured["high"]), at(measured["value"])
    return tag(
        "svg",
        tag("path", d="M8 12h304", class_="track"),
        band if bounds else None,
        tag("path", d=f"M{a} 12H{b}", class_="interval"),
        tag("path", d=f"M{a} 8v8M{b} 8v8", class_="ends"),
        tag("circle", cx=value, cy=12, r=5, class_="value"),
        viewBox="0 0 320 24",
        class_=f"range {outcome}",
        aria_hidden="true",
    )
