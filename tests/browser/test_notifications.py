"""Who asks for it is told by the browser when a long job has ended: once, and in hidden tabs too."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import TIMEOUT_MS, watch
from tests.browser.furnished import open_page
from tests.browser.test_idle_pages import HIDE
from tests.browser.workbench import Workbench
from tests.tools.receiver import Receiver
from tracking.db import writing
from tracking.tables import Job, now

pytestmark = pytest.mark.browser
NOTE = """
window.told = [];
const Real = window.Notification;
window.Notification = new Proxy(Real, {construct(target, given) {
  window.told.push([given[0], given[1].tag]);
  return new target(...given);
}});
"""


@pytest.fixture
def page(browser: Browser, workbench: Workbench) -> Iterator[Page]:
    """A page whose browser lets this site notify; `told` is what was shown, by the real thing."""
    context = browser.new_context()
    context.grant_permissions(["notifications"], origin=workbench.url)
    made = context.new_page()
    made.set_default_timeout(TIMEOUT_MS)
    made.add_init_script(NOTE)
    wrong: list[str] = []
    watch(made, wrong)
    yield made
    context.close()
    assert not wrong, wrong


@pytest.fixture
def job(workbench: Workbench) -> Iterator[str]:
    """A job that was asked for five minutes ago and runs, on nobody's machine."""
    made = Job(name="Train for long", kind="train", queue="gpu", state="RUNNING")
    made.created_at = made.queued_at = now() - timedelta(minutes=5)
    job_id = workbench.add(made)
    yield job_id
    with writing(workbench.settings) as session:
        session.delete(session.get_one(Job, job_id))


def end(bench: Workbench, job_id: str) -> None:
    with writing(bench.settings) as session:
        row = session.get_one(Job, job_id)
        row.state, row.finished_at, row.version = "SUCCEEDED", now(), row.version + 1


def told(page: Page) -> list:
    return page.evaluate("window.told")


def test_an_end_is_shown_once_to_who_asked(page: Page, workbench: Workbench, job: str) -> None:
    open_page(page, f"{workbench.url}/settings")
    button = page.locator("#notify-button")
    expect(button).to_have_text("Notify me in this browser")
    button.click()
    expect(button).to_have_text("Stop notifying me here")
    open_page(page, f"{workbench.url}/storage")
    page.wait_for_function("localStorage.getItem('speculoos-told') !== null")
    page.evaluate(HIDE, True)
    end(workbench, job)
    page.wait_for_function("window.told.length")
    assert told(page) == [["“Train for long” is done", job]]
    page.evaluate(HIDE, False)
    page.wait_for_timeout(2500)
    assert len(told(page)) == 1
    open_page(page, f"{workbench.url}/jobs")
    page.wait_for_timeout(1500)
    assert told(page) == []


def test_who_did_not_ask_is_told_nothing(page: Page, workbench: Workbench, job: str) -> None:
    open_page(page, f"{workbench.url}/jobs")
    end(workbench, job)
    page.keyboard.press("Shift")
    page.wait_for_timeout(3000)
    assert told(page) == [] and page.evaluate("localStorage.getItem('speculoos-told')") is None


def test_a_webhook_is_kept_tested_and_forgotten(page: Page, workbench: Workbench, receiver: Receiver) -> None:
    open_page(page, f"{workbench.url}/settings")
    said, url = page.locator("#webhook-said"), page.locator("#webhook-url input")
    expect(said).to_contain_text("nothing is sent")
    page.locator("#webhook-test").click()
    expect(said).to_contain_text("enter one first")
    url.fill(f"https://{receiver.host}/hooks/T0-hidden")
    page.locator("#webhook-keep").click()
    expect(said).to_contain_text("inside this network")
    assert receiver.got == []
    url.fill("https://1.1.1.1/hooks/T0-hidden")
    page.locator("#webhook-keep").click()
    expect(said).to_contain_text("sent to 1.1.1.1")
    expect(url).to_have_value("")
    page.reload()
    expect(said).to_contain_text("sent to 1.1.1.1")
    assert "T0-hidden" not in page.content()
    page.locator("#webhook-forget").click()
    expect(said).to_contain_text("Deleted")
