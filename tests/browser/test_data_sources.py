"""A newcomer without a file adds a built-in dataset, which works only once, and imports a dataset of the hub by its id
after its first rows are shown."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.services import box, head_is, unfold
from tests.browser.workbench import Workbench, make_workbench
from tests.models.test_fetch import hub  # noqa: F401
from tests.tools.databases import Databases

pytestmark = pytest.mark.integration


@pytest.fixture
def bench(tmp_path: Path, hub: str, databases: Databases) -> Iterator[Workbench]:  # noqa: F811
    """A home without a dataset, whose pages and io worker reach the hub of the tests."""
    hub_settings = {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
    workbench = make_workbench(tmp_path / "home", DATABASE_URL=databases.url(), **hub_settings)
    try:
        workbench.start("broker", "worker-io", "web")
        yield workbench
    finally:
        workbench.end()


def test_a_newcomer_adds_what_comes_along_and_what_the_hub_has(bench: Workbench, page: Page) -> None:
    page.goto(f"{bench.url}/data")
    add = page.locator("#data-add-built-in-questions")
    expect(add).to_be_visible()
    expect(page.locator("#data-offer-quickstart-prompts")).to_contain_text("1,248 rows")
    add.click()
    page.wait_for_url("**/data?id=*")
    head_is(page, "dataset-head", "ready")
    expect(page.locator("#dataset-facts")).to_contain_text("40")

    page.goto(f"{bench.url}/data")
    expect(page.locator("#data-offer-built-in-questions")).to_contain_text("Added")
    unfold(page, "Sample datasets")
    add.click()
    expect(page.locator("#data-message-builtin")).to_contain_text("was added before")

    unfold(page, "Import a file")
    hub_box = box(page, "data-hub")
    hub_box.fill("tests/nowhere")
    page.locator("#data-first").click()
    expect(page.locator("#data-message-import")).to_contain_text("There is no dataset 'tests/nowhere' on the hub")
    hub_box.fill("tests/chats")
    page.locator("#data-first").click()
    expect(page.locator("#data-first-rows")).to_contain_text("ask 1")
    expect(page.locator("#data-first-rows")).to_contain_text("ask 3")
    expect(page.locator("#data-fields")).to_be_visible()
    page.locator("#data-submit").click()
    page.wait_for_url("**/data?id=*")
    head_is(page, "dataset-head", "ready")
    expect(page.locator("#dataset-facts")).to_contain_text("tests/chats")
    expect(page.locator("#dataset-preview")).to_contain_text("ask 4")
