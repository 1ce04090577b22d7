"""Databases for the tests, and a home with one of everything that a backup includes."""

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from speculoos.settings import Settings, load
from tests.tools.databases import database, postgres  # noqa: F401
from tracking import db, jobs, runs
from tracking.tables import (
    ApiKey,
    Base,
    Checkpoint,
    Dataset,
    DeviceLease,
    Experiment,
    Job,
    JobLog,
    Login,
    Metric,
    Preference,
    Sample,
    new_id,
    now,
)


class Filled:
    """A home with one of everything: ids by name, and its settings."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.ids = {name: new_id() for name in ("base", "data", "heads", "half", "done", "going", "waiting")}
        self.folders()
        with db.writing(settings) as session:
            self.rows(session)

    def folders(self) -> None:
        home, ids = self.settings.home, self.ids
        write(home / "models" / ids["base"] / "model.safetensors", b"base weights")
        write(home / "datasets" / ids["data"] / "shard-00000.jsonl", b'{"id": "1"}\n{"id": "2"}\n')
        write(home / "datasets" / ids["data"] / "dataset.json", b"{}")
        heads = home / "checkpoints" / ids["heads"] / "attempt-1"
        write(heads / "model.safetensors", b"heads")
        write(heads / "config.json", b"{}")
        sums = "".join(f"{digest(heads / name)}  {name}\n" for name in ("config.json", "model.safetensors"))
        write(heads / "SHA256SUMS", sums.encode())
        for step in (10, 20):
            self.state(ids["heads"], 1, step)
        self.state(ids["half"], 2, 30)
        write(home / "checkpoints" / ids["half"] / "attempt-2" / ".state-40.7.tmp" / "draft.safetensors", b"ha")
        write(home / "logs" / f"{ids['done']}.log", b"--- attempt 1 ---\nfine\n")
        write(home / "uploads" / "abc" / "prompts.jsonl", b'{"prompt": "x"}\n')
        write(home / "uploads" / "old" / "forgotten.jsonl", b"{}\n")
        write(home / "settings.toml", b'[endpoints.big]\nurl = "http://127.0.0.1:8000/v1"\n')
        write(home / "secrets" / "inference-token", b"token-canary-1234567890")

    def state(self, checkpoint: str, attempt: int, step: int) -> Path:
        """A training state."""
        folder = self.settings.home / "checkpoints" / checkpoint / f"attempt-{attempt}" / f"state-{step}"
        for name in ("draft.safetensors", "optimizer.safetensors", "state.json"):
            write(folder / name, f"{name} {step}".encode())
        return folder

    def rows(self, session) -> None:  # noqa: ANN001
        home, ids, long_ago = self.settings.home, self.ids, now() - timedelta(hours=3)
        experiment = Experiment(name="try")
        session.add(experiment)
        session.flush()
        base = Base(id=ids["base"], name="tiny", source="gguf", location="x", state="ready")
        base.path = str(home / "models" / ids["base"])
        data = Dataset(id=ids["data"], name="talk", kind="conversations", state="ready", rows=2, base_id=ids["base"])
        data.path = str(home / "datasets" / ids["data"])
        session.add(base)
        session.flush()
        session.add(data)
        session.flush()
        heads = home / "checkpoints" / ids["heads"] / "attempt-1"
        shared = {"base_id": ids["base"], "method": "medusa", "dataset_id": ids["data"]}
        session.add(
            Checkpoint(
                **{"id": ids["heads"], "name": "heads", "state": "ready", "path": str(heads), "job_id": ids["done"]},
                **{"sha256": digest(heads / "model.safetensors"), "figures": {"tau": 1.5}, **shared},
            )
        )
        session.add(Checkpoint(id=ids["half"], name="half", job_id=ids["going"], **shared))
        session.flush()
        done = self.job(session, "done", state="SUCCEEDED", started_at=long_ago, finished_at=now(), attempt=1)
        done.experiment_id = experiment.id
        going = self.job(session, "going", state="RUNNING", attempt=2, owner="host/boot/1/1", lease_until=now())
        going.child, going.done, going.total, going.request = {"pid": 1, "host": "elsewhere"}, 30, 100, {"method": "m"}
        waiting = self.job(session, "waiting", queue="io", published_at=now())
        waiting.request = {"path": str(home / "uploads" / "abc" / "prompts.jsonl"), "dataset_id": ids["data"]}
        waiting.after_id = ids["going"]
        session.add(JobLog(job_id=ids["done"], attempt=1, message="fine"))
        session.add(Metric(job_id=ids["done"], attempt=1, step=1, name="loss", value=0.5))
        session.add(Sample(job_id=ids["done"], step=1, record={"text": "sämple"}))
        session.add(Preference(key="theme", value={"dark": True}))
        session.add(Preference(key="process:web@elsewhere:1", value={"name": "web"}))
        session.add(DeviceLease(device="cpu", holder=f"job:{ids['going']}", attempt=2, until=now()))
        session.add(ApiKey(name="mine", sha256="a" * 64, hint="sk-a"))
        session.add(Login(id="b" * 64, user="ann", ends_at=now() + timedelta(days=1)))
        chat = runs.create_run(session, "chat", "tiny@heads", {"messages": [{"content": "why?"}]}, group_id=new_id())
        runs.start_run(session, chat.id)
        runs.add_steps(session, chat.id, [{"index": 0, "tokens": [{"id": 1, "text": "be"}]}])
        runs.finish_run(session, chat.id, "because", {"tau": 2.0})
        runs.create_run(session, "chat", "tiny", {"messages": []})

    def job(self, session, name: str, queue: str = "gpu", **columns) -> Job:  # noqa: ANN001, ANN003
        job = jobs.create(session, kind="train", queue=queue, request={}, name=name)
        job.id = self.ids[name]
        for key, value in columns.items():
            setattr(job, key, value)
        session.flush()
        return job


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def filled(database: Settings) -> Filled:  # noqa: F811
    """A home with one of everything, in SQLite and in PostgreSQL."""
    return Filled(database)


@pytest.fixture
def filled_sqlite(home: Settings) -> Filled:
    return Filled(home)


@pytest.fixture
def other(tmp_path: Path) -> Settings:
    """An empty home that does not exist yet, with a database file of its own."""
    return load({"SPECULOOS_HOME": str(tmp_path / "other")})


def rows_of(settings: Settings) -> dict[str, list[dict]]:
    """Every row of every table, as neutral values."""
    from ops import rows

    with db.snapshot(settings) as connection:
        return {table.name: list(rows.read_rows(connection, table)) for table in rows.tables(connection)}


def as_json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def with_url(settings: Settings, url: str) -> Settings:
    return replace(settings, database_url=url)
