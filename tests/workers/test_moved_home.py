"""A home is copied elsewhere while nothing runs and the old one is removed; everything in it still works."""

import io
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.downloads import routes as downloads
from models.identity import weights_sha256
from serving.main import create_app
from speculoos.settings import Settings
from tests.browser.workbench import Workbench, add_heads
from tests.tools.homes import add_answers
from tests.workers.conftest import Bench
from tests.workers.training_bench import SETTINGS
from tracking import db, queries, reports
from tracking.tables import Base, Checkpoint, Dataset, Job, new_id
from workers.jobs.requests import ImportPrompts, Train
from workers.jobs.submit import submit

pytestmark = pytest.mark.integration

FORKED = True


def add_own_base(settings: Settings, tiny_base: Path) -> str:
    """Add a base whose files lie in the home, like one fetched from a hub."""
    base_id = new_id()
    folder = settings.home / "models" / base_id
    shutil.copytree(tiny_base, folder)
    values = {"location": str(folder), "path": str(folder), "weights_sha256": weights_sha256(folder)}
    with db.writing(settings) as session:
        session.add(Base(id=base_id, name="tiny", source="folder", state="ready", **values))
    return base_id


def upload(settings: Settings) -> Path:
    """Write a prompt file where the pages put uploads."""
    file = settings.home / "uploads" / ("ab" * 32) / "prompts.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"prompt": "Count to three."}\n' * 3)
    return file


def train(settings: Settings, base: str, data: str, name: str, steps: int, **changes: object) -> Job:
    options = {**SETTINGS, "batch_tokens": 128, "max_steps": steps, "save_every": 5, **changes}
    request = Train(method="medusa", base_id=base, dataset_id=data, settings=options)
    return submit(request, name=name, settings=settings)


def some_work(bench: Bench, tiny_base: Path) -> tuple[str, Job, Job]:
    """A draft, an interrupted training that continues it, and an import that has not begun."""
    settings = bench.settings
    base = add_own_base(settings, tiny_base)
    data = add_answers(settings, base)
    worker = bench.worker("gpu")
    heads = add_heads(Workbench(settings, {}), base, "heads")
    with db.reading(settings) as session:
        path = queries.find_checkpoint(session, "tiny@heads").path
    training = train(settings, base, data, "more heads", 2000, draft_path=path)
    bench.wait_for(training.id, lambda j: j.done >= 12, "twelve steps")
    worker.terminate()
    worker.wait(20)
    interrupted = bench.wait(training.id, "INTERRUPTED")
    request = ImportPrompts(str(upload(settings)), original_name="prompts.jsonl", delete_after=True)
    return heads, interrupted, submit(request, settings=settings)


def move(bench: Bench, target: Path) -> Bench:
    """Copy the home to `target` and remove the original."""
    old = bench.settings.home
    bench.end()
    db.dispose()
    shutil.copytree(old, target, symlinks=True)
    shutil.rmtree(old)
    moved = replace(bench.settings, home=target, database_url=f"sqlite:///{target / 'speculoos.db'}")
    return Bench(moved, forked=True)


def test_a_home_that_was_moved_chats_downloads_and_resumes(bench: Bench, tiny_base: Path, tmp_path: Path) -> None:
    old = bench.settings.home
    heads, interrupted, waiting = some_work(bench, tiny_base)
    moved = move(bench, tmp_path / "another place" / "home")
    try:
        chat(moved.settings)
        download(moved.settings, heads)
        with db.writing(moved.settings) as session:
            job = session.get_one(Job, interrupted.id)
            job.request = {**job.request, "settings": {**job.request["settings"], "max_steps": job.done + 10}}
            steps = job.done + 10
        moved.worker("gpu")
        moved.worker("io")
        resumed = moved.wait(interrupted.id, "SUCCEEDED")
        imported = moved.wait(waiting.id, "SUCCEEDED")
        assert (resumed.attempt, resumed.done) == (2, steps)
        with db.reading(moved.settings) as session:
            assert session.get_one(Dataset, imported.request["dataset_id"]).rows == 3
            messages = [line.message for line in reports.logs(session, resumed.id)]
            paths = [c.path for c in session.query(Checkpoint)] + [d.path for d in session.query(Dataset)]
        assert any(message.startswith("Resumed") for message in messages), messages
        assert all(path.startswith(f"{moved.settings.home}/") and Path(path).is_dir() for path in paths), paths
        assert not old.exists(), "nothing was written where the home used to be"
    finally:
        moved.end()


def chat(settings: Settings) -> None:
    """Chat with the trained draft over HTTP."""
    settings = replace(settings, inference_token="token")
    with TestClient(create_app(settings), base_url=f"http://127.0.0.1:{settings.inference_port}") as client:
        response = client.post(
            "/v1/chat/completions",
            json={"model": "tiny@heads", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4},
            headers={"Authorization": "Bearer token"},
        )
    assert response.status_code == 200, response.text


def download(settings: Settings, checkpoint_id: str) -> None:
    """Download the zip that the pages offer."""
    from fastapi import FastAPI

    app = FastAPI()
    app.include_router(downloads(settings))
    response = TestClient(app).get(f"/api/checkpoints/{checkpoint_id}/download")
    assert response.status_code == 200
    assert "model.safetensors" in zipfile.ZipFile(io.BytesIO(response.content)).namelist()
