"""Experiments in a real browser: created, filled from the list of jobs, shown, emptied, noted and deleted."""

import csv
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import select

from tests.browser.furnished import open_drawn, open_page
from tests.browser.test_trainings_page import remove_trainings
from tests.browser.trainings import add_trainings
from tests.browser.workbench import Workbench
from tracking.changes import rename
from tracking.db import reading, writing
from tracking.tables import Experiment, Job

pytestmark = pytest.mark.browser
NAME = "<b>rates</b> ${1}"


@pytest.fixture
def job_ids(workbench: Workbench) -> Iterator[list[str]]:
    ids = add_trainings(workbench)
    before = experiment_ids(workbench)
    yield ids
    remove_trainings(workbench, ids)
    with writing(workbench.settings) as session:  # experiments of other tests still have jobs
        session.query(Experiment).filter(Experiment.id.not_in(before)).delete()


def experiment_ids(workbench: Workbench) -> list[str]:
    """Ids of the experiments of other tests."""
    with reading(workbench.settings) as session:
        return list(session.scalars(select(Experiment.id)))


def test_an_experiment_is_made_filled_and_read(page: Page, workbench: Workbench, job_ids: list[str]) -> None:
    open_page(page, f"{workbench.url}/runs")
    page.get_by_role("navigation", name="Pages of Runs").get_by_role("link", name="Experiments").click()
    expect(page.locator("#experiments-table")).to_be_visible()
    experiment_id = workbench.add(Experiment(name=NAME))
    open_drawn(page, f"{workbench.url}/runs/experiments?id={experiment_id}")
    expect(page.locator("#experiment-head h1")).to_have_text(NAME)
    expect(page.locator("#experiment-jobs")).to_contain_text("No jobs yet")
    address = page.url
    open_page(page, f"{workbench.url}/runs")
    for name in ("slow", "quick", "wild"):
        page.get_by_role("checkbox", name=f"Select Train {name}", exact=True).check()
    field = page.get_by_role("combobox", name="Experiment (existing or new)")
    field.press_sequentially(NAME[:5])
    with writing(workbench.settings) as session:
        rename(session, session.get_one(Job, job_ids[0]), "Train slow again")
    expect(page.get_by_role("checkbox", name="Select Train slow again", exact=True)).to_be_checked()
    page.keyboard.type(NAME[5:])  # the list was redrawn meanwhile
    expect(field).to_have_value(NAME)
    page.get_by_role("button", name="Add to experiment").click()
    expect(page.locator("#jobs-bulk-message")).to_contain_text("Added to the experiment: 3.")
    open_drawn(page, address)
    expect(page.locator("#experiment-figures tbody tr")).to_have_count(3)
    expect(page.locator("#experiment-curves figure")).to_contain_text("τ by training tokens")
    page.get_by_role("link", name="Compare training runs").click()
    expect(page.locator("#trainings-charts .sp-charts:not(details *) figure")).to_have_count(3)


def test_it_is_taken_away_emptied_noted_and_deleted(page: Page, workbench: Workbench, job_ids: list[str]) -> None:
    experiment_id = workbench.add(Experiment(name="sizes"))
    with writing(workbench.settings) as session:
        for job_id in job_ids:
            session.get_one(Job, job_id).experiment_id = experiment_id
    open_page(page, f"{workbench.url}/runs/experiments?id={experiment_id}")
    with page.expect_download() as caught:
        page.get_by_role("link", name="CSV", exact=True).click()
    assert caught.value.suggested_filename == "sizes.csv"
    rows = list(csv.DictReader(caught.value.path().read_text("utf-8-sig").splitlines()))
    assert {row["job_id"] for row in rows} == set(job_ids) and len(rows) == 6
    page.get_by_role("checkbox", name="Select Train wild", exact=True).check()
    page.get_by_role("button", name="Remove from the experiment").click()
    page.get_by_role("button", name="Remove from the experiment? The jobs are not deleted.").click()
    expect(page.locator("#experiment-bulk-message")).to_contain_text("Removed from the experiment: 1.")
    expect(page.locator("#experiment-figures tbody tr")).to_have_count(2)
    page.locator("#experiment-manage button").first.click()
    page.locator("#experiment-note textarea").fill("<i>longer</i> is better")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#experiment-head .sp-note")).to_have_text("<i>longer</i> is better")
    page.get_by_role("button", name="Delete this experiment").click()
    expect(page.locator("#experiment-question")).to_contain_text("Its jobs, datasets and drafts are kept.")
    page.get_by_role("button", name="Delete permanently").click()
    page.wait_for_url("**/runs/experiments")
    expect(page.locator("#experiments-table")).not_to_contain_text("sizes")
    with reading(workbench.settings) as session:
        assert session.scalars(select(Job.experiment_id).where(Job.id.in_(job_ids))).all() == [None] * 3


def test_a_training_is_started_in_an_experiment(page: Page, workbench: Workbench) -> None:
    experiment_id = workbench.add(Experiment(name="amounts"))
    try:
        open_drawn(page, f"{workbench.url}/runs/new?experiment={experiment_id}")
        expect(page.locator("#train-experiment input")).to_have_value("amounts")
        open_page(page, f"{workbench.url}/runs/experiments?id={experiment_id}")
        page.get_by_role("link", name="Train another draft").click()
        page.wait_for_url(f"**/runs/new?experiment={experiment_id}")
    finally:
        with writing(workbench.settings) as session:
            session.query(Experiment).filter_by(id=experiment_id).delete()
