"""Server formats on a checkpoint's page: made as a job, proved, stored once, sent in parts, and no longer offered when
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
    """The id of an EAGLE-3 checkpoint, its weights random."""
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


def ordered(home: Settings, checkpoint_id: str, name: str) -> tuple[Export, JobContext]:
    """An export, claimed as a worker would."""
    job = submit(Export(checkpoint_id=checkpoint_id, format=name), settings=home)
    with db.writing(home) as session:
        attempt = jobs.claim(session, job.id, "test", 60)
    return Export(**job.request), JobContext(home, job.id, attempt, JobTiming())


def made(home: Settings, checkpoint_id: str, name: str) -> dict:
    request, context = ordered(home, checkpoint_id, name)
    result = work.run_export(request, context)
    with db.writing(home) as session:
        jobs.succeed(session, context.job_id, context.attempt, result)
    return result


def page(home: Settings, checkpoint_id: str) -> str:
    with db.reading(home) as session:
        return export_rows.exports_table(session, home, session.get_one(Checkpoint, checkpoint_id))


def row_of(html: str, title: str) -> str:
    """The line of a format."""
    return next(line for line in re.findall(r"<tr>.*?</tr>", html, re.S) if title in line)


def test_a_format_is_offered_made_proved_and_sent_in_parts(home: Settings, heads: str, client: TestClient) -> None:
    before = page(home, heads)
    assert 'data-make="vllm"' in row_of(before, "vLLM") and "data-made" not in row_of(before, "vLLM")
    assert "support Medusa heads only" in row_of(before, "Medusa") and "data-make" not in row_of(before, "Medusa")
    address = f"/api/checkpoints/{heads}/exports/vllm"
    assert client.get(address).status_code == 404

    request, context = ordered(home, heads, "vllm")
    assert "Being created" in row_of(page(home, heads), "vLLM")
    work.run_export(request, context)
    after = page(home, heads)
    command, folded = after.index("vllm serve"), after.index('<details class="sp-fold">')
    assert folded < after.index(row_of(before, "Medusa")) and command < folded, "what fits first, then how to serve it"
    shown = row_of(after, "vLLM")
    assert f'href="{address}"' in shown and re.search(r"\d+ checks passed", shown) and "✓ logits" in shown

    whole = client.get(address)
    assert whole.headers["content-disposition"] == 'attachment; filename="tiny-heads-vllm.zip"'
    archive = zipfile.ZipFile(io.BytesIO(whole.content))
    names = ("model.safetensors", "config.json", "README.md", "validation.json", "SHA256SUMS")
    assert {f"tiny-heads-vllm/{name}" for name in names} == set(archive.namelist())
    assert "./tiny-heads-vllm" in archive.read("tiny-heads-vllm/README.md").decode()
    rest = client.get(address, headers={"Range": "bytes=1000-", "If-Range": whole.headers["etag"]})
    assert rest.status_code == 206 and whole.content[1000:] == rest.content


def test_the_card_says_what_the_latest_evaluations_measured(home: Settings, heads: str) -> None:
    figures = {"suite": "mt_bench", "state": "ready", "dtype": "float32", "machine": "AMD EPYC", "checkpoint_id": heads}
    older = {"tau": 1.2, "speedup": 0.9, "created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    newer = {"tau": 2.15, "speedup": 1.7, "speedup_low": 1.6, "speedup_high": 1.82}
    with db.writing(home) as session:
        session.add(Evaluation(name="a", result={"prompts": 80}, **figures, **older))
        session.add(Evaluation(name="b", result={"prompts": 80}, **figures, **newer))
        session.add(Evaluation(name="c", result={"prompts": 9}, source="a server", **figures, **newer))
    made(home, heads, "vllm")
    with zipfile.ZipFile(exports_folder(home.home, heads) / "vllm.zip") as archive:
        card = archive.read("tiny-heads-vllm/README.md").decode().split("## Measured")[1].split("##")[0]
    assert "MT-Bench, 80 questions, temperature 0" in card and "float32 on AMD EPYC" in card
    assert "τ 2.15, 1.70 × plain decoding (1.60 to 1.82 at 95 %)" in card
    assert "1.20" not in card and "9 questions" not in card


def test_at_a_glance_who_can_take_it_and_what_was_proved(home: Settings, heads: str) -> None:
    before = page(home, heads)
    fits, _, folded = before.partition("<details")
    assert "vLLM 0.29 to 0.33" in fits and "SGLang 0.5" in fits and "checks passed" not in fits
    assert "Medusa repository and TGI" in folded and "Medusa repository and TGI" not in fits
    made(home, heads, "sglang")
    after = page(home, heads)
    assert "checks passed" in row_of(after, "<strong>SGLang") and "not created yet" in row_of(after, "vLLM")


def test_headers_are_read_once_until_a_file_is_another(
    home: Settings, heads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.checkpoints import update_draft_config

    asked, before, real = [], page(home, heads), export_rows.export_options
    monkeypatch.setattr(
        export_rows, "export_options", lambda *folders: asked.append(folders) or real(*folders)
    )  # counted
    assert page(home, heads) == before and not asked
    with db.reading(home) as session:
        folder = session.get_one(Checkpoint, heads).path
    update_draft_config(folder, drafting={"depth": 2}, tuning={})
    page(home, heads)
    page(home, heads)
    assert len(asked) == 1


def test_our_own_zip_is_written_once_and_goes_on_where_it_broke_off(
    home: Settings, heads: str, client: TestClient
) -> None:
    whole = client.get(f"/api/checkpoints/{heads}/download")
    (kept,) = exports_folder(home.home, heads).glob("*.zip")
    written = kept.stat().st_mtime_ns
    rest = client.get(f"/api/checkpoints/{heads}/exports/own", headers={"Range": "bytes=5000-"})
    assert rest.status_code == 206 and rest.content == whole.content[5000:]
    assert kept.stat().st_mtime_ns == written


def test_a_zip_that_is_being_written_keeps_nobody_waiting_but_those_who_want_it(
    home: Settings, heads: str, eight_layers: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writing of one checkpoint's zip is held up; another's is sent meanwhile, and the first is written once."""
    from models import archive

    other, begun, go, real, written = add_copy(home, heads), threading.Event(), threading.Event(), archive.write_zip, []

    def write(folder: Path, target: Path) -> Path:
        written.append(folder)
        if heads in str(folder):
            begun.set()
            assert go.wait(60)
        return real(folder, target)

    monkeypatch.setattr(archive, "write_zip", write)
    with ThreadPoolExecutor(2) as pool:
        slow = [pool.submit(client.get, f"/api/checkpoints/{heads}/download") for _ in range(2)]
        assert begun.wait(60)
        assert client.get(f"/api/checkpoints/{other}/download").status_code == 200
        go.set()
        assert len({answer.result().content for answer in slow}) == 1
    assert len([folder for folder in written if heads in str(folder)]) == 1


def add_copy(home: Settings, checkpoint_id: str) -> str:
    """Another checkpoint with the same files; returns its id."""
    with db.writing(home) as session:
        row, made = session.get_one(Checkpoint, checkpoint_id), new_id()
        folder = shutil.copytree(row.path, home.home / "checkpoints" / made / "attempt-1")
        values = {"base_id": row.base_id, "method": row.method, "state": "ready"}
        session.add(Checkpoint(id=made, name="copy", path=str(folder), **values))
    return made


def test_an_export_of_what_the_checkpoint_was_is_offered_no_longer(
    home: Settings, heads: str, client: TestClient
) -> None:
    from models.checkpoints import update_draft_config

    made(home, heads, "sglang")
    own = client.get(f"/api/checkpoints/{heads}/download").content
    with db.reading(home) as session:
        folder = session.get_one(Checkpoint, heads).path
    update_draft_config(folder, drafting={"depth": 3}, tuning={})
    assert client.get(f"/api/checkpoints/{heads}/exports/sglang").status_code == 404
    assert 'data-make="sglang"' in row_of(page(home, heads), "SGLang")
    assert client.get(f"/api/checkpoints/{heads}/download").content != own


def test_what_cannot_go_there_ends_with_the_reason_and_leaves_nothing(home: Settings, heads: str) -> None:
    request, context = ordered(home, heads, "medusa")
    with pytest.raises(Unsupported) as refused:
        work.run_export(request, context)
    with db.writing(home) as session:
        jobs.fail(session, context.job_id, context.attempt, refused.value.code, str(refused.value), "")
    assert not list(exports_folder(home.home, heads).glob("*"))
    with pytest.raises(Unsupported, match="Unknown format 'nonsense'"):
        submit(Export(checkpoint_id=heads, format="nonsense"), settings=home)


def test_exports_go_with_their_checkpoint(home: Settings, heads: str) -> None:
    made(home, heads, "vllm")
    with db.writing(home) as session:
        paths = changes.delete(session, home, session.get_one(Checkpoint, heads), force=True)
    changes.remove_files(paths)
    assert not exports_folder(home.home, heads).exists()


def test_a_file_that_is_there_stays_until_the_next_is_whole(
    home: Settings, heads: str, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(home, heads, "vllm")
    request, context = ordered(home, heads, "vllm")

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
        made(home, heads, "vllm")
