"""Finished work in a real browser: a training's verdict and its button. Also the training form's review and errors, and
a file's rows before and after its import."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.furnished import FIGURES, open_drawn, open_page
from tests.browser.services import box, choose, head_is, job_is, row_id, unfold, upload
from tests.browser.workbench import Workbench, add_base
from tests.tools.homes import write_answers
from tests.tools.running import wait_for
from tracking.db import reading, writing
from tracking.evaluations import columns_of
from tracking.tables import Checkpoint, Dataset, Evaluation, Job, new_id, now
from workers.jobs.requests import ImportPrompts
from workers.jobs.submit import submit

pytestmark = pytest.mark.browser
MEASURED = {
    **FIGURES,
    **{"mean_accepted_length_interval": [2.2, 2.4], "acceptance_by_depth": [0.61, 0.42], "identical_to_plain": True},
    "per_category": {"math": {"speedup": 1.9, "prompts": 4}, "prose": {"speedup": 1.2, "prompts": 6}},
}

CUT = """(node) => [...node.querySelectorAll('.sp-settings label span')]
  .filter((span) => span.clientWidth && span.scrollWidth > span.clientWidth + 1).map((span) => span.textContent)"""
"""Labels that are cut."""


@pytest.fixture(scope="module")
def ended(workbench: Workbench) -> Iterator[dict[str, str]]:
    """Ids of a successful training on 40 answers of 3,000 prompts, of its evaluation and of their base.

    The base is new, since the draft has no files and no other test may pick it as the best one.
    """
    base = add_base(workbench, "ending base")
    settings, ids = workbench.settings, {}
    times = {"started_at": now(), "finished_at": now()}
    with writing(settings) as rows:
        prompts = Dataset(name="ending prompts", kind="prompts", state="ready", rows=3_000)
        rows.add(prompts)
        rows.flush()
        config = {"source_id": prompts.id, "base_id": base, "max_tokens": 16, "limit": 40}
        data = Dataset(id=new_id(), name="ending answers", kind="conversations", state="ready", rows=40, base_id=base)
        data.source_id, data.config = prompts.id, config
        data.path = str(write_answers(settings.home / "datasets" / data.id, 40, 48))
        rows.add(data)
        rows.flush()
        figures = {"mean_accepted_length": 1.4, "best_step": 3, "step": 12, "loss": 3.0}
        request = {"method": "medusa", "base_id": base, "dataset_id": data.id, "recipe": "medusa-smoke"}
        job = Job(name="Train ending", kind="train", queue="gpu", state="SUCCEEDED", request=request, **times)
        job.result = figures
        rows.add(job)
        rows.flush()
        draft_columns = {"method": "medusa", "state": "ready", "base_id": base, "job_id": job.id, "figures": figures}
        heads = Checkpoint(name="ending", dataset_id=data.id, **draft_columns)
        measure = Job(name="Evaluate ending", kind="evaluate", queue="gpu", state="SUCCEEDED", result=MEASURED, **times)
        rows.add_all([heads, measure])
        rows.flush()
        evaluation_columns = {"state": "ready", "base_id": base, "job_id": measure.id, "result": MEASURED}
        evaluation = Evaluation(name="ending", temperature=0.7, **evaluation_columns, **columns_of(MEASURED))
        rows.add(evaluation)
        rows.flush()
        measure.request = {"evaluation_id": evaluation.id}
        ids |= {"data": data.id, "job": job.id, "measure": measure.id, "base": base}
    yield ids


def test_a_training_ends_with_a_verdict_whose_button_opens_the_filled_form(
    page: Page, workbench: Workbench, ended: dict[str, str]
) -> None:
    open_drawn(page, f"{workbench.url}/runs?id={ended['job']}")
    expect(page.locator("#verdict")).to_contain_text("τ 1.40 estimated on held-out conversations")
    expect(page.locator("#verdict")).to_contain_text("trained on 40 conversations")
    page.locator("#verdict-next").click()
    page.wait_for_url("**/data?id=*")
    expect(page.locator("#generate-review .sp-command")).to_contain_text("data generate --prompts")


def test_the_message_of_a_button_disappears_when_the_job_ends(page: Page, workbench: Workbench) -> None:
    running = Job(name="stops", kind="train", queue="gpu", state="RUNNING", attempt=1, started_at=now())
    job_id = workbench.add(running)
    open_page(page, f"{workbench.url}/runs?id={job_id}")
    page.locator("#job-cancel").click()
    expect(page.locator("#job-head")).to_contain_text("Stopping")
    with writing(workbench.settings) as rows:
        job = rows.get_one(Job, job_id)
        job.state, job.finished_at, job.version = "CANCELLED", now(), job.version + 1
    expect(page.locator('#job-head [data-state="CANCELLED"]')).to_be_visible()
    expect(page.locator("#page-jobs")).not_to_contain_text("Stopping")
    with writing(workbench.settings) as rows:
        rows.delete(rows.get_one(Job, job_id))


def test_the_review_of_a_training_is_always_in_sight_and_says_what_is_wrong(
    page: Page, workbench: Workbench, ended: dict[str, str]
) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    open_page(page, f"{workbench.url}/runs/new?data={ended['data']}")
    unfold(page, "Advanced settings")
    unfold(page, "Optimizer")
    for width in (400, 1024, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        box(page, "set-lr").scroll_into_view_if_needed()
        selector = "#train-line" if width < 900 else "#train-review .sp-tiles"
        expect(page.locator(selector)).to_be_in_viewport()
        expect(page.locator("#set-lr")).to_contain_text("Learning rate · lr")
        assert page.locator("#train-advanced").evaluate(CUT) == []
    box(page, "set-lr").fill("20")
    expect(page.locator("#train-review")).to_contain_text("lr: expected 1e-12 to 10")
    box(page, "set-lr").fill("0.01")
    expect(page.locator("#train-review .sp-command")).to_contain_text("lr=0.01")
    box(page, "train-name").fill("all in it")
    expect(page.locator("#train-review .sp-command")).to_contain_text("--name 'all in it' --measure")
    page.locator("#train-measure input").uncheck()
    expect(page.locator("#train-review .sp-command")).not_to_contain_text("--measure")
    page.locator("#train-data .remove-all").click()
    expect(page.locator("#train-review .sp-command")).to_have_count(0)
    expect(page.locator("#train-review")).to_contain_text("Data")


def test_twice_as_long_is_filled_in(page: Page, workbench: Workbench, ended: dict[str, str]) -> None:
    open_drawn(page, f"{workbench.url}/runs/new?clone={ended['job']}&longer=2")
    expect(page.locator("#train-review .sp-command")).to_contain_text("max_steps=40")


@pytest.fixture(scope="module")
def workers(workbench: Workbench) -> Iterator[Workbench]:
    with workbench.with_workers():
        yield workbench


def import_ended(workbench: Workbench, data_id: str) -> bool:
    with reading(workbench.settings) as session:
        return session.get_one(Job, session.get_one(Dataset, data_id).job_id).state == "SUCCEEDED"


def test_a_file_is_looked_at_mapped_imported_and_read(page: Page, workers: Workbench, tmp_path: Path) -> None:
    """A column is mapped by its name, figures appear when the import ends, and rows are paged and searched."""
    file = tmp_path / "fragen.jsonl"
    lines = [{"Frage": f"Wer ist Nummer {n}?", "Note": "x"} for n in range(30)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    open_page(page, f"{workers.url}/data")
    unfold(page, "Import a file")
    upload(page, file)
    expect(page.locator("#data-message-import")).to_contain_text("5 of them would be left out")
    choose(page, "data-field-prompt", "Frage")
    expect(page.locator("#data-first-rows")).to_contain_text("Wer ist Nummer 0?")
    expect(page.locator("#data-first-rows .sp-bad")).to_have_count(0)
    page.locator("#data-submit").click()
    page.wait_for_url("**/data?id=*")
    head_is(page, "dataset-head", "ready")
    expect(page.locator("#dataset-facts")).to_contain_text("30")
    expect(page.locator("#generate-review .sp-tile").first).not_to_contain_text("unknown")
    expect(page.locator("#dataset-preview .sp-chat")).to_have_count(8)
    wait_for(lambda: import_ended(workers, row_id(page)), "the end of the import's job, which draws the rows again")
    page.reload()
    page.locator("#dataset-after").click()
    expect(page.locator("#dataset-preview")).to_contain_text("Nummer 8?")
    page.locator("#dataset-before").click()
    expect(page.locator("#dataset-preview")).to_contain_text("Nummer 0?")
    box(page, "dataset-find").fill("nummer 29?")
    expect(page.locator("#dataset-preview .sp-chat")).to_have_count(1)


def test_a_failed_import_says_in_a_sentence_what_was_wrong_and_offers_nothing_to_start(
    page: Page, workers: Workbench, tmp_path: Path
) -> None:
    file = tmp_path / "nothing.jsonl"
    file.write_text('{"x": 1}\n')
    job = submit(
        ImportPrompts(path=str(file)), name="nothing", settings=workers.settings
    )  # commands do not check the file first
    open_page(page, f"{workers.url}/data?id={job.request['dataset_id']}")
    head_is(page, "dataset-head", "failed")
    expect(page.locator("#generate")).to_be_hidden()
    alert = page.locator("#dataset-head [role=alert]")
    expect(alert).to_be_visible()
    assert "Traceback" not in alert.inner_text()
    page.get_by_role("link", name="Open the job: log, cancel, retry").click()
    job_is(page, "FAILED")
    expect(page.locator("#job-retry")).to_have_text("Retry")


def test_two_sets_are_trained_on_and_measured_by_itself(page: Page, workers: Workbench, ended: dict[str, str]) -> None:
    with writing(workers.settings) as rows:
        more = Dataset(id=new_id(), name="more answers", kind="conversations", state="ready", rows=12)
        more.base_id = ended["base"]
        more.path = str(write_answers(workers.settings.home / "datasets" / more.id, 12, 40))
        rows.add(more)
    open_page(page, f"{workers.url}/runs/new?method=medusa&data={ended['data']},{more.id}")
    choose(page, "train-recipe", "medusa-smoke")
    expect(page.locator("#train-review .sp-command")).to_contain_text("--recipe medusa-smoke")
    expect(page.locator("#train-review .sp-command")).to_contain_text("--data 'ending answers' --data 'more answers'")
    tiles = page.locator("#train-review .sp-tile")
    expect(tiles.filter(has_text="Time")).to_contain_text("about ")
    expect(tiles.filter(has_text="Steps")).to_contain_text("evaluated every ")
    box(page, "train-name").fill("both")
    page.locator("#train-start").click()
    page.wait_for_url("**/runs?id=*")
    job_is(page, "SUCCEEDED")
    expect(page.locator("#job-head")).to_contain_text("(estimated: ")
    expect(page.locator("#verdict")).to_contain_text("trained on 52 conversations")
    with reading(workers.settings) as rows:
        job = rows.get_one(Job, row_id(page))
        assert job.request["more_dataset_ids"] == [more.id]
        checkpoint = rows.get_one(Checkpoint, job.request["checkpoint_id"])
        evaluation = rows.query(Evaluation).filter_by(checkpoint_id=checkpoint.id).one()
        measuring = rows.get_one(Job, evaluation.job_id)
        assert job.estimated_seconds and measuring.estimated_seconds
    expect(page.locator("#verdict-evaluation")).to_be_visible()
