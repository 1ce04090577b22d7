"""Open pages cause little traffic while nothing happens, and update when something does."""

import re
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import Page, expect

from app.changes import IDLE
from tests.browser.furnished import Furnished, wait_drawn
from tests.browser.workbench import Workbench
from tests.tools.page_client import FIRST_SECONDS, GROWTH
from tracking.db import writing
from tracking.tables import Job, now

pytestmark = pytest.mark.browser
HIDE = """(hidden) => {
  Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event('visibilitychange'));
}"""
COUNT_FRAMES = """
  const request = window.requestAnimationFrame;
  window.framesRequested = 1;
  window.requestAnimationFrame = (callback) => { window.framesRequested += 1; return request(callback); };
"""


def ended_jobs(bench: Workbench, count: int, prefix: str) -> list[str]:
    """Add ended jobs that are older than all others; returns their ids."""
    old = now() - timedelta(days=9)
    with writing(bench.settings) as rows:
        jobs = [
            Job(name=f"{prefix} {n}", kind="train", queue="gpu", state="CANCELLED", created_at=old - timedelta(hours=n))
            for n in range(count)
        ]
        rows.add_all(jobs)
        rows.flush()
        return [job.id for job in jobs]


@pytest.fixture
def old_jobs(workbench: Workbench) -> Iterator[list[str]]:
    job_ids = ended_jobs(workbench, 110, "ancient")
    yield job_ids
    with writing(workbench.settings) as rows:
        rows.query(Job).filter(Job.id.in_(job_ids)).delete()


class Traffic:
    """Counts a page's requests to handlers and for changes."""

    def __init__(self, page: Page):
        self.handlers = self.polls = 0
        page.on("request", lambda request: self._note(request.url))

    def _note(self, url: str) -> None:
        self.handlers += "/gradio_api/run/" in url or "/gradio_api/queue/" in url
        self.polls += "/api/changes" in url


def open_idle(page: Page, workbench: Workbench) -> dict[str, Page]:
    """Open two pages in their own tabs and wait until they are drawn and have loaded everything."""
    pages = {path: page.context.new_page() for path in ("/runs", "/")}
    for path, opened in pages.items():
        opened.goto(workbench.url + path)
        expect(opened.locator("#strip .sp-strip")).to_be_visible()
        wait_drawn(opened)
    for opened in pages.values():
        opened.wait_for_load_state("networkidle")
    return pages


def test_idle_pages_call_no_handler_ask_ever_less_often_and_hidden_ones_nothing(
    page: Page, workbench: Workbench, furnished: Furnished
) -> None:
    hidden = open_idle(page, workbench)
    for opened in hidden.values():
        opened.evaluate(HIDE, True)
    hidden_traffic = {path: Traffic(opened) for path, opened in hidden.items()}
    visible, began = open_idle(page, workbench), time.monotonic()
    visible_traffic = {path: Traffic(opened) for path, opened in visible.items()}
    assert_requests_no_frames(page, furnished)
    while (seconds := time.monotonic() - began) < 6 or not all(traffic.polls for traffic in visible_traffic.values()):
        assert seconds < 60, "a visible tab goes on asking"
        page.wait_for_timeout(100)
    for path, traffic in visible_traffic.items():
        assert traffic.handlers == 0, path
        assert traffic.polls <= most_polls(seconds), f"{path}: once a second would be {seconds:.0f}"
    for path, traffic in hidden_traffic.items():
        assert (traffic.handlers, traffic.polls) == (0, 0), f"{path}: a hidden tab asks nothing"
    for opened in hidden.values():
        with opened.expect_request("**/api/changes*"):
            opened.evaluate(HIDE, False)


def most_polls(seconds: float) -> int:
    """How often a page may ask within this time if nothing changes: each pause is longer than the one before."""
    count, pause = 0, FIRST_SECONDS
    while seconds >= 0:
        count, seconds, pause = count + 1, seconds - pause, min(pause * GROWTH, IDLE)
    return count


def assert_requests_no_frames(page: Page, furnished: Furnished) -> None:
    """An idle page with charts draws nothing, and nothing moves on it."""
    opened = page.context.new_page()
    opened.add_init_script(COUNT_FRAMES)  # scripts keep the function that they find when they are loaded
    opened.goto(furnished.bench.url + furnished.things["an evaluation"])
    wait_drawn(opened)
    none = "() => { const count = framesRequested; framesRequested = 0; return count === 0; }"
    opened.wait_for_function(none, polling=500, timeout=20_000)
    assert opened.evaluate("document.getAnimations().map((each) => each.animationName)") == []


def test_a_page_of_a_long_list_keeps_its_numbers_while_the_list_grows(
    page: Page, workbench: Workbench, old_jobs: list[str]
) -> None:
    page.goto(f"{workbench.url}/runs")
    pager, links = page.locator("#jobs-table .sp-pager"), page.locator("#jobs-table a[data-pick]")
    expect(pager).to_contain_text(re.compile("1–50 of"))
    pager.get_by_role("link", name="Next").click()
    expect(pager).to_contain_text(re.compile("51–100 of"))
    shown = links.all_inner_texts()
    with writing(workbench.settings) as rows:
        newest = Job(name="newest", kind="train", queue="gpu", state="CANCELLED")
        rows.add(newest)
    try:
        expect(links.nth(1)).to_have_text(shown[0])
        assert links.all_inner_texts()[1:] == shown[:-1]
        expect(pager).to_contain_text(re.compile("51–100 of"))
        links.nth(3).click()
        expect(page.locator("#job-head h1")).to_be_visible()
        page.locator("#jobs-back a").click()
        expect(pager).to_contain_text(re.compile("51–100 of"))
        page.reload()
        expect(pager).to_contain_text(re.compile("51–100 of"))
        page.go_back()
        expect(page.locator("#job-head h1")).to_be_visible()
        page.go_back()
        page.go_back()
        expect(pager).to_contain_text(re.compile("1–50 of"))
        expect(links.first).to_have_text("newest")
    finally:
        with writing(workbench.settings) as rows:
            rows.delete(rows.get_one(Job, newest.id))
