"""The words around the numbers: how it was tested, how strong that is, what it leaves out, and how to run it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unweave.report.markup import Markup, join, tag
from unweave.report.numbers import flattened
from unweave.report.page import download
from unweave.report.tables import pairs

TIERS = ("T0", "T1", "T2", "T3")

GLOSSARY = (
    (
        "AUC",
        "How often an attacker who gets one forgotten sample and one other picks the right one: 0.5 is a coin toss, "
        "1 is always right.",
    ),
    ("Interval", "The range in which the true value plausibly lies, given how few samples and networks were tested."),
    ("Power", "What a check could have noticed. A check that could notice nothing proves nothing."),
    ("New samples", "Samples that no network was trained on: what “not known” looks like."),
)


def method(result: Mapping[str, Any]) -> Markup:
    """How it was tested, in a few plain sentences, and the words that are needed to read the rest."""
    names = {model["name"] for model in result["models"]}
    sentences = ["A network was asked to forget some of the samples it was trained on."]
    if result["attacks"]:
        sentences.append(
            "This audit plays the part of attackers who try to find traces of them in the network's answers."
        )
    if any("original" in attack for attack in result["attacks"]):
        sentences.append(
            "Each attack is first tried on the original network, where the traces are: an attack that finds nothing "
            "there says nothing anywhere."
        )
    if "retrained" in names:
        sentences.append(
            "Networks that were trained anew without the samples show what complete forgetting looks like; the closer "
            "the unlearned network is to them, the better."
        )
    sentences.append("What counts as a pass was written down before the audit ran.")
    words = join(tag("div", tag("dt", term), tag("dd", text)) for term, text in GLOSSARY)
    return join([tag("p", " ".join(sentences)), tag("dl", words, class_="glossary")])


def strength(tier: Mapping[str, Any]) -> Markup:
    """The tier as a ladder, with what was given and what was missing."""
    reached = TIERS.index(tier["name"])
    steps = [
        tag(
            "li",
            name,
            class_="here" if i == reached else "below" if i < reached else None,
            aria_current="step" if i == reached else None,
        )
        for i, name in enumerate(TIERS)
    ]
    return join(
        [
            tag("ol", *steps, class_="ladder", aria_label="Strength of the audit, weakest first"),
            tag("p", tag("strong", f"{tier['name']}. "), tier["meaning"]),
            tag(
                "div",
                _listed("Used", tier["given"]),
                _listed("Missing for a stronger audit", tier["missing"]),
                class_="two",
            ),
        ]
    )


def _listed(title: str, items: Sequence[str]) -> Markup | None:
    return tag("div", tag("h3", title), bullets(items)) if items else None


def bullets(items: Sequence[str]) -> Markup:
    """A list of sentences."""
    return tag("ul", join(tag("li", item) for item in items), class_="bullets")


def again(result: Mapping[str, Any], name: str) -> Markup:
    """The command, the versions, the settings, and the result itself."""
    thresholds = [(key, "–" if value is None else f"{value:g}") for key, value in result["thresholds"].items()]
    tables = [
        ("Limits written down before the audit", thresholds),
        ("Versions and machine", flattened(result["made_by"])),
        ("Settings", flattened(result["settings"])),
    ]
    return join(
        [
            tag("p", "This command does the audit again:"),
            tag("pre", tag("code", result["rerun"]), tabindex=0, role="region", aria_label="Command"),
            tag(
                "p",
                download(result, name, "Download the result as JSON"),
                " ",
                tag("small", "It is part of this page."),
            ),
            *(
                tag("details", tag("summary", title), pairs(rows, title), class_="on-paper")
                for title, rows in tables
                if [row for row in rows if row[0]]
            ),
        ]
    )
