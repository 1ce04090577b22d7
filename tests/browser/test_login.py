"""Login with a password or a printed link, in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from speculoos.login_links import create_login_link
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
        bench.end()


def test_one_logs_in_works_and_logs_out(locked: Workbench, page: Page, tmp_path: Path) -> None:
    page.goto(f"{locked.url}/models/drafts?id=x")
    expect(page.locator("#password")).to_be_focused()
    page.keyboard.type("cinnamon stick")
    page.keyboard.press("Tab")
    page.keyboard.type("Ada <b>Lovelace</b>")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{locked.url}/models/drafts?id=x")
    expect(page.locator("#checkpoints-problem")).to_contain_text("This draft does not exist")
    page.get_by_role("link", name="Playground").click()
    expect(page.locator("#why-off")).to_contain_text("There is no base model yet")
    upload(page, locked, tmp_path)
    cookies = page.context.cookies()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{locked.url}/login")
    page.context.add_cookies(cookies)  # a copy of the old cookies
    assert page.request.get(f"{locked.url}/gradio_api/info").status == 401
    assert page.request.get(f"{locked.url}/healthz").status == 200
    assert "cinnamon" not in locked.log("web").read_text()


def upload(page: Page, bench: Workbench, folder: Path) -> None:
    """Import a file; the list of jobs shows the user's name."""
    (folder / "my prompts ü.jsonl").write_text('{"prompt": "Why is the sky blue?"}\n')
    page.goto(f"{bench.url}/data")
    page.locator("#data-import button").first.click()
    page.locator("#data-upload input[type=file]").set_input_files(folder / "my prompts ü.jsonl")
    with page.expect_download() as saved:
        page.locator("#data-upload a[download]").click()
    assert "sky blue" in Path(saved.value.path()).read_text()
    page.locator("#data-submit").click()
    page.wait_for_url(f"{bench.url}/data?id=*")
    page.goto(f"{bench.url}/runs")
    expect(page.locator("#jobs-table")).to_contain_text("Import prompts · Ada <b>Lovelace</b>")


def test_a_printed_link_lets_one_browser_in_and_a_second_browser_needs_another_link(
    page: Page, browser: Browser, tmp_path: Path
) -> None:
    bench = make_workbench(tmp_path / "home", SPECULOOS_LOGIN="token")
    try:
        bench.start("web")
        page.goto(f"{bench.url}/settings")
        expect(page.locator("main")).to_contain_text("speculoos login-link")
        link = create_login_link(bench.settings, bench.url)
        page.goto(link)
        page.wait_for_url(f"{bench.url}/")
        page.goto(f"{bench.url}/settings?section=access")
        expect(page.locator("#settings-access")).to_contain_text("Your login is valid until")
        page.locator("#settings-user input, #settings-user textarea").fill("Grace")
        page.locator("#settings-user-save").click()
        expect(page.locator("#settings-user-message")).to_contain_text("Your next jobs show “Grace”")
        second = browser.new_context()
        other = second.new_page()
        assert other.goto(link).status == 401
        expect(other.locator("[role=alert]")).to_contain_text("This link was used already")
        other.locator("#password").fill(create_login_link(bench.settings, bench.url))
        other.keyboard.press("Enter")
        other.wait_for_url(f"{bench.url}/")
        second.close()
        page.goto("about:blank")  # the page must not poll a stopped server
    finally:
        bench.end()
