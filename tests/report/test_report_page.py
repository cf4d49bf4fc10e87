"""What is on the page, and what cannot get onto it."""

from __future__ import annotations

import base64
import copy
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
import sample_audit

from unweave import report
from unweave.errors import ConfigError

VOID = {"meta", "br"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--\x00\u202e\ud800${alert(3)}"


class Page(HTMLParser):
    """Elements, visible text and embedded data of a page; complains about elements that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.text.append(data)

    def anchors(self) -> set[str]:
        return {str(attrs["id"]) for tag, attrs in self.elements if tag == "h2"}

    def words(self) -> str:
        return " ".join(self.text)


ALWAYS = {"verdict", "checks", "method", "strength", "again"}

PARTS: list[tuple[str, Any, str]] = [
    ("attacks", [], "attacks"),
    ("earlier", None, "earlier"),
    ("not_covered", [], "not-covered"),
]

FIGURES = [
    ("entropies", [], "How sure each network is"),
    ("distances", [], "Distances"),
    ("destinations", None, "Where they go now"),
    ("epochs", None, "How it went"),
    ("layers", None, "What was protected"),
    ("leakage", None, "What the stored sums reveal"),
    ("attacks", [], "How well each attack works"),
    ("attacks", [], "ROC curves"),
    ("attacks", [], "What the attacker sees"),
]


def without(key: str, empty: Any) -> dict[str, Any]:
    result = sample_audit.full()
    if empty is None:
        del result[key]
    else:
        result[key] = empty
    return result


def test_a_minimal_page_has_only_what_is_always_there() -> None:
    page = Page(report.render(sample_audit.minimal()))
    assert page.anchors() == ALWAYS
    assert "Inconclusive is not a pass" in page.words()


def test_a_full_page_has_everything(full_page: str) -> None:
    page = Page(full_page)
    assert page.anchors() == ALWAYS | {"networks", "attacks", "traces", "classes", "work", "earlier", "not-covered"}
    words = page.words()
    for text in ("35.0%", "28.7–41.8%", "n = 200", "15× faster", "at most 0.600", "T2 of T0–T3", "1 March 2026"):
        assert text in words, text


@pytest.mark.parametrize("key, empty, anchor", PARTS)
def test_a_section_is_there_only_with_its_data(full_page: str, key: str, empty: Any, anchor: str) -> None:
    assert anchor in Page(full_page).anchors()
    assert anchor not in Page(report.render(without(key, empty))).anchors()


@pytest.mark.parametrize("key, empty, title", FIGURES)
def test_a_figure_is_there_only_with_its_data(full_page: str, key: str, empty: Any, title: str) -> None:
    assert f">{title}<" in full_page
    assert f">{title}<" not in report.render(without(key, empty))


def test_errors_by_class_need_the_classes(full_page: str) -> None:
    result = sample_audit.full()
    for model in result["models"]:
        del model["by_class"]
    assert ">Error by class<" in full_page
    assert ">Error by class<" not in report.render(result)


def test_only_the_unlearned_network_is_enough() -> None:
    result = sample_audit.full()
    result["models"] = [model for model in result["models"] if model["name"] == "unlearned"]
    for one in [*result["attacks"], *result["distances"]]:
        for name in ("original", "retrained"):
            one.pop(name, None)
    for key in ("entropies", "destinations"):
        result[key] = [one for one in result[key] if one["model"] == "unlearned"]
    words = Page(report.render(result)).words()
    assert "wrong about as often as on new samples." in words
    assert "Retrained" not in words
    assert "faster" not in words


@pytest.mark.parametrize("outcome, word", [("pass", "Pass"), ("fail", "Fail"), ("inconclusive", "Inconclusive")])
def test_the_verdict_has_a_word_an_icon_and_a_colour(outcome: str, word: str) -> None:
    text = report.render(sample_audit.full(outcome))
    top = text[text.index('<section class="verdict') : text.index("</section>")]
    assert f'class="verdict {outcome}"' in top
    assert f"</svg>{word}</h2>" in top
    assert sample_audit.SENTENCES[outcome] in top


def test_every_chart_has_a_sentence_a_place_and_a_table(full_page: str) -> None:
    figures = re.findall(r"<figure>.*?</figure>", full_page, re.DOTALL)
    charts = json.loads(next(data for data in Page(full_page).scripts if data.startswith('{"config"')))["specs"]
    assert len(figures) == 15  # overview, 4 × 2 of attacks, entropies, 2 of classes, 3 of the work
    for figure in figures:
        assert re.search(r"<figcaption>[^<]{20,}</figcaption>", figure)
        assert re.search(r"<details><summary>Show the numbers</summary>.*<table>.*<td>", figure, re.DOTALL)
    places = re.findall(r'<div id="(chart-\d+)" class="chart"></div>', full_page)
    assert sorted(places) == sorted(charts)
    assert all(spec["description"] and spec["width"] == "container" for spec in charts.values())


def test_the_result_can_be_taken_out_of_the_page_again(full_page: str) -> None:
    link = next(attrs for tag, attrs in Page(full_page).elements if tag == "a" and "download" in attrs)
    kind, _, content = str(link["href"]).partition(",")
    assert kind == "data:application/json;base64"
    assert json.loads(base64.b64decode(content)) == sample_audit.full()


def test_the_page_is_small_and_loads_nothing(full_page: str, comparison_page: str) -> None:
    for page in (full_page, comparison_page):
        assert len(page.encode()) < 3_000_000
        names = {name for _, attrs in Page(page).elements for name in attrs}
        assert "src" not in names
        assert not any(name.startswith("on") or name == "style" for name in names)
        for tag, attrs in Page(page).elements:
            assert tag not in ("link", "iframe", "img", "object")
            assert str(attrs.get("href", "#")).startswith(("#", "data:application/json;base64,"))


def poisoned(value: Any, skip: frozenset[str]) -> Any:
    """Every string that is not from a fixed list, and every free key, with something nasty in it."""
    if isinstance(value, dict):
        return {k: v if k in skip else poisoned(v, skip) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(v, skip) for v in value]
    return value + HOSTILE if isinstance(value, str) else value


FIXED = frozenset({"format", "outcome", "task", "unit", "model", "part", "level"})


def hostile() -> dict[str, Any]:
    clean = sample_audit.full()
    result: dict[str, Any] = poisoned(copy.deepcopy(clean), FIXED)
    result["tier"]["name"] = "T2"
    for model, before in zip(result["models"], clean["models"], strict=True):
        model["name"] = before["name"]
        model["by_class"] = {key + HOSTILE: error for key, error in model["by_class"].items()}
    for one in result["destinations"]:
        one["shares"] = {key + HOSTILE: share for key, share in one["shares"].items()}
    for key in ("settings", "made_by", "thresholds"):
        result[key] = {name + HOSTILE: value for name, value in result[key].items()}
    return result


def tame(text: str) -> bool:
    page = Page(text)
    tags = [tag for tag, _ in page.elements]
    return tags.count("script") == 3 and "img" not in tags and HOSTILE[:9] in page.words()


def test_hostile_strings_stay_text() -> None:
    text = report.render(hostile())
    assert tame(text)
    data = text.partition('id="charts">')[2].partition("</script>")[0]
    assert "alert(1)" in data
    assert not set("<>&") & set(data)
    assert "\x00" not in text
    assert "\u202e" not in text
    text.encode("utf-8")
    assert tame(report.render_comparison([hostile(), hostile()], ["a" + HOSTILE, "b" + HOSTILE]))


def test_a_policy_forbids_everything_but_the_pages_own_scripts(full_page: str) -> None:
    policy = next(
        str(attrs["content"])
        for tag, attrs in Page(full_page).elements
        if "Content-Security" in str(attrs.get("http-equiv"))
    )
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy


def test_many_classes_and_layers_are_cut_in_charts_but_not_in_tables() -> None:
    result = sample_audit.full()
    many = {f"class {i}": sample_audit.error(10 + i % 50, 100) for i in range(200)}
    for model in result["models"]:
        model["by_class"] = many
    result["destinations"] = [{"model": "unlearned", "class": f"class {i}", "shares": many_shares()} for i in range(20)]
    text = report.render(result)
    assert "the 30 most changed of 200 classes" in text
    assert "6 of 20 classes" in text
    assert all(f">class {i}</th>" in text for i in range(200))
    assert len(text.encode()) < 3_000_000


def many_shares() -> dict[str, float]:
    return {f"class {i}": 1 / 50 for i in range(50)}


def test_a_long_curve_is_thinned_in_the_chart_only() -> None:
    result = sample_audit.full()
    ramp = [i / 20_000 for i in range(20_001)]
    result["attacks"][0]["unlearned"]["roc"] = {"fpr": ramp, "tpr": ramp}
    scripts = Page(report.render(result)).scripts
    specs = json.loads(next(data for data in scripts if data.startswith('{"config"')))["specs"]
    roc = next(spec for spec in specs.values() if spec["description"] == "ROC curves: Margin")
    points = [row for row in roc["data"]["values"] if row["who"] == "unlearned"]
    assert len(points) <= 202
    assert (points[0], points[-1]) == (
        {"who": "unlearned", "fpr": 0, "tpr": 0},
        {"who": "unlearned", "fpr": 1, "tpr": 1},
    )


def test_a_comparison_has_every_run_and_what_differs(comparison_page: str) -> None:
    words = Page(comparison_page).words()
    for text in ("3 audits side by side", "match", "paper", "noise </script><b>", "Pass", "Fail", "Inconclusive"):
        assert text in words, text
    assert comparison_page.count("Download the result as JSON") == 3
    assert "differences" not in Page(comparison_page).anchors()
    other = sample_audit.full() | {"settings": {"seed": 1}, "tier": sample_audit.minimal()["tier"]}
    page = Page(report.render_comparison([sample_audit.full(), other], ["a", "b"]))
    assert "differences" in page.anchors()
    assert "settings.forget.gamma" in page.words()
    assert "audits are of different strength" in page.words()


def test_a_comparison_of_runs_with_different_attacks() -> None:
    page = Page(report.render_comparison([sample_audit.full(), sample_audit.minimal()], ["a", "b"]))
    assert "attacks" in page.anchors()
    nothing = Page(report.render_comparison([sample_audit.minimal(), sample_audit.minimal()], ["a", "b"]))
    assert "attacks" not in nothing.anchors()


@pytest.mark.parametrize("count, names", [(1, ["a"]), (0, []), (2, ["a", "a"]), (2, ["a"])])
def test_a_comparison_needs_two_results_and_their_names(count: int, names: list[str]) -> None:
    with pytest.raises(ConfigError, match="Supported"):
        report.render_comparison([sample_audit.minimal()] * count, names)
