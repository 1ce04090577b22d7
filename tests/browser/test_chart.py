"""Charts in a real browser: values under the pointer and the arrow keys, the numbers as a file."""

import csv

import pytest
from playwright.sync_api import Page, expect

from tests.browser.furnished import Furnished, open_page
from tests.browser.workbench import Workbench
from tracking import reports
from tracking.changes import delete
from tracking.db import writing
from tracking.tables import Job

pytestmark = pytest.mark.browser


def test_values_are_shown_for_arrow_keys_and_the_pointer_and_come_as_a_file(page: Page, furnished: Furnished) -> None:
    open_page(page, furnished.url + furnished.things["a job succeeded"])
    chart = page.locator(".sp-chart", has_text="Loss").first
    tip, svg = chart.locator(".sp-chart-tip"), chart.locator("svg").first
    expect(tip).to_be_hidden()
    svg.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tip).to_have_text("step 1: Loss 2")
    page.keyboard.press("End")
    expect(tip).to_contain_text("step 39")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()

    box = svg.bounding_box()
    svg.hover(position={"x": box["width"] * 0.98, "y": box["height"] / 2})
    expect(tip).to_have_text("step 39: Loss 0.1")
    expect(chart.locator(".sp-chart-mark circle")).to_have_count(1)
    svg.hover(position={"x": 1, "y": box["height"] / 2})
    expect(tip).to_have_text("step 0: Loss 4")

    with page.expect_download() as caught:
        chart.get_by_role("button", name="CSV").click()
    assert caught.value.suggested_filename == "loss.csv"
    rows = list(csv.reader(caught.value.path().read_text().splitlines()))
    assert rows[0] == ["step", "Loss"] and len(rows) == 41
    assert [float(value) for value in rows[4]] == [3, 1.0]


def test_a_chart_that_is_drawn_anew_keeps_its_values_and_files(page: Page, workbench: Workbench) -> None:
    """Gradio replaces the chart, as on a running job's page at each new point."""
    job = workbench.add(Job(name="Drawn anew", kind="train", queue="gpu", state="RUNNING", attempt=1))
    try:
        for last in (3, 4):
            with writing(workbench.settings) as session:
                reports.write(
                    session, job, 1, reports.JobReport(metrics={("train/loss", s): 9.0 - s for s in range(last)})
                )
            if last == 3:
                open_page(page, f"{workbench.url}/runs?id={job}")
                page.locator(".sp-chart svg").first.focus()
                page.keyboard.press("ArrowRight")
        expect(page.locator(".sp-chart li b")).to_have_text("6 at step 3")
        expect(page.get_by_role("button", name="CSV")).to_have_count(1)
        expect(page.locator(".sp-chart-tip")).to_have_text("step 0: training 9")
        svg = page.locator(".sp-chart svg").first
        svg.hover(position={"x": svg.bounding_box()["width"] * 0.98, "y": 40})
        expect(page.locator(".sp-chart-tip")).to_have_text("step 3: training 6")
    finally:
        with writing(workbench.settings) as session:
            session.get_one(Job, job).state = "FAILED"
            delete(session, workbench.settings, session.get_one(Job, job))
