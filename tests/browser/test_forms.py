"""The values of a form are in the URL, so that a reload keeps them."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.furnished import Furnished, open_page
from tracking.tables import Dataset

pytestmark = pytest.mark.browser


def test_a_reload_keeps_the_training_form(page: Page, furnished: Furnished) -> None:
    open_page(page, f"{furnished.url}/runs/new?method=medusa")
    page.get_by_role("radio", name="EAGLE-3").check()
    page.wait_for_url("**/runs/new?method=eagle3*")
    page.locator("#train-name input, #train-name textarea").fill("my heads")
    page.locator("#train-measure input").uncheck()
    page.get_by_role("button", name="Advanced settings").click()
    page.get_by_role("button", name="Duration").click()
    page.locator("#set-max_minutes :is(input, textarea)").fill("7")
    page.wait_for_url(re.compile("method=eagle3&.*max_minutes=7"))
    page.reload()
    expect(page.get_by_role("radio", name="EAGLE-3")).to_be_checked()
    expect(page.locator("#train-name input, #train-name textarea")).to_have_value("my heads")
    expect(page.locator("#train-measure input")).not_to_be_checked()
    expect(page.locator("#set-max_minutes :is(input, textarea)")).to_have_value("7")
    page.get_by_role("radio", name="Medusa").check()
    page.wait_for_url(re.compile("method=medusa"))
    assert "max_minutes" not in page.url and "name=my+heads" in page.url


def test_a_reload_keeps_the_forms_of_data_and_evaluations(page: Page, furnished: Furnished) -> None:
    open_page(page, f"{furnished.url}/data")
    page.get_by_role("button", name="Import a file or Hub dataset").click()
    page.locator("#data-path :is(input, textarea)").fill("/tmp/mine.jsonl")
    page.get_by_role("radio", name="Questions of a suite").check()
    page.wait_for_url(re.compile("data-path=.*data-kind="))
    page.reload()
    expect(page.locator("#data-path :is(input, textarea)")).to_have_value("/tmp/mine.jsonl")
    expect(page.locator("#data-suite")).to_be_visible()
    values = {"kind": "prompts", "state": "ready", "rows": 5}
    row_id = furnished.bench.add(Dataset(name="to be answered", **values))
    open_page(page, f"{furnished.url}/data?id={row_id}")
    page.locator("#generate-system-prompt :is(input, textarea)").fill("Be brief.")
    page.wait_for_url(re.compile(r"\?id=[^&]*&generate-system-prompt=Be\+brief"))
    page.reload()
    expect(page.locator("#generate-system-prompt :is(input, textarea)")).to_have_value("Be brief.")
    open_page(page, f"{furnished.url}/results")
    page.get_by_role("button", name="Evaluate drafts").click()
    page.locator("#matrix-temperatures :is(input, textarea)").fill("0, 1")
    page.wait_for_url("**/results?matrix-temperatures=*")
    page.reload()
    expect(page.locator("#matrix-temperatures :is(input, textarea)")).to_have_value("0, 1")
    expect(page.locator("#matrix-review")).to_contain_text("evaluations")
