"""The form that adds a published draft: its preview before the job, refused input, and the handling of uploads."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.draft_source import draft_request, link_uploads
from app.links import clone_form
from app.pages.jobs import status_line
from app.views import checkpoint_rows
from app.views.draft_form import AddDraft
from models.hub import HUB_ID
from ops.retention import clean
from ops.storage import uploads_of
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tests.formats.imports import writers
from tests.tools.homes import add_base
from tracking import db, jobs
from tracking.tables import Checkpoint, Job
from workers.child.context import JobContext
from workers.child.work import models as work
from workers.jobs.request import command_for
from workers.jobs.requests import ImportDraft
from workers.timing import JobTiming

NASTY = "<img src=x onerror=alert(1)>${alert(1)}"


@pytest.fixture
def base_id(home: Settings, tiny_base: Path) -> str:
    return add_base(home, tiny_base)


@pytest.fixture
def form(home: Settings) -> AddDraft:
    import gradio as gr

    with gr.Blocks():
        return AddDraft(home)


def store_uploads(home: Settings, source: Path) -> list[str]:
    """Store the files of a folder as Gradio stores uploads: each in a folder of its own."""
    paths = []
    for number, path in enumerate(sorted(source.iterdir())):
        target = home.home / "uploads" / f"{number:064x}" / path.name
        target.parent.mkdir(parents=True)
        target.write_bytes(path.read_bytes())
        paths.append(str(target))
    return paths


def import_job(home: Settings) -> Job | None:
    with db.reading(home) as session:
        return session.scalar(select(Job).where(Job.kind == "import_draft"))


def run_job(home: Settings, job: Job) -> None:
    """Run a job as a worker does."""
    with db.writing(home) as session:
        attempt = jobs.claim(session, job.id, "test", 60)
        request = session.get_one(Job, job.id).request
    context = JobContext(home, job.id, attempt, JobTiming())
    result = work.run_import_draft(ImportDraft(**request), context)
    with db.writing(home) as session:
        jobs.succeed(session, job.id, attempt, result)


@pytest.mark.integration
def test_uploaded_files_become_a_checkpoint_and_are_removed(
    home: Settings, base_id: str, form: AddDraft, tmp_path: Path
) -> None:
    files = store_uploads(home, writers.write(tmp_path / "theirs", writers.eagle3()))
    html = form.look("upload", base_id, "", files, "", "Their head")
    assert "speculoos models add-draft ./Their-head --model tiny --source folder --name &#x27;Their head&#x27;" in html
    assert not list((home.home / "uploads").glob("*/Their-head")), "a look gathers nothing"
    message, address = form.add("upload", base_id, "", files, "", "Their head")
    job = import_job(home)
    assert (message, address) == ("", f"/runs?id={job.id}")
    for path in files:
        Path(path).unlink()  # as Gradio does when it cleans up
    run_job(home, job)
    with db.reading(home) as session:
        checkpoint = session.get_one(Checkpoint, job.request["checkpoint_id"])
        head, links = checkpoint_rows.head(session, checkpoint), checkpoint_rows.actions(session, checkpoint)
        listed = checkpoint_rows.checkpoints_table(session)
        status = status_line(session, session.get_one(Job, job.id))
    assert (checkpoint.state, checkpoint.method, checkpoint.name) == ("ready", "eagle3", "Their head")
    assert "uploaded files: Their-head · EAGLE-3" in head and ">imported<" in head and ">imported<" in listed
    assert "not recorded" not in head
    assert "/playground?model=tiny%40Their+head" in links and "Open in Playground" in status
    assert not list((home.home / "uploads").glob("*/Their-head*"))


def test_waiting_uploads_are_kept_by_cleaning_and_backups(
    home: Settings, base_id: str, form: AddDraft, tmp_path: Path
) -> None:
    files = store_uploads(home, writers.write(tmp_path / "theirs", writers.medusa()))
    form.add("upload", base_id, "", files, "", "")
    gathered = Path(import_job(home).request["location"])
    for path in [*map(Path, files), *gathered.iterdir()]:
        os.utime(path, (0, 0))
    with db.reading(home) as session:
        assert {path.name for path in uploads_of(session, home.home)} == {"config.json", "model.safetensors"}
    clean(home)
    assert not any(Path(path).exists() for path in files)
    assert {path.name for path in gathered.iterdir()} == {"config.json", "model.safetensors"}
    with db.writing(home) as session:
        jobs.request_cancel(session, import_job(home).id)
    clean(home)
    assert not gathered.parent.exists()


def test_a_name_that_is_taken_leaves_nothing_behind(
    home: Settings, base_id: str, form: AddDraft, tmp_path: Path
) -> None:
    with db.writing(home) as session:
        session.add(Checkpoint(name="heads", base_id=base_id, method="medusa", state="ready"))
    files = store_uploads(home, writers.write(tmp_path / "theirs", writers.medusa()))
    message, address = form.add("upload", base_id, "", files, "", "heads")
    assert "already" in message and address == "" and import_job(home) is None
    assert not list((home.home / "uploads").glob("*/heads"))


@pytest.mark.parametrize(
    ("values", "pattern"),
    [
        (("hub", None, "org/heads", None, "", ""), "Base model: choose the model"),
        (("hub", "BASE", "heads", None, "", ""), "expected owner/name"),
        (("hub", "BASE", "", None, "", ""), "Hub id: the field is empty"),
        (("upload", "BASE", "org/heads", [], "", ""), "Upload: the field is empty"),
        (("upload", "BASE", "", ["/x/model.safetensors"], "", ""), "model.safetensors no longer exists"),
        (("folder", "BASE", "/nowhere/at/all", None, "", ""), "there is no folder"),
        (("folder", "BASE", "/proc/self", None, "", ""), "not accessible from pages"),
        (("hub", "gone", "org/heads", None, "", ""), "gone.* does not exist"),
        (("hub", "BASE", "org/heads", None, "nonsense", ""), "Format: .*nonsense.* is unknown"),
        ((["x"], {"a": 1}, 5, None, [], None), "Base model: choose|the field is empty"),
    ],
)
def test_bad_input_is_one_sentence(form: AddDraft, base_id: str, values: tuple[Any, ...], pattern: str) -> None:
    values = tuple(base_id if value == "BASE" else value for value in values)
    message, address = form.add(*values)
    assert re.search(pattern, message) and address == "" and "\n" not in message


def test_behind_a_password_only_folders_of_the_home_can_be_named(home: Settings, base_id: str, tmp_path: Path) -> None:
    folder = writers.write(tmp_path / "theirs", writers.medusa())
    fields = ("folder", base_id, str(folder), None, "", "")
    assert draft_request(home, *fields).location == str(folder)
    with pytest.raises(BadInput, match="only files under"):
        draft_request(replace(home, password="x"), *fields)


def test_a_hub_id_with_its_revision_is_shown_as_a_command(home: Settings, base_id: str, form: AddDraft) -> None:
    values = ("hub", base_id, "https://huggingface.co/org/heads@v1", None, "vllm-eagle3", "theirs")
    command = "speculoos models add-draft org/heads@v1 --model tiny --source hub --format vllm-eagle3 --name theirs"
    assert command in form.look(*values)
    message, address = form.add(*values)
    job = import_job(home)
    assert message == "" and address == f"/runs?id={job.id}" and HUB_ID.fullmatch(job.request["location"])
    assert clone_form(job) == "", "a clone submits the same job again"
    assert (job.request["location"], job.request["layout"]) == ("org/heads@v1", "vllm-eagle3")


def test_names_are_shown_literally(home: Settings, base_id: str, form: AddDraft, tmp_path: Path) -> None:
    folder = writers.write(tmp_path / "theirs", writers.medusa(), base_model_name_or_path=NASTY)
    for values in (
        ("folder", base_id, str(folder), None, "", NASTY),
        ("hub", base_id, NASTY, None, "", NASTY),
        ("upload", base_id, "", [f"/x/{NASTY}"], "", NASTY),
    ):
        html = form.look(*values)
        assert html and "<img" not in html and "${" not in html


def test_a_request_reads_back_as_the_command_that_does_the_same(home: Settings, base_id: str, tmp_path: Path) -> None:
    files = store_uploads(home, writers.write(tmp_path / "theirs", writers.medusa()))
    request = draft_request(home, "upload", base_id, "", files, "", "../../etc")
    link_uploads(files, request)
    folder = Path(request.location)
    assert folder.parent.parent == home.home / "uploads" and folder.name == "etc"
    assert "./etc --model tiny --source folder" in command_for(request, {base_id: "tiny"})
    work.remove_upload(tmp_path / "theirs", home.home / "uploads")
    assert (tmp_path / "theirs" / "config.json").exists(), "only what pages gathered is removed"
