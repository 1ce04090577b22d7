"""Every page, light and dark, wide and narrow: nothing that axe-core objects to, nothing that moves while it is read.

Pages come from the navigation, so that a new one is in here by itself; single things from a home that has some of all.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from app.views.shell import NAV, TAB_PAGES
from tests.browser.conftest import TIMEOUT_MS, watch
from tests.browser.furnished import Furnished, open_page, wait_drawn

pytestmark = pytest.mark.browser
LOADED = {"wide": (1280, ("light", "dark")), "phone": (400, ("dark", "light"))}
"""By name a width, the theme in which pages are opened at it, and the one that they are turned to then."""
THINGS = (
    *("a base", "answers", "prompts with bad rows", "a checkpoint", "a chat", "a comparison"),
    *("an evaluation", "a matrix", "a plan", "trainings compared", "an experiment"),
    *("the training form", "a job running", "a job succeeded", "a job failed", "a job queued"),
)
MOST_SHIFT = 0.1
"""Cumulative layout shift that web.dev calls good."""
OBSERVE = """
window.seen = {shift: 0, moved: [], busy: 0};
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) seen.busy = Math.max(seen.busy, entry.startTime + entry.duration);
}).observe({type: 'longtask', buffered: true});
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
READY = """() => {
  const answers = performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/run/predict'));
  const drawn = performance.getEntriesByType('paint').map((entry) => entry.startTime);
  return Math.max(seen.busy, ...drawn, ...answers.map((entry) => entry.responseEnd));
}"""
"""Milliseconds until the page can be used: it is drawn, its opening's questions are answered, no long task goes on."""
MOST_TIMES, SLACK_MS = 3.0, 1000.0
"""How much later a page may be ready than the empty comparison of trainings in the same browser: a bound that
holds under load, for what would make pages twice as slow."""
RULES = {"label-content-name-mismatch": {"enabled": True}, "target-size": {"enabled": True}}
"""Of axe's rules those that it leaves off unless asked."""


@pytest.fixture(scope="module")
def lightest(browser: Browser, furnished: Furnished) -> float:
    """Milliseconds until the empty comparison of trainings is ready: the best of three."""
    return min(time_of(browser, f"{furnished.url}/trainings") for _ in range(3))


def time_of(browser: Browser, url: str) -> float:
    with browser.new_context() as context:
        page = context.new_page()
        page.add_init_script(OBSERVE)
        open_page(page, url)
        return page.evaluate(READY)


@pytest.fixture(params=list(LOADED))
def loaded(request: pytest.FixtureRequest) -> tuple[int, tuple[str, str]]:
    return LOADED[request.param]


@pytest.fixture
def page(browser: Browser, loaded: tuple[int, tuple[str, str]]) -> Iterator[Page]:
    """A page of one width that notes what moves."""
    width, (theme, _) = loaded
    size = {"width": width, "height": 900}
    context = browser.new_context(viewport=size, color_scheme=theme, reduced_motion="no-preference")
    made = context.new_page()
    made.set_default_timeout(TIMEOUT_MS)
    made.add_init_script(OBSERVE)
    wrong: list[str] = []
    watch(made, wrong)
    yield made
    context.close()
    assert not wrong, wrong


def violations(page: Page, axe: str) -> list[str]:
    """What axe-core objects to on the page, once it is drawn: rule, and the places."""
    wait_drawn(page)
    page.evaluate(axe)
    found: dict[str, Any] = page.evaluate(f"axe.run(document, {{rules: {json.dumps(RULES)}}})")
    return [
        f"{rule['id']}: {node['target']} {node['html'][:160]} ({node['failureSummary']})"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def turn(page: Page, theme: str) -> None:
    """To another theme, as a system does in the evening. Waits until no colour is on its way."""
    page.emulate_media(color_scheme=theme)
    page.wait_for_function(f"document.body.matches('.dark') === {json.dumps(theme == 'dark')}")
    page.wait_for_function("document.getAnimations().every((each) => !(each instanceof CSSTransition))")


@pytest.fixture
def look(page: Page, axe: str, lightest: float, loaded: tuple[int, tuple[str, str]]) -> Callable[[str], None]:
    """Opens an address and looks at what comes, in both themes."""

    def opened(url: str) -> None:
        open_page(page, url)
        seen, ready = page.evaluate("window.seen"), page.evaluate(READY)
        assert violations(page, axe) == []
        assert seen["shift"] < MOST_SHIFT, seen["moved"]
        turn(page, loaded[1][1])
        assert violations(page, axe) == []
        for _ in range(4):  # a busy machine may hold up one visit, hardly five
            if ready >= MOST_TIMES * lightest + SLACK_MS:
                open_page(page, url)
                ready = min(ready, page.evaluate(READY))
        assert ready < MOST_TIMES * lightest + SLACK_MS, lightest

    return opened


@pytest.mark.parametrize("path", [path for _, path in (*NAV, *TAB_PAGES)])
def test_a_page_can_be_read_and_keeps_still(look: Callable[[str], None], furnished: Furnished, path: str) -> None:
    look(furnished.url + path)


@pytest.mark.parametrize("thing", THINGS)
def test_one_thing_can_be_read_and_keeps_still(look: Callable[[str], None], furnished: Furnished, thing: str) -> None:
    look(furnished.url + furnished.things[thing])
