"""The pages in a real browser: offline, on a phone, in the dark, on paper, and for everybody."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_report_page import hostile

from unweave import report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, from unweave[test]")

Page = Any


class Browser:
    """One Chromium for all tests here, and the pages as files."""

    def __init__(self, chromium: Any, folder: Path) -> None:
        self.chromium, self.folder = chromium, folder

    @contextmanager
    def show(self, name: str, width: int = 1100, dark: bool = False) -> Iterator[Page]:
        """A page whose charts are drawn; afterwards, that nothing was said in the console or asked of a network."""
        viewport, scheme = {"width": width, "height": 900}, "dark" if dark else "light"
        context = self.chromium.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        page, noise = context.new_page(), list[str]()
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("request", lambda request: noise.append(request.url))
        address = (self.folder / f"{name}.html").as_uri()
        page.goto(address)
        page.wait_for_selector("html[data-charts=drawn]", timeout=20_000)
        yield page
        context.close()
        assert noise == [address]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, full_page: str, comparison_page: str) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("pages")
    pages = {"full": full_page, "comparison": comparison_page, "hostile": report.render(hostile())}
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, "utf-8")
    with playwright.sync_playwright() as library:
        chromium = library.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield Browser(chromium, folder)
        chromium.close()


@pytest.fixture(scope="module")
def violations() -> Callable[[Page], list[Any]]:
    """What an accessibility checker finds, of any severity."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe, from unweave[test]").Axe()

    def found(page: Page) -> list[Any]:
        return [(one["id"], one["nodes"][0]["html"][:200]) for one in axe.run(page).response["violations"]]

    return found


CHARTS = 26
"""Overview, 4 × (ROC curves and 3 histograms), 3 of entropies, 2 of classes, 2 of the course, 2 of layers."""

MARKS = ".mark-rect path, .mark-symbol path, .mark-line path, .mark-rule line"


def sideways(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def test_every_chart_is_drawn_and_described(browser: Browser, violations: Callable[[Page], list[Any]]) -> None:
    with browser.show("full") as page:
        charts = page.query_selector_all(".chart")
        assert len(charts) == CHARTS
        for chart in charts:
            picture = chart.query_selector("svg")
            assert len(picture.query_selector_all(MARKS)) > 1
            assert chart.get_attribute("role") == "graphics-document"
            assert len(chart.get_attribute("aria-label")) > 10
            assert picture.bounding_box()["width"] > 150
        assert sideways(page) <= 0
        assert violations(page) == []


@pytest.mark.parametrize("name", ["full", "comparison"])
def test_a_phone_in_the_dark(browser: Browser, violations: Callable[[Page], list[Any]], name: str) -> None:
    with browser.show(name, width=360, dark=True) as page:
        assert len(page.query_selector_all(".chart svg")) == (CHARTS if name == "full" else 8)
        assert sideways(page) <= 0
        assert violations(page) == []


def colours(page: Page) -> list[str]:
    """Of the page, of a label and of a mark in a chart."""
    shown = """() => [
        getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.querySelector('.chart .role-axis-label text')).fill,
        getComputedStyle(document.querySelector('.chart .mark-symbol path')).fill,
    ]"""
    return list(page.evaluate(shown))


def test_the_theme_changes_without_drawing_again_and_paper_is_light(browser: Browser, tmp_path: Path) -> None:
    with browser.show("full") as page:
        light = colours(page)
        page.emulate_media(color_scheme="dark")
        dark = colours(page)
        assert all(one != other for one, other in zip(light, dark, strict=True))
        page.emulate_media(color_scheme="dark", media="print")
        assert colours(page)[1:] == light[1:]
        page.emulate_media(media="screen")
        page.pdf(path=tmp_path / "page.pdf", format="A4")
        assert (tmp_path / "page.pdf").stat().st_size > 50_000


def hovered(page: Page) -> str:
    """What the tooltip says about the first dot. Scrolling hides it, so that comes first, and its event with it."""
    dot = page.locator(".chart .mark-symbol path").first
    dot.scroll_into_view_if_needed()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    dot.hover()
    page.wait_for_selector("#tip:not([hidden])", timeout=5_000)
    return str(page.inner_text("#tip"))


def test_hovering_shows_the_numbers(browser: Browser) -> None:
    with browser.show("full") as page:
        assert page.is_hidden("#tip")
        tip = hovered(page)
        assert "AUC (interval)" in tip
        assert "original" in tip
        page.keyboard.press("Escape")
        assert page.is_hidden("#tip")


def test_hostile_names_are_shown_and_do_nothing(browser: Browser) -> None:
    with browser.show("hostile", width=360) as page:
        assert page.locator("script").count() == 3
        assert page.locator("img").count() == 0
        assert "<script>alert(1)" in hovered(page)
        assert page.locator("#tip script, #tip img").count() == 0
        assert len(page.query_selector_all(".chart svg")) == CHARTS
        assert sideways(page) <= 0
