"""Retention removes what is old, in small batches, and nothing that is young, that a job needs, or that is part of a
younger chat."""

import json
import os
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from cli.main import main
from ops import retention, storage
from ops.retention import clean, clean_when_due, states_of
from speculoos.settings import Settings
from tests.ops.conftest import Filled, write
from tracking import db, jobs, runs
from tracking.tables import Checkpoint, JobLog, Preference, Run, RunStep, new_id, now

OLD = timedelta(days=200)


def age(path: Path, days: float) -> Path:
    at = (now() - timedelta(days=days)).timestamp()
    for each in [path, *path.rglob("*")]:
        os.utime(each, (at, at))
    return path


def add_run(settings: Settings, days: float, group: str | None = None, state: str = "SUCCEEDED") -> str:
    with db.writing(settings) as session:
        run = runs.create_run(session, "chat", "tiny", {}, group_id=group)
        runs.add_steps(session, run.id, [{"index": n} for n in range(3)])
        run.state, run.created_at = state, now() - timedelta(days=days)
        return run.id


def ids_of(settings: Settings, table) -> set[str]:  # noqa: ANN001
    with db.reading(settings) as session:
        return set(session.scalars(db.sa.select(table.id if table is not RunStep else RunStep.run_id)))


def test_old_chats_go_whole_and_young_ones_stay_whole(database: Settings) -> None:
    group = new_id()
    old, young = add_run(database, 100), add_run(database, 10)
    first, last = add_run(database, 100, group), add_run(database, 1, group)
    going_on = add_run(database, 100, state="RUNNING")
    assert clean(database, dry_run=True)["runs"].count == 1 and old in ids_of(database, Run)
    assert clean(database)["runs"].count == 1
    assert ids_of(database, Run) == ids_of(database, RunStep) == {young, first, last, going_on}
    assert clean(replace(database, keep_runs_days=0))["runs"].count == 0
    assert clean(replace(database, keep_runs_days=5))["runs"].count == 1, "the chat whose last turn is young stays"


def test_many_rows_go_in_batches_while_others_write(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    with db.writing(home) as session:
        session.add_all(Run(kind="chat", model="m", state="SUCCEEDED", created_at=now() - OLD) for _ in range(95))
    slowest, ended = [0.0], threading.Event()

    def others() -> None:
        while not ended.is_set():
            begun = datetime.now().timestamp()
            with db.writing(home) as session:
                session.merge(Preference(key="beat", value={}))
            slowest[0] = max(slowest[0], datetime.now().timestamp() - begun)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        assert clean(home)["runs"].count == 95
    finally:
        ended.set()
        thread.join()
    assert slowest[0] < 3


def test_log_lines_and_files_of_jobs_that_ended_long_ago(filled_sqlite: Filled) -> None:
    settings, ids = filled_sqlite.settings, filled_sqlite.ids
    log, going = settings.home / "logs" / f"{ids['done']}.log", settings.home / "logs" / f"{ids['going']}.log"
    write(going, b"x")
    clean(settings)
    assert log.exists() and ids_of(settings, JobLog)
    with db.writing(settings) as session:
        jobs.get(session, ids["done"]).finished_at = now() - OLD
    removed = clean(settings)
    assert not log.exists() and not ids_of(settings, JobLog) and going.exists()
    assert (removed["log files"].count, removed["log lines"].count) == (1, 1) and removed["log files"].bytes == 23


def test_uploads_go_unless_a_job_needs_them(filled_sqlite: Filled) -> None:
    uploads = filled_sqlite.settings.home / "uploads"
    age(uploads, 30)
    write(uploads / "new" / "young.jsonl", b"")
    assert clean(filled_sqlite.settings)["uploads"].count == 1
    left = {p.name for p in uploads.rglob("*") if p.is_file()}
    assert left == {"prompts.jsonl", "young.jsonl"}, "prompts.jsonl is what a waiting job imports"
    assert not (uploads / "old").exists()


@pytest.mark.parametrize(
    ("state", "days", "left"),
    [
        ("SUCCEEDED", 0, ["state-20"]),
        ("FAILED", 1, ["state-10", "state-20"]),
        ("CANCELLED", 30, []),
        ("FAILED", 30, []),
        ("QUEUED", 30, ["state-10", "state-20"]),
        ("RUNNING", 30, ["state-10", "state-20"]),
        ("INTERRUPTED", 30, ["state-10", "state-20"]),
    ],
)
def test_states_are_removed_unless_a_job_needs_them(
    filled_sqlite: Filled, state: str, days: int, left: list[str]
) -> None:
    settings, ids = filled_sqlite.settings, filled_sqlite.ids
    with db.writing(settings) as session:
        job = jobs.get(session, ids["done"])
        job.state, job.finished_at = state, now() - timedelta(days=days)
    clean(settings)
    folder = settings.home / "checkpoints" / ids["heads"]
    assert [p.name for p in states_of(folder)] == left
    assert sorted(p.name for p in (folder / "attempt-1").iterdir()) == [
        *("SHA256SUMS", "config.json", "model.safetensors", *left)
    ], "the checkpoint itself is whole, and nothing half-removed is left"


def test_a_training_that_is_retried_meanwhile_keeps_its_states(
    filled_sqlite: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, ids = filled_sqlite.settings, filled_sqlite.ids
    with db.writing(settings) as session:
        job = jobs.get(session, ids["done"])
        job.state, job.finished_at = "FAILED", now() - timedelta(days=30)
    original = retention.states_of

    def retried(folder: Path) -> list[Path]:
        states = original(folder)
        with db.writing(settings) as session:
            if jobs.get(session, ids["done"]).state == "FAILED":
                jobs.retry(session, ids["done"])
        return states

    monkeypatch.setattr(retention, "states_of", retried)
    clean(settings)
    assert len(original(settings.home / "checkpoints" / ids["heads"])) == 2


def test_retention_runs_once_an_hour(home: Settings, caplog: pytest.LogCaptureFixture) -> None:
    add_run(home, 100)
    with caplog.at_level("INFO"):
        assert [clean_when_due(home), clean_when_due(home)] == [True, False]
    assert "Retention removed 1 runs" in caplog.text
    with db.writing(home) as session:
        note = session.get(Preference, retention.NOTE)
        assert note.value["removed"] == {"runs": {"count": 1, "bytes": 0}}
        note.updated_at = now() - timedelta(hours=2)
    assert clean_when_due(home)
    with db.reading(home) as session:
        assert session.get(Preference, retention.NOTE).value["removed"]["runs"]["count"] == 1, "the last removal"


def test_the_reconciler_runs_retention_in_a_thread(home: Settings, caplog: pytest.LogCaptureFixture) -> None:
    gone = add_run(home, 100)
    with caplog.at_level("INFO"):
        retention.in_background(home).join(60)
    assert "Retention removed 1 runs" in caplog.text and gone not in ids_of(home, Run)


def test_leftovers_are_what_no_row_names(filled_sqlite: Filled) -> None:
    settings, home, ids = filled_sqlite.settings, filled_sqlite.settings.home, filled_sqlite.ids
    lost = [
        write(home / "models" / ("f" * 32) / "model.safetensors", b"lost").parent,
        write(home / "datasets" / f".{ids['data']}-x1" / "shard-00000.jsonl", b"half").parent,
        write(home / "logs" / f"{'e' * 32}.log", b"of a job that was deleted"),
    ]
    [age(path, 3) for path in lost]
    write(home / "checkpoints" / ("d" * 32) / "young", b"perhaps someone makes it")
    age(write(home / "checkpoints" / f".{ids['half']}.partial" / "x", b"its job goes on").parent, 3)
    age(home / "models" / ids["base"], 3)
    leftovers = storage.leftovers(settings)
    assert {item.path for item in leftovers} == set(lost)
    clean(settings)
    assert all(path.exists() for path in lost), "never without being asked"
    assert clean(settings, leftovers=True)["leftovers"].count == 3
    assert not any(path.exists() for path in lost) and (home / "models" / ids["base"]).exists()


def test_the_command_lists_and_removes(filled_sqlite: Filled, capsys: pytest.CaptureFixture[str]) -> None:
    gone = add_run(filled_sqlite.settings, 100)
    assert main(["cleanup", "--dry-run", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["dry_run"] and report["removed"]["runs"]["count"] == 1 and report["removed"]["states"]["count"] == 1
    assert gone in ids_of(filled_sqlite.settings, Run)
    assert main(["cleanup"]) == 0
    assert "runs" in capsys.readouterr().out and gone not in ids_of(filled_sqlite.settings, Run)


def fill_and_empty(settings: Settings) -> int:
    path = storage.database_file(settings)
    with db.writing(settings) as session:
        session.add_all(
            Run(kind="c", model="m", state="FAILED", text="x" * 4000, created_at=now() - OLD) for _ in range(1500)
        )
    db.dispose()
    return path.stat().st_size


def test_space_is_given_back_to_the_disk(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAUSE", 0)
    full = fill_and_empty(home)
    assert full > 6e6
    clean(home)
    db.dispose()
    assert storage.database_file(home).stat().st_size < full / 2


def test_sizes_of_rows_and_parts(filled_sqlite: Filled) -> None:
    settings, ids = filled_sqlite.settings, filled_sqlite.ids
    write(settings.engines_folder / "llamacpp" / "bin" / "python", bytes(3000))
    usage = storage.measure_storage(settings)
    by_id = {item.id: item for item in usage.items}
    heads = settings.home / "checkpoints" / ids["heads"]
    whole = sum(p.stat().st_size for p in heads.rglob("*") if p.is_file())
    states = sum(p.stat().st_size for p in heads.glob("attempt-1/state-*/*"))
    assert (by_id[ids["heads"]].bytes, by_id[ids["heads"]].states) == (whole, states)
    assert usage.parts["models"] == len(b"base weights") and usage.parts["database"] > 50_000
    assert usage.parts["engines"] == 3000 and usage.used == sum(usage.parts.values())
    assert usage.disk_free > 0


def test_a_model_outside_costs_the_home_nothing(filled_sqlite: Filled, tmp_path: Path) -> None:
    write(tmp_path / "mine" / "model.safetensors", bytes(5000))
    with db.writing(filled_sqlite.settings) as session:
        checkpoint = session.get_one(Checkpoint, filled_sqlite.ids["heads"])
        checkpoint.path = str(tmp_path / "mine")
    thing = next(t for t in storage.measure_storage(filled_sqlite.settings).items if t.id == filled_sqlite.ids["heads"])
    assert thing.outside and thing.bytes == 5000


def test_storage_is_measured_in_a_thread_and_once(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, started, go = [], threading.Event(), threading.Event()

    def slow(settings: Settings) -> storage.StorageUsage:
        started.set()
        go.wait(30)
        counted.append(1)
        return original(settings)

    original = storage.measure_storage
    monkeypatch.setattr(storage, "measure_storage", slow)
    monitor = storage.StorageMonitor(home)
    assert monitor.get() is None and monitor.get() is None, "nobody waits"
    assert started.wait(30)
    thread = monitor.measure()
    go.set()
    thread.join(30)
    assert monitor.get() is not None and len(counted) == 2, "once for the first, once for all requests made meanwhile"
    assert monitor.get() is monitor.last and len(counted) == 2
