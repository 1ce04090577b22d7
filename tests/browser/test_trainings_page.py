"""Comparing trainings in a real browser: reached from Jobs by three clicks, same in every browser, live updates."""

import csv
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.furnished import open_page, wait_drawn
from tests.browser.trainings import add_trainings
from tests.browser.workbench import Workbench
from tracking import reports
from tracking.changes import delete
from tracking.db import writing
from tracking.tables import Checkpoint, Evaluation, Job

pytestmark = pytest.mark.browser
SHOWN = ("trainings-settings", "trainings-charts", "trainings-figures")


@pytest.fixture
def job_ids(workbench: Workbench) -> Iterator[list[str]]:
    """Three trainings, the last one running."""
    ids = add_trainings(workbench, running="wild")
    yield ids
    remove_trainings(workbench, ids)


def remove_trainings(workbench: Workbench, ids: list[str]) -> None:
    """Delete trainings with their drafts and evaluations."""
    with writing(workbench.settings) as session:
        for job_id in ids:
            session.get_one(Job, job_id).state = "FAILED"
            for draft in session.query(Checkpoint).filter_by(job_id=job_id).all():
                session.query(Evaluation).filter_by(checkpoint_id=draft.id).delete()
                session.delete(draft)
            session.flush()
            delete(session, workbench.settings, session.get_one(Job, job_id), force=True)


def shown(page: Page) -> list[str]:
    page.wait_for_function("!document.documentElement.matches('.sp-drawing')")
    return [page.locator(f"#{part}").inner_text() for part in SHOWN]


def test_three_clicks_from_jobs_lead_to_the_same_view_everywhere(
    page: Page, browser: Browser, workbench: Workbench, job_ids: list[str]
) -> None:
    open_page(page, f"{workbench.url}/runs")
    compare = page.get_by_role("button", name="Compare training runs")
    page.get_by_role("checkbox", name="Select Train slow", exact=True).check()
    expect(compare).to_be_disabled()
    page.get_by_role("checkbox", name="Select Train quick", exact=True).check()
    compare.click()
    page.wait_for_url("**/runs/compare?ids=*,*")
    expect(page.locator("#trainings-charts .sp-charts:not(details *) figure")).to_have_count(3)
    expect(page.locator("#trainings-settings tbody td:first-child")).to_have_text(["lr"])
    first = shown(page)
    assert "0.0003" in first[0] and "slow" in first[1] and "2.00" in first[2]
    page.reload()
    wait_drawn(page)
    expect(page.locator("#trainings-charts .sp-charts:not(details *) figure")).to_have_count(3)
    expect(page.locator("#trainings-shown")).to_be_visible()
    assert shown(page) == first
    with browser.new_context() as context:
        other = context.new_page()
        open_page(other, page.url)
        assert shown(other) == first


def test_curves_are_read_a_running_training_is_followed_and_one_can_be_left_out(
    page: Page, workbench: Workbench, job_ids: list[str]
) -> None:
    open_page(page, f"{workbench.url}/runs/compare?ids={','.join(job_ids)}")
    chart = page.locator("#trainings-charts figure", has_text="Loss")
    chart.locator("svg").first.focus()
    page.keyboard.press("End")
    expect(chart.locator(".sp-chart-tip")).to_contain_text("step 120: slow ")
    expect(chart.locator(".sp-chart-tip")).to_contain_text("wild ")
    with page.expect_download() as caught:
        chart.get_by_role("button", name="CSV").click()
    rows = list(csv.reader(caught.value.path().read_text().splitlines()))
    assert rows[0] == ["step", "slow", "quick", "wild"]

    figures = page.locator("#trainings-figures")
    expect(figures).to_contain_text("120 of 120 steps")
    page.locator("#trainings-settings summary").click()
    with writing(workbench.settings) as session:
        report = reports.JobReport(metrics={("train/loss", 121): 0.5, ("train/tokens", 121): 999_999})
        reports.write(session, job_ids[-1], 1, report)
    expect(figures).to_contain_text("999,999")
    expect(page.locator("#trainings-settings dl")).to_be_visible()  # unchanged parts are not redrawn
    page.get_by_role("link", name="Remove wild").click()
    page.wait_for_url(f"**/runs/compare?ids={job_ids[0]},{job_ids[1]}")
    expect(page.locator("#trainings-charts .sp-chart-legend").first.locator("li")).to_have_count(2)
