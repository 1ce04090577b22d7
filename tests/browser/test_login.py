"""The password in front of the pages, in a real browser."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.workbench import Workbench, make_workbench

pytestmark = pytest.mark.browser


@pytest.fixture
def locked(tmp_path) -> Iterator[Workbench]:
    """A web server with a password; nothing else runs."""
    bench = make_workbench(tmp_path / "home", SPECULOOS_PASSWORD="cinnamon stick")
    try:
        bench.start("web")
        yield bench
    finally:
        bench.stop()


def test_one_logs_in_works_and_logs_out(page: Page, locked: Workbench) -> None:
    page.goto(f"{locked.url}/checkpoints?id=x")
    expect(page.locator("#password")).to_be_focused()
    page.keyboard.type("cinnamon stick")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{locked.url}/checkpoints?id=x")
    expect(page.locator("#checkpoints-problem")).to_contain_text("This checkpoint is gone")
    page.get_by_role("link", name="Playground").click()
    expect(page.locator("#why-off")).to_contain_text("There is no base model yet")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{locked.url}/login")
    assert page.request.get(f"{locked.url}/gradio_api/info").status == 401
    assert page.request.get(f"{locked.url}/healthz").status == 200
    assert "cinnamon" not in locked.log("web").read_text()
