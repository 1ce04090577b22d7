"""Every page, in both themes and two widths: no finding of axe-core, no layout shift, nothing wider than the screen.

Pages come from the navigation, so a new page is tested without a change here. Detail pages come from a home with rows
of every kind.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from app.paths import PAGES
from tests.browser.conftest import VIEWPORT
from tests.browser.furnished import Furnished, open_page, wait_drawn

pytestmark = pytest.mark.browser
THINGS = (
    *("a base", "answers", "prompts with bad rows", "a checkpoint", "a chat", "a comparison"),
    *("an evaluation", "a matrix", "a plan", "trainings compared", "an experiment"),
    *("a job running", "a job succeeded", "a job failed"),
)
MAX_SHIFT = 0.1
"""Cumulative layout shift that web.dev calls good."""
OBSERVE = """
window.seen = {shift: 0, moved: []};
const name = (node) => node ? (node.id || node.className || node.parentElement?.id || node.nodeName) : '?';
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    seen.shift += entry.value;
    const nodes = (entry.sources || []).map((source) => String(name(source.node)));
    seen.moved.push(`${entry.value.toFixed(3)} at ${entry.startTime.toFixed(0)} ms: ${nodes.join(', ')}`);
  }
}).observe({type: 'layout-shift', buffered: true});
"""
KEEP_HIDDEN = """
const setTimer = window.setTimeout;
window.setTimeout = (callback, ...rest) => callback.name === 'show' ? 0 : setTimer(callback, ...rest);
"""
"""Drops the timers of early.js that show a page before its rows are there, as on a machine under load."""
CUT_TABLES = """() => [...document.querySelectorAll('.sp-table')].filter((table) => {
  const wrap = table.parentElement, box = wrap.getBoundingClientRect();
  const scrolls = getComputedStyle(wrap).overflowX === 'auto';
  return box.right > innerWidth || (table.scrollWidth > wrap.clientWidth && !scrolls);
}).map((table) => table.ariaLabel)"""
RULES = {"label-content-name-mismatch": {"enabled": True}, "target-size": {"enabled": True}}
"""Rules of axe that are off by default."""
COLOR_RULES = ("color-contrast", "link-in-text-block")
"""The rules that a theme can break."""


@pytest.fixture
def page(page: Page) -> Iterator[Page]:
    """A page that records layout shifts and is hidden until its rows are there, however long that takes."""
    with page.add_init_script(f"{{{OBSERVE}{KEEP_HIDDEN}}}"):  # removed after the test: other tests use the same tab
        yield page


def violations(page: Page, axe: str, only: tuple[str, ...] = ()) -> list[str]:
    """Findings of axe-core on the drawn page, by all rules or those of `only`: rule, elements, reason."""
    wait_drawn(page)
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    options: dict[str, Any] = {"resultTypes": ["violations"], "rules": RULES}  # a whole report takes twice the time
    if only:
        options |= {"runOnly": only, "rules": {}}
    run = f"axe.run(document, {json.dumps(options)}).then((report) => report.violations)"
    findings: list[dict[str, Any]] = page.evaluate(run)
    return [
        f"{rule['id']}: {node['target']} {node['html'][:160]} ({node['failureSummary']})"
        for rule in findings
        for node in rule["nodes"]
    ]


def switch_theme(page: Page, theme: str) -> None:
    """Emulate a system theme, with reduced motion: colors change at once then."""
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.wait_for_function(f"document.body.matches('.dark') === {json.dumps(theme == 'dark')}")
    page.wait_for_function("document.getAnimations().every((each) => !(each instanceof CSSTransition))")


@pytest.fixture
def check(page: Page, axe: str) -> Callable[[str], None]:
    """Check an address at 1280 px with axe, the dark theme's colors too, then its layout at 400 px."""

    def run(url: str) -> None:
        open_page(page, url)
        assert_no_layout_shift(page)
        assert_nothing_is_cut_off(page, VIEWPORT["width"])
        assert violations(page, axe) == []
        switch_theme(page, "dark")
        assert violations(page, axe, COLOR_RULES) == []
        for width in (700, 512):  # below and above the width at which tables become cards
            page.set_viewport_size({"width": width, "height": 900})
            assert_nothing_is_cut_off(page, width)
        page.set_viewport_size({"width": 400, "height": 900})
        page.emulate_media(reduced_motion="no-preference")
        open_page(page, url)
        assert_no_layout_shift(page)
        assert_nothing_is_cut_off(page, 400)

    return run


def assert_nothing_is_cut_off(page: Page, width: int) -> None:
    """The page is not wider than the screen; wide tables scroll inside their frame."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT_TABLES) == []


def assert_no_layout_shift(page: Page) -> None:
    seen = page.evaluate("window.seen")
    assert seen["shift"] < MAX_SHIFT, seen["moved"]


@pytest.mark.parametrize("path", PAGES.values())
def test_a_page_is_accessible_and_keeps_still(check: Callable[[str], None], furnished: Furnished, path: str) -> None:
    check(furnished.url + path)


@pytest.mark.parametrize("thing", THINGS)
def test_a_detail_page_is_accessible_and_keeps_still(
    check: Callable[[str], None], furnished: Furnished, thing: str
) -> None:
    check(furnished.url + furnished.things[thing])
