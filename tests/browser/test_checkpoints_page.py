"""The checkpoints page and the frame in a real browser."""

import hashlib
import zipfile

import pytest
from playwright.sync_api import Page, expect

from tests.browser.furnished import open_drawn
from tests.browser.workbench import Workbench, add_heads
from tracking import queries
from tracking.db import reading
from tracking.tables import Checkpoint

pytestmark = pytest.mark.browser


def base_id(workbench: Workbench) -> str:
    with reading(workbench.settings) as rows:
        return queries.find_base(rows, "tiny").id


def test_a_download_is_whole_by_its_own_sums(page: Page, workbench: Workbench) -> None:
    open_drawn(page, f"{workbench.url}/models/drafts")
    page.locator("#checkpoints-table").get_by_role("link", name="heads", exact=True).first.click()
    expect(page.locator("#checkpoint-head h1")).to_be_visible()
    with page.expect_download() as caught:
        page.locator("#checkpoint-download").click()
    download = caught.value
    assert download.suggested_filename == "tiny-heads.zip"
    archive = zipfile.ZipFile(download.path())
    names = sorted(archive.namelist())
    assert names == ["README.md", "SHA256SUMS", "config.json", "model.safetensors"]
    sums = dict(reversed(line.split("  ", 1)) for line in archive.read("SHA256SUMS").decode().splitlines())
    assert {n: hashlib.sha256(archive.read(n)).hexdigest() for n in names if n != "SHA256SUMS"} == sums


FILL_AT_ONCE = """
() => {
  document.querySelector('#draft-manage button').click();
  const field = document.querySelector('#draft-name :is(input, textarea)');
  field.value = 'typed at once';
  field.dispatchEvent(new Event('input', { bubbles: true }));
}
"""


def test_rename_note_and_delete(page: Page, workbench: Workbench) -> None:
    """A value that is entered the moment the fields unfold is kept."""
    row_id = add_heads(workbench, base_id(workbench), "to-be-renamed")
    page.goto(f"{workbench.url}/models/drafts?id={row_id}")
    name = page.locator("#draft-name input, #draft-name textarea")
    expect(name).to_have_value("to-be-renamed")
    expect(name).to_be_hidden()
    page.evaluate(FILL_AT_ONCE)
    expect(name).to_be_visible()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(name).to_have_value("typed at once")
    page.locator("#draft-note textarea, #draft-note input").fill("good on code")
    page.locator("#draft-save").click()
    expect(page.locator("#draft-message")).to_contain_text("Saved")
    expect(page.locator("#checkpoint-head h1")).to_have_text("typed at once")
    page.reload()
    expect(page.locator("#checkpoint-head")).to_contain_text("good on code")
    page.locator("#draft-manage button").first.click()
    page.locator("#draft-delete").click()
    expect(page.locator("#draft-question")).to_contain_text("cannot be undone")
    page.locator("#draft-really").click()
    expect(page.locator("#checkpoints-table")).to_be_visible()
    with reading(workbench.settings) as rows:
        assert rows.get(Checkpoint, row_id) is None
    assert not (workbench.settings.home / "checkpoints" / row_id).exists()


def test_the_theme_can_be_chosen_and_stays(page: Page, workbench: Workbench) -> None:
    open_drawn(page, f"{workbench.url}/models/drafts")
    button = page.locator('[data-sp="theme"]')
    expect(button).to_have_attribute("aria-label", "Color theme: system")
    button.click()
    button.click()
    expect(page.locator("body")).to_have_class("dark")
    page.reload()
    expect(button).to_have_attribute("aria-label", "Color theme: dark")
    expect(page.locator("body")).to_have_class("dark")


def test_the_strip_on_every_page_says_how_the_workbench_is(page: Page, workbench: Workbench) -> None:
    page.goto(workbench.url)
    expect(page.locator("#strip")).to_contain_text("No job is running")
    expect(page.locator("#strip")).to_contain_text("2 processes alive")
    expect(page.locator("#strip")).to_contain_text("free")
