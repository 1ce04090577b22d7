"""Lists in a real browser: search, order and filter are in the address; rows are cancelled and deleted together."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import Page, expect

from tests.browser.furnished import Furnished, open_drawn, open_page
from tests.browser.workbench import Workbench, add_heads
from tracking import queries
from tracking.db import reading, writing
from tracking.tables import Checkpoint, Job, now

pytestmark = pytest.mark.browser
MATRIX = "Evaluate 1 model on 1 suite"


def rows(page: Page, name: str = "jobs"):
    return page.locator(f"#{name}-table a[data-pick]")


def test_the_search_of_a_list_is_in_the_address(page: Page, furnished: Furnished) -> None:
    open_drawn(page, f"{furnished.url}/runs")
    expect(rows(page)).to_have_count(11)
    page.locator("#jobs-find input, #jobs-find textarea").press_sequentially("heads 3")
    expect(rows(page)).to_have_count(1)
    page.wait_for_url("**/runs?find=heads+3")
    rows(page).first.click()
    expect(page.locator("#job-head h1")).to_have_text("Train heads 3")
    page.locator("#jobs-back a").click()
    expect(rows(page)).to_have_count(1)
    page.wait_for_url("**/runs?find=heads+3")
    page.reload()
    expect(rows(page)).to_have_count(1)
    expect(page.locator("#jobs-find input, #jobs-find textarea")).to_have_value("heads 3")
    page.locator("#jobs-find input, #jobs-find textarea").fill("nobody")
    expect(page.locator("#jobs-table .sp-empty")).to_contain_text("No matches")
    page.locator("#jobs-find input, #jobs-find textarea").fill("heads 33")
    page.keyboard.press("End")
    page.keyboard.press("Backspace")
    expect(rows(page)).to_have_count(1)
    page.keyboard.press("Backspace")
    expect(rows(page)).to_have_count(7)


def test_a_filter_and_an_order_open_with_the_address(page: Page, furnished: Furnished) -> None:
    open_drawn(page, f"{furnished.url}/runs?show=Active&order=oldest")
    expect(rows(page)).to_have_text(["Train heads 0", "Train heads 1", "Train heads 5", MATRIX])
    expect(page.locator("#jobs-filter input:checked")).to_have_attribute("value", "Active")
    expect(page.locator("#jobs-order input")).to_have_value("Oldest first")
    page.locator("#jobs-order input").click()
    page.get_by_role("option", name="Newest first").click()
    expect(rows(page)).to_have_text([MATRIX, "Train heads 5", "Train heads 1", "Train heads 0"])
    page.wait_for_url("**/runs?show=Active")


def test_a_row_opens_by_a_click_anywhere_and_its_head_and_bar_stay_in_view(page: Page, furnished: Furnished) -> None:
    page.set_viewport_size({"width": 1280, "height": 500})
    open_drawn(page, f"{furnished.url}/runs")
    expect(page.locator("#jobs-table .sp-table-bar")).to_have_text("11 jobs")
    page.locator("input[data-choose]").last.check()
    bar, head = page.locator(".sp-bulk").bounding_box(), page.locator("#jobs-table th").first.bounding_box()
    assert bar and head and 0 <= bar["y"] < head["y"] <= bar["y"] + bar["height"]
    expect(page).to_have_url(f"{furnished.url}/runs")
    page.locator("#jobs-table tr", has_text="Train heads 3").locator("td").last.click(
        position={"x": 2, "y": 2}, force=True
    )
    expect(page.locator("#job-head h1")).to_have_text("Train heads 3")


def test_columns_are_chosen_by_keyboard_and_remembered(page: Page, furnished: Furnished) -> None:
    open_page(page, f"{furnished.url}/results")
    heads = page.locator("#evaluations-table [data-columns] th:visible")
    expect(heads).to_have_count(9)
    page.get_by_role("button", name="Columns").press("Enter")
    expect(page.get_by_role("checkbox", name="Questions")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("Escape")
    expect(heads).to_have_count(8)
    page.reload()
    expect(heads).to_have_text(["Model", "Questions", "Tree", "Speedup ↓", "τ", "Tokens/s", "Measured on", "When"])


@pytest.fixture
def job_ids(workbench: Workbench) -> Iterator[list[str]]:
    """Ids of two jobs that ended and of one that waits for the failed one."""
    old = now() - timedelta(days=3)
    with writing(workbench.settings) as session:
        first = Job(name="bulk failed", kind="train", queue="gpu", state="FAILED", created_at=old)
        session.add(first)
        session.flush()
        jobs = [
            first,
            Job(name="bulk done", kind="train", queue="gpu", state="SUCCEEDED", created_at=old),
            Job(name="bulk waits", kind="train", queue="gpu", state="QUEUED", created_at=old, after_id=first.id),
        ]
        session.add_all(jobs)
        session.flush()
        ids = [job.id for job in jobs]
    yield ids
    with writing(workbench.settings) as session:
        for job_id in reversed(ids):
            if row := session.get(Job, job_id):
                session.delete(row)
                session.flush()


def test_jobs_are_cancelled_and_deleted_together(page: Page, workbench: Workbench, job_ids: list[str]) -> None:
    open_page(page, f"{workbench.url}/runs?find=bulk")
    bar, message = page.locator(".sp-bulk"), page.locator("#jobs-bulk-message")
    expect(rows(page)).to_have_count(3)
    expect(bar).to_be_hidden()
    page.get_by_label("Select bulk waits").check()
    ticked = "box => { const style = getComputedStyle(box); return [style.appearance, style.backgroundImage]; }"
    assert page.get_by_label("Select bulk waits").evaluate(ticked) == ["auto", "none"], "a white tick on nothing"
    expect(bar).to_contain_text("1 selected")
    bar.get_by_role("button", name="Cancel").click()
    expect(message).to_contain_text("Stop requested: 1.")
    expect(page.locator("#jobs-table", has_text="Cancelled")).to_be_visible()
    page.get_by_label("Select bulk done").check()
    bar.get_by_role("button", name="Select page").click()
    expect(bar).to_contain_text("3 selected")
    bar.get_by_role("button", name="Delete").click()
    with reading(workbench.settings) as session:
        assert session.get(Job, job_ids[0]) is not None, "it asks first"
    bar.get_by_role("button", name="Delete permanently?").click()
    expect(message).to_contain_text("Deleted: 3.")
    expect(page.locator("#jobs-table .sp-empty")).to_be_visible()
    with reading(workbench.settings) as session:
        assert all(session.get(Job, job_id) is None for job_id in job_ids)


def test_checkpoints_are_deleted_together(page: Page, workbench: Workbench) -> None:
    with reading(workbench.settings) as session:
        base = queries.find_base(session, "tiny").id
    ids = [add_heads(workbench, base, f"doomed {n}") for n in range(2)]
    open_page(page, f"{workbench.url}/models/drafts?find=doomed")
    page.locator(".sp-bulk button", has_text="Select page").evaluate("(node) => node.click()")
    page.locator(".sp-bulk").get_by_role("button", name="Delete").click()
    page.locator(".sp-bulk").get_by_role("button", name="Delete permanently").click()
    expect(page.locator("#checkpoints-bulk-message")).to_contain_text("Deleted: 2.")
    with reading(workbench.settings) as session:
        assert all(session.get(Checkpoint, row_id) is None for row_id in ids)
    assert not any((workbench.settings.home / "checkpoints" / row_id).exists() for row_id in ids)
