"""Pages on a machine without the files: they say that the files are being downloaded, fetch them and show them."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app import store_downloads
from app.downloads import routes
from app.events import answer_error
from app.views import export_rows
from models.starter import installed
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from speculoos.store import open_store
from tests.tiny import make_tiny_base
from tests.tools.homes import add_base
from tests.workers.conftest import wait_until
from tracking import changes, db, jobs, stored
from tracking.stored import RowFiles
from tracking.tables import Checkpoint, Dataset, new_id
from workers.child.context import JobContext
from workers.child.work import models as work
from workers.jobs.requests import Export
from workers.jobs.submit import submit
from workers.timing import JobTiming


@pytest.fixture
def maker(home: Settings, tmp_path: Path) -> Settings:
    """The machine that created the files. `home` has the same database, but not its store setting."""
    return replace(home, home=tmp_path / "maker", store=f"file://{tmp_path}/store")


@pytest.fixture
def pages(home: Settings, maker: Settings) -> Settings:
    """The machine that serves the pages."""
    return replace(home, store=maker.store)


@pytest.fixture
def heads(maker: Settings, tmp_path: Path) -> str:
    """The id of a checkpoint that the other machine has trained and uploaded."""
    from models.base import load_base
    from models.checkpoints import save_draft
    from models.eagle3 import Eagle3Draft

    base_folder = make_tiny_base(maker.home / "models" / "tiny", num_hidden_layers=8)
    base_id, row_id = add_base(maker, base_folder), new_id()
    draft = Eagle3Draft.from_base(load_base(base_folder))
    folder = save_draft(maker.home / "checkpoints" / row_id / "attempt-1", draft, {"base": "tiny"})
    with db.writing(maker) as session:
        values = {"method": "eagle3", "state": "ready", "path": str(folder)}
        session.add(Checkpoint(id=row_id, name="heads", base_id=base_id, **values))
    upload(maker, "models", base_id, base_folder)
    upload(maker, "checkpoints", row_id, folder)
    return row_id


def upload(maker: Settings, kind: str, row_id: str, folder: Path) -> None:
    files = RowFiles(maker, installed).upload(kind, row_id, folder)
    with db.writing(maker) as session:
        stored.save_stored(session, kind, row_id, files)


def client(settings: Settings) -> TestClient:
    app = FastAPI()
    app.include_router(routes(settings))
    app.add_exception_handler(SpeculoosError, answer_error)
    return TestClient(app)


def exports_html(settings: Settings, checkpoint_id: str) -> str:
    with db.reading(settings) as session:
        return export_rows.exports_table(session, settings, session.get_one(Checkpoint, checkpoint_id))


def test_a_checkpoint_of_another_machine_is_fetched_in_the_background(pages: Settings, heads: str) -> None:
    before = store_downloads.signature()
    assert "are being downloaded from the store" in exports_html(pages, heads)
    assert store_downloads.signature() != before, "pages that wait are drawn again"
    wait_until(lambda: "are being downloaded" not in exports_html(pages, heads), 90, "the files")
    assert "Create and download" in exports_html(pages, heads) and store_downloads.signature() == before
    assert (pages.home / "checkpoints" / heads / "attempt-1" / "model.safetensors").exists()


def test_its_zip_is_made_of_the_fetched_files(pages: Settings, heads: str) -> None:
    response = client(pages).get(f"/api/checkpoints/{heads}/download")
    assert response.status_code == 200
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert any(name.endswith("model.safetensors") for name in archive.namelist())


def test_an_export_of_another_machine_is_offered_and_fetched_on_request(
    pages: Settings, maker: Settings, heads: str
) -> None:
    job = submit(Export(checkpoint_id=heads, format="vllm"), settings=maker)
    with db.writing(maker) as session:
        attempt = jobs.claim(session, job.id, "test", 60)
    result = work.run_export(Export(heads, "vllm"), JobContext(maker, job.id, attempt, JobTiming()))
    with db.writing(maker) as session:
        jobs.succeed(session, job.id, attempt, result)
    exports_html(pages, heads)
    wait_until(lambda: "are being downloaded" not in exports_html(pages, heads), 90, "the files")
    assert f"/api/checkpoints/{heads}/exports/vllm" in exports_html(pages, heads)
    assert not (pages.home / "exports").exists()
    response = client(pages).get(f"/api/checkpoints/{heads}/exports/vllm")
    zip_path = maker.home / "exports" / heads / "vllm.zip"
    assert response.status_code == 200 and response.content == zip_path.read_bytes()
    assert client(pages).get(f"/api/checkpoints/{heads}/exports/trtllm").status_code == 404
    with db.writing(pages) as session:
        paths = changes.delete(session, pages, session.get_one(Checkpoint, heads), force=True)
    changes.remove_files(paths)
    assert not [name for name in open_store(pages.store).names() if heads in name]


def test_files_that_are_nowhere_are_reported(pages: Settings) -> None:
    with db.writing(pages) as session:
        row = Dataset(name="lost", kind="prompts", state="ready", path=str(pages.home / "datasets" / "lost"), rows=1)
        session.add(row)

    def notice() -> str:
        with db.reading(pages) as session:
            return store_downloads.download_notice(session, pages, session.get_one(Dataset, row.id))

    wait_until(lambda: "neither on this machine nor in the store" in notice(), 90, "the reason")


def test_without_a_store_nothing_is_awaited(home: Settings) -> None:
    with db.reading(home) as session:
        assert store_downloads.download_notice(session, home, Dataset(id="x", path="/nowhere")) == ""
    assert store_downloads.signature() == ""
