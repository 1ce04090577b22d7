"""Import a published draft on the command line: a job adds a checkpoint, which is used by name, traced, evaluated and
exported like any other."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from app.views.checkpoint_rows import lineage, row_cells, settings_table
from cli.launch.supervision import end_leftover_processes, leftover_processes
from cli.main import main
from speculoos.checksums import file_sha256
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tests.cli.launch.test_services import in_this_process
from tests.formats.imports import writers
from tests.tools.homes import add_base
from tracking import db, jobs, queries
from tracking.tables import Base, Checkpoint
from workers.child.context import JobContext
from workers.child.work import models as work
from workers.jobs.request import command_for
from workers.jobs.requests import ImportDraft
from workers.jobs.submit import submit
from workers.timing import JobTiming

pytestmark = pytest.mark.integration


@pytest.fixture
def services_home(home: Settings) -> Iterator[Settings]:
    yield home
    end_leftover_processes(home, timeout=0)


def last_json(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


@pytest.mark.usefixtures("forked_services")
def test_a_published_draft_is_used_by_name_like_our_own(
    services_home: Settings, tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_base(services_home, tiny_base)
    source = writers.write(tmp_path / "eagle-heads", writers.eagle3(draft_ids=torch.arange(0, 320, 2), marked=True))
    (source / "README.md").write_text("---\nlicense: mit\n---\n")
    arguments = ("models", "add-draft", str(source), "--model", "tiny", "--name", "theirs")
    checkpoint, progress = in_this_process(capsys, *arguments)
    assert (checkpoint["state"], checkpoint["method"], checkpoint["base"], checkpoint["name"]) == (
        "ready",
        "eagle3",
        "tiny",
        "theirs",
    )
    assert (
        checkpoint["config"]["imported"]["licence"] == "mit" and checkpoint["config"]["imported"]["format"] == "eagle3"
    )
    assert file_sha256(Path(checkpoint["path"], "model.safetensors")) == checkpoint["sha256"]
    assert "Import theirs" in progress and not leftover_processes(services_home)
    command = ["generate", "--prompt", "hello", "--max-tokens", "24", "--json"]
    trace = tmp_path / "trace.jsonl"
    assert main([*command, "--model", "tiny"]) == 0
    plain = last_json(capsys)
    assert main([*command, "--model", "tiny@theirs", "--trace", str(trace)]) == 0
    drafted = last_json(capsys)
    assert drafted["token_ids"] == plain["token_ids"]
    records = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [token["id"] for record in records for token in record["tokens"]] == drafted["token_ids"]
    assert any(len(record["draft"]["tokens"]) > 1 for record in records)
    assert main(["evaluate", "--model", "tiny@theirs", "--limit", "2", "--max-tokens", "8", "--json"]) == 0
    assert last_json(capsys)["identical_to_plain"] is True
    assert main(["export", "tiny@theirs", "--output", str(tmp_path / "out.zip"), "--json"]) == 0
    assert last_json(capsys)["bytes"] > 0


@pytest.fixture
def import_job(home: Settings, shared_child: None, tiny_base: Path, tmp_path: Path) -> tuple[ImportDraft, JobContext]:
    """A claimed job that imports `tmp_path/published`."""
    location = str(tmp_path / "published")
    request = ImportDraft(source="folder", location=location, base_id=add_base(home, tiny_base))
    job = submit(request, settings=home)
    with db.writing(home) as session:
        attempt = jobs.claim(session, job.id, "test", 60)
    return ImportDraft(**job.request), JobContext(home, job.id, attempt, JobTiming())


def row(context: JobContext, checkpoint_id: str) -> Checkpoint:
    with db.reading(context.settings) as session:
        return session.get_one(Checkpoint, checkpoint_id)


def test_the_import_fills_in_the_row(import_job: tuple[ImportDraft, JobContext], tmp_path: Path) -> None:
    request, context = import_job
    pending = row(context, request.checkpoint_id)
    assert (pending.name, pending.state, pending.method) == ("published", "pending", "")
    writers.write(tmp_path / "published", writers.medusa(), "medusa_lm_head.pt", medusa_num_heads=2)
    result = work.run_import_draft(request, context)
    ready = row(context, request.checkpoint_id)
    assert (ready.state, ready.method, result["format"]) == ("ready", "medusa", "medusa")
    assert ready.base_sha256 == pending.base_sha256 and ready.size_bytes > 0
    with db.reading(context.settings) as session:
        base = session.get_one(Base, ready.base_id)
        html = lineage(session, ready, base) + settings_table(ready) + "".join(row_cells(pending, {}, {}))
        assert queries.find_checkpoint(session, "tiny@published").id == ready.id
    assert "Medusa repository" in html and "medusa_num_heads: config.json says 2" in html


def test_a_refused_draft_leaves_no_files(import_job: tuple[ImportDraft, JobContext], tmp_path: Path) -> None:
    request, context = import_job
    writers.write(tmp_path / "published", writers.medusa(), medusa_num_heads=9)
    with pytest.raises(BadInput, match="published/config.json: medusa_num_heads is 9"):
        work.run_import_draft(request, context)
    left = [path for path in (context.settings.home / "checkpoints").rglob("*") if path.is_file()]
    assert left == [] and row(context, request.checkpoint_id).state == "pending"


def test_the_command_reads_back() -> None:
    request = ImportDraft(source="hub", location="org/heads", base_id="b1", layout="vllm-eagle3")
    command = command_for(request, {"b1": "tiny"}, "theirs")
    assert command == (
        "speculoos models add-draft org/heads --model tiny --source hub --format vllm-eagle3 --name theirs"
    )


def test_wrong_arguments_are_refused_in_one_sentence(home: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "add-draft", "x", "--model", "tiny", "--source", "web"]) == 2
    assert "--source web: expected one of folder, hub" in capsys.readouterr().err
    assert main(["models", "add-draft", "x", "--model", "nothing"]) == 2
    assert "There is no model 'nothing'" in capsys.readouterr().err
