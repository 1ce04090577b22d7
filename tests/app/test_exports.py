"""Exports on a checkpoint's page: created by a job, validated, stored once, sent in ranges, and no longer offered when
the checkpoint has changed."""

import io
import re
import shutil
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.downloads import routes
from app.events import answer_error
from app.views import export_rows
from formats.store import exports_folder
from speculoos.errors import SpeculoosError, Unsupported
from speculoos.settings import Settings
from tests.tools.homes import add_base
from tracking import changes, db, jobs
from tracking.tables import Checkpoint, Evaluation, new_id
from workers.child.context import JobContext
from workers.child.work import models as work
from workers.jobs.requests import Export
from workers.jobs.submit import submit
from workers.timing import JobTiming


@pytest.fixture(scope="session")
def eight_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny import make_tiny_base

    return make_tiny_base(tmp_path_factory.mktemp("exports") / "base", num_hidden_layers=8)


@pytest.fixture
def heads(home: Settings, eight_layers: Path) -> str:
    """The id of an EAGLE-3 checkpoint with random weights."""
    from models.base import load_base
    from models.checkpoints import save_draft
    from models.eagle3 import Eagle3Draft

    base_id, row_id = add_base(home, eight_layers), new_id()
    draft = Eagle3Draft.from_base(load_base(eight_layers))
    folder = save_draft(home.home / "checkpoints" / row_id / "attempt-1", draft, {"base": "tiny"})
    with db.writing(home) as session:
        session.add(
            Checkpoint(id=row_id, name="heads", base_id=base_id, method="eagle3", state="ready", path=str(folder))
        )
    return row_id


@pytest.fixture
def client(home: Settings) -> TestClient:
    app = FastAPI()
    app.include_router(routes(home))
    app.add_exception_handler(SpeculoosError, answer_error)
    return TestClient(app)


def claim_export(home: Settings, checkpoint_id: str, name: str) -> tuple[Export, JobContext]:
    """Submit an export and claim it as a worker would."""
    job = submit(Export(checkpoint_id=checkpoint_id, format=name), settings=home)
    with db.writing(home) as session:
        attempt = jobs.claim(session, job.id, "test", 60)
    return Export(**job.request), JobContext(home, job.id, attempt, JobTiming())


def create_export(home: Settings, checkpoint_id: str, name: str) -> dict:
    request, context = claim_export(home, checkpoint_id, name)
    result = work.run_export(request, context)
    with db.writing(home) as session:
        jobs.succeed(session, context.job_id, context.attempt, result)
    return result


def exports_html(home: Settings, checkpoint_id: str) -> str:
    with db.reading(home) as session:
        return export_rows.exports_table(session, home, session.get_one(Checkpoint, checkpoint_id))


def row_of(html: str, title: str) -> str:
    """The table row of a format."""
    return next(line for line in re.findall(r"<tr>.*?</tr>", html, re.S) if title in line)


def test_an_export_is_offered_created_validated_and_sent_in_ranges(
    home: Settings, heads: str, client: TestClient
) -> None:
    before = exports_html(home, heads)
    assert 'data-make="vllm"' in row_of(before, "vLLM") and "data-made" not in row_of(before, "vLLM")
    assert "support Medusa heads only" in row_of(before, "Medusa") and "data-make" not in row_of(before, "Medusa")
    address = f"/api/checkpoints/{heads}/exports/vllm"
    assert client.get(address).status_code == 404

    request, context = claim_export(home, heads, "vllm")
    assert "Being created" in row_of(exports_html(home, heads), "vLLM")
    work.run_export(request, context)
    after = exports_html(home, heads)
    command, details = after.index("vllm serve"), after.index('<details class="sp-fold">')
    assert details < after.index(row_of(before, "Medusa")) and command < details, (
        "what fits first, then how to serve it"
    )
    row = row_of(after, "vLLM")
    assert f'href="{address}"' in row and re.search(r"\d+ checks passed", row) and "✓ logits" in row

    response = client.get(address)
    assert response.headers["content-disposition"] == 'attachment; filename="tiny-heads-vllm.zip"'
    archive = zipfile.ZipFile(io.BytesIO(response.content))
    names = ("model.safetensors", "config.json", "README.md", "validation.json", "SHA256SUMS")
    assert {f"tiny-heads-vllm/{name}" for name in names} == set(archive.namelist())
    assert "./tiny-heads-vllm" in archive.read("tiny-heads-vllm/README.md").decode()
    partial = client.get(address, headers={"Range": "bytes=1000-", "If-Range": response.headers["etag"]})
    assert partial.status_code == 206 and response.content[1000:] == partial.content


def test_the_card_says_what_the_latest_evaluations_measured(home: Settings, heads: str) -> None:
    figures = {"suite": "mt_bench", "state": "ready", "dtype": "float32", "machine": "AMD EPYC", "checkpoint_id": heads}
    older = {"tau": 1.2, "speedup": 0.9, "created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    newer = {"tau": 2.15, "speedup": 1.7, "speedup_low": 1.6, "speedup_high": 1.82}
    with db.writing(home) as session:
        session.add(Evaluation(name="a", result={"prompts": 80}, **figures, **older))
        session.add(Evaluation(name="b", result={"prompts": 80}, **figures, **newer))
        session.add(Evaluation(name="c", result={"prompts": 9}, source="a server", **figures, **newer))
    create_export(home, heads, "vllm")
    with zipfile.ZipFile(exports_folder(home.home, heads) / "vllm.zip") as archive:
        card = archive.read("tiny-heads-vllm/README.md").decode().split("## Measured")[1].split("##")[0]
    assert "MT-Bench, 80 questions, temperature 0" in card and "float32 on AMD EPYC" in card
    assert "τ 2.15, 1.70 × plain decoding (1.60 to 1.82 at 95 %)" in card
    assert "1.20" not in card and "9 questions" not in card


def test_the_table_shows_compatible_servers_and_passed_checks(home: Settings, heads: str) -> None:
    before = exports_html(home, heads)
    fits, _, folded = before.partition("<details")
    assert "vLLM 0.29 to 0.33" in fits and "SGLang 0.5" in fits and "checks passed" not in fits
    assert "Medusa repository and TGI" in folded and "Medusa repository and TGI" not in fits
    create_export(home, heads, "sglang")
    after = exports_html(home, heads)
    assert "checks passed" in row_of(after, "<strong>SGLang") and "not created yet" in row_of(after, "vLLM")


def test_headers_are_read_once_until_a_file_changes(
    home: Settings, heads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.checkpoints import update_draft_config

    calls, before, real = [], exports_html(home, heads), export_rows.export_options
    monkeypatch.setattr(
        export_rows, "export_options", lambda *folders: calls.append(folders) or real(*folders)
    )  # count the calls
    assert exports_html(home, heads) == before and not calls
    with db.reading(home) as session:
        folder = session.get_one(Checkpoint, heads).path
    update_draft_config(folder, drafting={"depth": 2}, tuning={})
    exports_html(home, heads)
    exports_html(home, heads)
    assert len(calls) == 1


def test_our_own_zip_is_written_once_and_can_be_resumed(home: Settings, heads: str, client: TestClient) -> None:
    response = client.get(f"/api/checkpoints/{heads}/download")
    (zip_file,) = exports_folder(home.home, heads).glob("*.zip")
    modified = zip_file.stat().st_mtime_ns
    partial = client.get(f"/api/checkpoints/{heads}/exports/own", headers={"Range": "bytes=5000-"})
    assert partial.status_code == 206 and partial.content == response.content[5000:]
    assert zip_file.stat().st_mtime_ns == modified


def test_writing_a_zip_delays_only_requests_for_it(
    home: Settings, heads: str, eight_layers: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the zip of one checkpoint is being written, that of another is sent; the first is written only once."""
    from models import archive

    other, started, release, real, written = (
        add_copy(home, heads),
        threading.Event(),
        threading.Event(),
        archive.write_zip,
        [],
    )

    def write(folder: Path, target: Path) -> Path:
        written.append(folder)
        if heads in str(folder):
            started.set()
            assert release.wait(60)
        return real(folder, target)

    monkeypatch.setattr(archive, "write_zip", write)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(client.get, f"/api/checkpoints/{heads}/download") for _ in range(2)]
        assert started.wait(60)
        assert client.get(f"/api/checkpoints/{other}/download").status_code == 200
        release.set()
        assert len({future.result().content for future in futures}) == 1
    assert len([folder for folder in written if heads in str(folder)]) == 1


def add_copy(home: Settings, checkpoint_id: str) -> str:
    """Another checkpoint with the same files; returns its id."""
    with db.writing(home) as session:
        row, copy_id = session.get_one(Checkpoint, checkpoint_id), new_id()
        folder = shutil.copytree(row.path, home.home / "checkpoints" / copy_id / "attempt-1")
        values = {"base_id": row.base_id, "method": row.method, "state": "ready"}
        session.add(Checkpoint(id=copy_id, name="copy", path=str(folder), **values))
    return copy_id


def test_an_outdated_export_is_no_longer_offered(home: Settings, heads: str, client: TestClient) -> None:
    from models.checkpoints import update_draft_config

    create_export(home, heads, "sglang")
    content = client.get(f"/api/checkpoints/{heads}/download").content
    with db.reading(home) as session:
        folder = session.get_one(Checkpoint, heads).path
    update_draft_config(folder, drafting={"depth": 3}, tuning={})
    assert client.get(f"/api/checkpoints/{heads}/exports/sglang").status_code == 404
    assert 'data-make="sglang"' in row_of(exports_html(home, heads), "SGLang")
    assert client.get(f"/api/checkpoints/{heads}/download").content != content


def test_an_unsupported_export_fails_with_the_reason_and_leaves_nothing(home: Settings, heads: str) -> None:
    request, context = claim_export(home, heads, "medusa")
    with pytest.raises(Unsupported) as error:
        work.run_export(request, context)
    with db.writing(home) as session:
        jobs.fail(session, context.job_id, context.attempt, error.value.code, str(error.value), "")
    assert not list(exports_folder(home.home, heads).glob("*"))
    with pytest.raises(Unsupported, match="Unknown format 'nonsense'"):
        submit(Export(checkpoint_id=heads, format="nonsense"), settings=home)


def test_exports_are_deleted_with_their_checkpoint(home: Settings, heads: str) -> None:
    create_export(home, heads, "vllm")
    with db.writing(home) as session:
        paths = changes.delete(session, home, session.get_one(Checkpoint, heads), force=True)
    changes.remove_files(paths)
    assert not exports_folder(home.home, heads).exists()


def test_an_existing_export_stays_until_the_next_is_complete(
    home: Settings, heads: str, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_export(home, heads, "vllm")
    request, context = claim_export(home, heads, "vllm")

    def refuse(*_: object) -> None:
        raise Unsupported("no")

    monkeypatch.setattr("formats.export.validate", refuse)
    with pytest.raises(Unsupported):
        work.run_export(request, context)
    assert client.get(f"/api/checkpoints/{heads}/exports/vllm").status_code == 200
    assert {path.name for path in exports_folder(home.home, heads).iterdir()} == {"vllm.zip", "vllm.json"}


def test_a_checkpoint_that_is_not_the_trained_one_is_not_exported(home: Settings, heads: str) -> None:
    with db.writing(home) as session:
        session.get_one(Checkpoint, heads).sha256 = "a" * 64
    with pytest.raises(SpeculoosError, match="damaged"):
        create_export(home, heads, "vllm")
