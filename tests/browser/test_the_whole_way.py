"""The whole workflow in a real browser over real services: model, prompts, answers, training, settings."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.browser.furnished import open_drawn, open_page
from tests.browser.services import (
    HOSTILE,
    SLOW,
    box,
    choose,
    head_is,
    import_prompts,
    job_is,
    row_id,
    unfold,
    write_prompts,
)
from tests.browser.workbench import Workbench
from tests.tools.processes import is_listening_elsewhere, ranks
from tests.tools.running import wait_for
from tracking import queries
from tracking.db import reading, writing
from tracking.tables import Checkpoint, Dataset, Job, new_id

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def bench(workbench: Workbench) -> Iterator[Workbench]:
    """The session's workbench with its workers."""
    with workbench.with_workers():
        yield workbench


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("prompts"))


def start_training(page: Page, bench: Workbench, data: str, steps: int, name: str = "") -> str:
    """Fill in the train page for a tiny Medusa and start it; returns the job's id."""
    page.goto(f"{bench.url}/runs/new?method=medusa&data={data}")
    expect(page.locator("#train-review .sp-command")).to_contain_text("speculoos train medusa")
    choose(page, "train-recipe", "medusa-smoke")
    expect(page.locator("#train-review .sp-command")).to_contain_text(
        "--recipe medusa-smoke"
    )  # the settings are filled in
    unfold(page, "Advanced settings")
    unfold(page, "Duration")
    box(page, "set-epochs").fill("0")
    box(page, "set-max_steps").fill(str(steps))
    expect(page.locator("#train-review .sp-command")).to_contain_text(f"max_steps={steps}")
    box(page, "train-name").fill(name)
    page.locator("#train-measure input").uncheck()
    return start(page)


def start(page: Page) -> str:
    page.locator("#train-start").click()
    page.wait_for_url("**/runs?id=*")
    return row_id(page)


def fill_in(page: Page, bench: Workbench, steps: int, name: str) -> None:
    """Fill in the train page by its address, without starting the training."""
    fields = {"method": "medusa", "data": answers(bench), "recipe": "medusa-smoke", "epochs": 0, "max_steps": steps}
    page.goto(f"{bench.url}/runs/new?{urlencode({**fields, 'name': name, 'measure': 'false'})}")
    expect(page.locator("#train-review .sp-command")).to_contain_text("--recipe medusa-smoke")
    expect(page.locator("#train-review .sp-command")).to_contain_text(f"max_steps={steps}")
    expect(page.locator("#train-measure input")).not_to_be_checked()


def test_from_prompts_to_a_trained_draft(page: Page, bench: Workbench, prompts: Path) -> None:
    imported = import_prompts(page, bench, prompts, f"prompts {HOSTILE}")
    expect(page.locator("#dataset-head h1")).to_have_text(f"prompts {HOSTILE}")
    expect(page.locator("#dataset-bad")).to_contain_text("3 rows could not be used")
    expect(page.locator("#dataset-bad")).to_contain_text("13")
    expect(page.locator("#dataset-preview")).to_contain_text(HOSTILE)

    choose(page, "generate-model", "tiny")
    box(page, "generate-max-tokens").fill("12")
    expect(page.locator("#generate-review .sp-command")).to_contain_text("--max-tokens 12")
    box(page, "generate-name").fill("answers")
    page.locator("#generate-start").click()
    page.wait_for_url("**/runs?id=*")
    job_is(page, "SUCCEEDED")
    page.get_by_role("link", name="Open", exact=True).click()
    expect(page.locator("#dataset-preview .sp-in-loss").first).to_be_visible()
    expect(page.locator("#dataset-preview")).to_contain_text(HOSTILE)
    page.get_by_role("link", name="Train a draft").click()
    page.wait_for_url("**/runs/new?*")
    expect(page.locator("#train-data")).to_contain_text("answers")

    job_id = start_training(page, bench, answers(bench), 30, "first heads")
    job_is(page, "SUCCEEDED")
    expect(page.locator("#job-charts .sp-chart figcaption").first).to_contain_text("Loss")
    expect(page.locator("#job-charts")).to_contain_text("head 1")
    link = page.get_by_role("link", name="Open in Playground").get_attribute("href")
    assert link == "/playground?model=tiny%40first+heads"
    page.get_by_role("link", name="Export for a server").click()  # two clicks from the end to the file
    with page.expect_download() as caught:
        page.locator("#checkpoint-download").click()
    assert caught.value.suggested_filename == "tiny-first-heads.zip"
    with reading(bench.settings) as session:
        job, checkpoint = session.get(Job, job_id), queries.find_checkpoint(session, "tiny@first heads")
        assert (job.done, job.total, checkpoint.step) == (30, 30, 30)
        assert session.get(Dataset, imported).bad_rows == 3


def answers(bench: Workbench) -> str:
    with reading(bench.settings) as session:
        return queries.find_dataset(session, "answers").id


def test_a_running_job_survives_a_reload_is_cancelled_resumed_and_deleted(page: Page, bench: Workbench) -> None:
    fill_in(page, bench, 50_000, "long heads")
    job_id = start(page)
    job_is(page, "RUNNING")
    progress = page.locator("#job-head progress")
    expect(progress).to_have_attribute("max", "50000", timeout=SLOW)
    page.wait_for_function("document.querySelector('#job-head progress').value > 0", timeout=SLOW)
    before = int(progress.get_attribute("value"))
    page.reload()
    job_is(page, "RUNNING")
    expect(progress).to_have_attribute("max", "50000")
    assert int(progress.get_attribute("value")) >= before
    expect(page.locator("#job-charts .sp-chart").first).to_be_visible()

    page.locator("#job-cancel").click()
    job_is(page, "CANCELLED")
    expect(page.locator("#job-cancel")).to_be_hidden()
    with reading(bench.settings) as session:
        stopped_at = session.get(Job, job_id).done
    assert 0 < stopped_at < 50_000

    page.locator("#job-retry").click()
    job_is(page, "RUNNING")
    expect(page.locator(".sp-hidden:visible")).to_have_count(0)
    page.wait_for_function(f"document.querySelector('#job-head progress').value >= {stopped_at}", timeout=SLOW)
    page.locator("#job-cancel").click()
    job_is(page, "CANCELLED")

    unfold(page, "Name, note, delete")
    page.locator("#job-delete").click()
    expect(page.locator("#job-question")).to_contain_text("Nothing depends on this job")
    page.locator("#job-really").click()
    expect(page.locator("#jobs-listing")).to_be_visible()
    expect(page).to_have_url(f"{bench.url}/runs")
    expect(page.locator(f'#jobs-table a[data-pick="{job_id}"]')).to_have_count(0)
    with reading(bench.settings) as session:
        assert session.get(Job, job_id) is None


def add_connected_ranks(bench: Workbench, job_id: str, found: set[psutil.Process]) -> int:
    """Add the ranks of a training that have sockets; returns how many there are."""
    with reading(bench.settings) as session:
        child = session.get_one(Job, job_id).child
    with contextlib.suppress(psutil.NoSuchProcess):  # imports run commands, which end between two calls
        found |= {rank for rank in (ranks(child["pid"]) if child else ()) if rank.net_connections("inet")}
    return len(found)


def test_a_training_in_two_processes_from_its_form(page: Page, bench: Workbench) -> None:
    fill_in(page, bench, 60, "steady heads")
    unfold(page, "Advanced settings")
    unfold(page, "Distributed training")
    box(page, "train-processes").fill("2")
    choose(page, "train-sharding", "fsdp")
    expect(page.locator("#train-review .sp-command")).to_contain_text("--processes 2 --sharding fsdp")
    job_id = start(page)
    found: set[psutil.Process] = set()
    wait_for(lambda: add_connected_ranks(bench, job_id, found) >= 2, "two ranks")  # the page may show them too late
    assert len(found) == 2 and not any(map(is_listening_elsewhere, found))
    expect(page.locator("#job-head progress")).to_have_attribute("max", "60", timeout=SLOW)
    job_is(page, "SUCCEEDED")
    with reading(bench.settings) as session:
        job = session.get(Job, job_id)
    assert (job.done, job.attempt) == (60, 1)


def test_cloning_fills_the_form_in_as_it_was(page: Page, bench: Workbench) -> None:
    with reading(bench.settings) as session:
        job = session.get(Job, queries.find_checkpoint(session, "tiny@first heads").job_id)
    open_drawn(page, f"{bench.url}/runs?id={job.id}")
    page.locator("#job-clone").click()
    page.wait_for_url("**/runs/new?clone=*")
    command = page.locator("#train-review .sp-command")
    expect(command).to_contain_text("speculoos train medusa --model tiny --data answers --recipe medusa-smoke")
    expect(command).to_contain_text("max_steps=30")


def test_a_model_is_added_from_a_folder_and_a_wrong_one_says_why(page: Page, bench: Workbench, tiny_base: Path) -> None:
    open_drawn(page, f"{bench.url}/models")
    unfold(page, "Add a model")
    page.get_by_label("Local folder").check()
    box(page, "models-location").fill("/no/such/folder")
    page.locator("#models-submit").click()
    expect(page.locator("#models-message")).to_contain_text("there is no folder /no/such/folder")
    box(page, "models-location").fill(str(tiny_base))
    box(page, "models-new-name").fill(f"tiny {new_id()[:8]}")  # the name is free in a second run
    page.locator("#models-submit").click()
    page.wait_for_url("**/models?id=*")
    head_is(page, "model-head", "ready")
    expect(page.locator("#model-facts")).to_contain_text("LlamaForCausalLM")
    expect(page.locator("#model-methods")).to_contain_text("Medusa")


def test_a_name_is_changed_and_a_taken_one_is_refused(page: Page, bench: Workbench) -> None:
    open_drawn(page, f"{bench.url}/data?id={answers(bench)}")
    unfold(page, "Name, note, delete")
    expect(box(page, "dataset-name")).to_have_value("answers")
    box(page, "dataset-name").fill(f"prompts {HOSTILE}")
    page.locator("#dataset-save").click()
    expect(page.locator("#dataset-message")).to_contain_text("already")
    box(page, "dataset-name").fill("answers")
    box(page, "dataset-note").fill(HOSTILE)
    page.locator("#dataset-save").click()
    expect(page.locator("#dataset-message")).to_contain_text("Saved")
    page.locator("#data-back a").click()
    expect(page.locator("#data-table")).to_contain_text(HOSTILE)


def test_a_list_is_walked_with_the_keyboard_and_the_browsers_back_button(page: Page, bench: Workbench) -> None:
    page.goto(f"{bench.url}/runs")
    link = page.locator("#jobs-table a[data-pick]").first
    expect(link).to_be_visible()
    link.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#job-head h1")).to_be_visible()
    assert "/runs?id=" in page.url
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")
    page.go_back()
    expect(page.locator("#jobs-listing")).to_be_visible()
    page.get_by_label("Failed or cancelled").check()
    expect(page.locator("#jobs-table")).not_to_contain_text("Done")


def test_a_guided_run_shows_its_steps_after_a_reload_too_and_can_be_stopped(page: Page, bench: Workbench) -> None:
    open_drawn(page, bench.url)
    page.locator("#home-guided").click()
    page.wait_for_url("**/runs/guided")
    expect(page.locator("#guided-base input")).to_have_value(re.compile("tiny"))
    file = {"name": "plain.txt", "mimeType": "text/plain", "buffer": b"no rows"}
    page.locator("#guided-upload input[type=file]").set_input_files(file)
    expect(page.locator("#guided-upload")).to_contain_text("plain.txt")
    page.locator("#guided-start").click()
    expect(page.locator("#guided-message")).to_contain_text("plain.txt: unknown file format; expected")
    page.locator("#guided-upload").get_by_label("Clear").click()
    page.locator("#guided-start").click()
    page.wait_for_url("**/runs/guided?experiment=*")
    steps = page.locator("#guided-run .sp-step")
    expect(steps).to_have_count(4)
    expect(steps.nth(0)).to_have_attribute("data-state", "SUCCEEDED", timeout=SLOW)
    expect(steps.nth(1)).to_have_attribute("data-state", "RUNNING", timeout=SLOW)
    expect(steps.nth(2)).to_contain_text("Waits for")
    run = page.url
    page.reload()
    expect(steps).to_have_count(4)
    expect(page.locator("#guided-form")).to_be_hidden()

    steps.nth(1).get_by_role("link").first.click()
    page.wait_for_url("**/runs?id=*")
    page.locator("#job-cancel").click()
    job_is(page, "CANCELLED")
    page.goto(run)
    expect(page.locator('#guided-run [data-state="ended"]')).to_contain_text("did not finish")


def test_settings_show_health_and_no_secret(page: Page, bench: Workbench) -> None:
    page.goto(f"{bench.url}/settings")
    expect(page.locator("#settings-health table")).to_contain_text("worker-gpu", timeout=SLOW)
    page.get_by_role("link", name="Environment", exact=True).click()
    expect(page.locator("#settings-limits")).to_contain_text("Token of the inference server")
    assert bench.settings.inference_token not in page.content()
    page.reload()
    expect(page.locator("#settings-limits table").first).to_be_visible()
    expect(page.locator("#settings-health")).to_be_hidden()


def test_a_token_and_a_server_are_saved_and_the_secrets_stay_there(page: Page, bench: Workbench) -> None:
    open_drawn(page, f"{bench.url}/settings?section=servers")
    page.locator("#hub-token input").fill("sesame-hub")
    page.locator("#hub-keep").click()
    expect(page.locator("#hub-message")).to_contain_text("The token is set")
    for name, text in {"name": "team", "url": "http://127.0.0.1:1/v1", "key": "sesame-team"}.items():
        page.locator(f"#servers-{name} :is(input, textarea)").fill(text)
    page.locator("#servers-keep").click()
    expect(page.locator("#servers-list table")).to_contain_text("team")
    page.locator("#servers-chosen input").click()
    page.get_by_role("option", name="team").click()
    expect(page.locator("#servers-url :is(input, textarea)")).to_have_value("http://127.0.0.1:1/v1")
    expect(page.locator("#servers-key input")).to_have_value("")
    assert "sesame" not in page.content()
    open_drawn(page, f"{bench.url}/results")
    page.get_by_role("button", name="Evaluate a server").click()
    expect(page.locator("#served-endpoint input")).to_have_value("team")
    open_drawn(page, f"{bench.url}/settings?section=servers")
    page.locator("#hub-forget").click()
    expect(page.locator("#hub-message")).to_contain_text("No token is set")
    page.locator("#servers-chosen input").click()
    page.get_by_role("option", name="team").click()
    expect(page.locator("#servers-name :is(input, textarea)")).to_have_value("team")
    page.locator("#servers-forget").click()
    expect(page.locator("#servers-list")).to_contain_text("None yet")


def test_hostile_rows_are_shown_literally_on_every_page(page: Page, bench: Workbench) -> None:
    with writing(bench.settings) as session:
        base = queries.find_base(session, "tiny")
        figures = {"mean_accepted_length": 9.5, "speedup": 2.0}
        values = {"method": "medusa", "state": "ready", "base_id": base.id, "figures": figures, "path": "/gone"}
        session.add(Checkpoint(name=HOSTILE, **values))
    for path in ("/", "/runs", "/data", "/runs/new", "/models", "/models/drafts"):
        open_page(page, f"{bench.url}{path}")
        expect(page.locator("#strip .sp-strip")).to_be_visible()
        assert page.locator("img[src=x]").count() == 0
    expect(page.locator("#checkpoints-table")).to_contain_text(HOSTILE)
    with writing(bench.settings) as session:
        session.delete(queries.find_checkpoint(session, HOSTILE))


def test_a_published_head_is_uploaded_tried_and_exported(page: Page, bench: Workbench, tmp_path: Path) -> None:
    from tests.formats.imports import writers

    theirs = writers.write(tmp_path / "theirs", writers.eagle3())
    with reading(bench.settings) as session:
        base_id = queries.find_base(session, "tiny").id
    open_drawn(page, f"{bench.url}/models?id={base_id}")
    page.get_by_role("link", name="Import a draft").click()
    expect(page.locator("#drafts-base input")).to_have_value(re.compile("tiny"))
    page.locator("#drafts-source").get_by_label("Upload").check()
    files = page.locator("#drafts-files input[type=file]")
    files.set_input_files([theirs / "config.json", theirs / "model.safetensors"])
    box(page, "drafts-name").fill("their head")
    expect(page.locator("#drafts-review .sp-command")).to_contain_text("--name 'their head'")
    page.locator("#drafts-submit").click()
    page.wait_for_url("**/runs?id=*")
    job_is(page, "SUCCEEDED")
    link = page.get_by_role("link", name="Open in Playground").get_attribute("href")
    assert link == "/playground?model=tiny%40their+head"
    page.get_by_role("link", name="Export for a server").click()
    expect(page.locator("#checkpoint-head")).to_contain_text("uploaded files: their-head")
    expect(page.locator("#checkpoint-head .sp-badge")).to_have_text("imported")
    page.get_by_role("link", name="Try in the Playground").click()
    expect(page.locator("#draft input")).to_have_value(re.compile("their head"))
