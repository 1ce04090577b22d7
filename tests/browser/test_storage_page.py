"""The Storage page in a browser: sizes are shown, leftovers are deleted, a link opens a draft."""

import os
import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.services import HOSTILE
from tests.browser.workbench import Workbench, add_base, add_heads

pytestmark = pytest.mark.browser


def test_sizes_links_and_leftovers(workbench: Workbench, page: Page) -> None:
    base = add_base(workbench, f"for storage {HOSTILE}")
    heads = add_heads(workbench, base, "to delete")
    lost = workbench.settings.home / "datasets" / "nobodys"
    lost.mkdir(parents=True)
    (lost / "shard-00000.jsonl").write_bytes(bytes(123_456))
    for path in (lost / "shard-00000.jsonl", lost):
        os.utime(path, (1.7e9, 1.7e9))
    page.goto(f"{workbench.url}/settings/storage")
    expect(page.locator("#storage-parts")).to_contain_text("Drafts")
    page.locator("#storage-count").click()
    row = page.locator("#storage-items a", has_text="to delete")
    expect(row).to_be_visible()
    expect(page.locator("#storage-leftovers")).to_contain_text("nobodys")
    page.locator("#storage-sweep").click()
    page.locator("#storage-sweep-really").click()
    expect(page.locator("#storage-chore")).to_contain_text(re.compile("Deleted .*leftovers"))
    expect(page.locator("#storage-leftovers")).not_to_contain_text("nobodys")
    assert not lost.exists()
    expect(page.locator("#storage-items")).to_contain_text(HOSTILE)
    row.click()
    page.wait_for_url(f"**/models/drafts?id={heads}")
