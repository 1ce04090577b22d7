"""The database: one class a table. Rows are the truth of every job, data set, checkpoint and run.

Ids are uuid4 hex strings. Times are UTC. JSON columns hold what only people or one kind of job read. Paths inside the
home are kept relative to it (see tracking.places) and read as they are now.
"""

import time
import uuid
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Float, ForeignKey, Index, Integer, MetaData, String, Text, select
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column

from tracking.places import HomeJson, HomePath
from tracking.values import Json, Written


class UtcDateTime(Written):
    """Aware UTC datetimes on every engine (SQLite stores them naive)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        return value.astimezone(UTC) if value else None

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        return value.replace(tzinfo=UTC) if value and value.tzinfo is None else value


def new_id() -> str:
    return uuid.uuid4().hex


def now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


class Table(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime, dict[str, Any]: Json}


class Named:
    """What every listed thing has: an id, a name, a note and when it was made."""

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(200))
    note: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)


class Experiment(Named, Table):
    """A named piece of work that jobs, data sets and checkpoints belong to."""

    __tablename__ = "experiments"


class Base(Named, Table):
    """A base model known to the workbench. `weights_sha256` is its identity."""

    __tablename__ = "bases"
    __table_args__ = (Unique("name"),)

    source: Mapped[str] = mapped_column(String(16))  # starter | hub | folder | gguf
    location: Mapped[str] = mapped_column(HomePath)  # hub id, folder or file it came from
    path: Mapped[str] = mapped_column(HomePath, default="")  # local Hugging Face folder, once state is ready
    state: Mapped[str] = mapped_column(String(16), default="pending")  # pending | ready | failed
    weights_sha256: Mapped[str] = mapped_column(String(64), default="")
    tokenizer_sha256: Mapped[str] = mapped_column(String(64), default="")
    card: Mapped[dict[str, Any]] = mapped_column(default=dict)
    job_id: Mapped[str | None] = mapped_column(String(32))


class Dataset(Named, Table):
    """Prompts that were imported, or conversations that were generated. Files in home/datasets/<id>/."""

    __tablename__ = "datasets"
    __table_args__ = (Unique("name"),)

    kind: Mapped[str] = mapped_column(String(16))  # prompts | conversations
    state: Mapped[str] = mapped_column(String(16), default="pending")  # pending | ready | failed
    path: Mapped[str] = mapped_column(HomePath, default="")
    rows: Mapped[int] = mapped_column(default=0)
    bad_rows: Mapped[int] = mapped_column(default=0)
    report: Mapped[dict[str, Any]] = mapped_column(default=dict)  # {"bad": [{"line", "reason"}, …], "tokens": n, …}
    source_id: Mapped[str | None] = mapped_column(ForeignKey("datasets.id"))  # prompts it was generated from
    base_id: Mapped[str | None] = mapped_column(ForeignKey("bases.id"))  # base that wrote the answers
    experiment_id: Mapped[str | None] = mapped_column(ForeignKey("experiments.id"))
    job_id: Mapped[str | None] = mapped_column(String(32))
    config: Mapped[dict[str, Any]] = mapped_column(HomeJson, default=dict)


class Job(Named, Table):
    """Work for a worker. See tracking.jobs for the states and who may change what."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_state_queue", "state", "queue"), Unique("parent_id", "number"))

    kind: Mapped[str] = mapped_column(String(32))  # a key of workers.jobs.requests.REQUESTS
    queue: Mapped[str] = mapped_column(String(16))  # gpu | io
    state: Mapped[str] = mapped_column(String(16), default="QUEUED")
    request: Mapped[dict[str, Any]] = mapped_column(HomeJson, default=dict)  # a workers.jobs.request.Request as JSON
    after_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))  # starts only once that one SUCCEEDED
    experiment_id: Mapped[str | None] = mapped_column(ForeignKey("experiments.id"))
    user: Mapped[str] = mapped_column(String(80), default="")  # who asked for it, as they called themselves
    attempt: Mapped[int] = mapped_column(default=0)
    attempt_cap: Mapped[int] = mapped_column(default=5)  # none starts beyond it; progress and retries raise it
    done_before: Mapped[int] = mapped_column(BigInteger, default=0)  # the most `done` before this attempt
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    owner: Mapped[str] = mapped_column(String(200), default="")  # worker that holds the lease
    lease_until: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    child: Mapped[dict[str, Any]] = mapped_column(default=dict)  # what workers.identity knows it by
    queued_at: Mapped[datetime] = mapped_column(default=now)  # its place in the queue
    published_at: Mapped[datetime | None]  # when its message was last sent
    started_at: Mapped[datetime | None]  # first claimed since it was asked for, or retried
    finished_at: Mapped[datetime | None]
    done: Mapped[int] = mapped_column(BigInteger, default=0)
    total: Mapped[int | None] = mapped_column(BigInteger)
    unit: Mapped[str] = mapped_column(String(32), default="")
    progress_note: Mapped[str] = mapped_column(Text, default="")
    eta_seconds: Mapped[float | None] = mapped_column(Float)
    result: Mapped[dict[str, Any]] = mapped_column(HomeJson, default=dict)
    error_code: Mapped[str] = mapped_column(String(64), default="")
    error: Mapped[str] = mapped_column(Text, default="")
    hint: Mapped[str] = mapped_column(Text, default="")
    version: Mapped[int] = mapped_column(default=0)  # grows with every change a page may want to see
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))  # the job this one is a shard of
    number: Mapped[int] = mapped_column(default=0)  # which of its shards, from 0
    shards: Mapped[int] = mapped_column(default=0)  # into how many this job was divided; 0: it was not
    estimated_seconds: Mapped[float | None] = mapped_column(Float)  # as it was asked for
    work: Mapped[float] = mapped_column(Float, default=0.0)  # what that was reckoned from (workers.jobs.estimates)


class JobLog(Table):
    """Log lines of a job, kept as rows so that any page on any machine can show them."""

    __tablename__ = "job_logs"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    attempt: Mapped[int]
    at: Mapped[datetime] = mapped_column(default=now)
    level: Mapped[str] = mapped_column(String(16), default="info")
    message: Mapped[str] = mapped_column(Text)


class Metric(Table):
    """One number of a job at a step, for charts. A resumed attempt overwrites the steps it repeats."""

    __tablename__ = "metrics"
    __table_args__ = (Unique("job_id", "name", "step"),)

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    step: Mapped[int] = mapped_column(BigInteger)
    name: Mapped[str] = mapped_column(String(100))
    value: Mapped[float]


class Sample(Table):
    """A sample generation (or other record) a job kept at a step."""

    __tablename__ = "samples"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    step: Mapped[int] = mapped_column(BigInteger)
    record: Mapped[dict[str, Any]]


class Checkpoint(Named, Table):
    """A trained draft. Files in `path`; `figures` are the last measured ones; `config` says how it was trained."""

    __tablename__ = "checkpoints"
    __table_args__ = (Unique("base_id", "name", name="uq_checkpoints_base_name"),)

    method: Mapped[str] = mapped_column(String(32))  # medusa | eagle | eagle3 | draft
    state: Mapped[str] = mapped_column(String(16), default="pending")  # pending | ready | failed
    base_id: Mapped[str] = mapped_column(ForeignKey("bases.id"))
    base_sha256: Mapped[str] = mapped_column(String(64), default="")  # identity of the base it was trained on
    dataset_id: Mapped[str | None] = mapped_column(ForeignKey("datasets.id"))
    experiment_id: Mapped[str | None] = mapped_column(ForeignKey("experiments.id"))
    job_id: Mapped[str | None] = mapped_column(String(32))
    path: Mapped[str] = mapped_column(HomePath, default="")
    attempt: Mapped[int] = mapped_column(default=0)
    step: Mapped[int] = mapped_column(BigInteger, default=0)
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    sha256: Mapped[str] = mapped_column(String(64), default="")  # of model.safetensors
    config: Mapped[dict[str, Any]] = mapped_column(HomeJson, default=dict)
    figures: Mapped[dict[str, Any]] = mapped_column(default=dict)


class Evaluation(Named, Table):
    """Acceptance and speed of one base (with or without a checkpoint) on a set of questions."""

    __tablename__ = "evaluations"

    state: Mapped[str] = mapped_column(String(16), default="pending")  # pending | ready | failed
    base_id: Mapped[str | None] = mapped_column(ForeignKey("bases.id"))  # None: a server's model that is not known here
    checkpoint_id: Mapped[str | None] = mapped_column(ForeignKey("checkpoints.id"))
    job_id: Mapped[str | None] = mapped_column(String(32))
    config: Mapped[dict[str, Any]] = mapped_column(default=dict)
    result: Mapped[dict[str, Any]] = mapped_column(default=dict)
    # What lists sort and filter by: of the request, then (once ready) of the result. See tracking.evaluations.
    matrix_id: Mapped[str | None] = mapped_column(String(32), index=True)  # the job it is a cell of
    suite: Mapped[str] = mapped_column(String(64), default="")  # speculoos.suites
    questions: Mapped[str] = mapped_column(String(200), default="")  # the data set's name then
    temperature: Mapped[float] = mapped_column(Float, default=0.0)
    top_p: Mapped[float] = mapped_column(Float, default=1.0)
    tree: Mapped[str] = mapped_column(String(200), default="")  # in words; "" is the checkpoint's own
    source: Mapped[str] = mapped_column(String(200), default="")  # the endpoint that was asked; "" is this engine
    machine: Mapped[str] = mapped_column(String(200), default="")
    dtype: Mapped[str] = mapped_column(String(16), default="")
    speedup: Mapped[float | None] = mapped_column(Float)
    speedup_low: Mapped[float | None] = mapped_column(Float)  # 95 % interval, as all `_low` and `_high`
    speedup_high: Mapped[float | None] = mapped_column(Float)
    tau: Mapped[float | None] = mapped_column(Float)  # mean accepted length
    tau_low: Mapped[float | None] = mapped_column(Float)
    tau_high: Mapped[float | None] = mapped_column(Float)
    tokens_per_second: Mapped[float | None] = mapped_column(Float)
    plain_tokens_per_second: Mapped[float | None] = mapped_column(Float)
    finished_at: Mapped[datetime | None] = column_property(  # its job's; created_at is when it was submitted
        select(Job.finished_at).where(Job.id == job_id).correlate_except(Job).scalar_subquery()
    )

    @property
    def measured_at(self) -> datetime:
        """When its job ended, or when it was submitted while that is not known."""
        return self.finished_at or self.created_at


class Run(Table):
    """One live generation: a Playground turn or one column of a Compare."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(16))  # chat | compare
    group_id: Mapped[str | None] = mapped_column(String(32), index=True)  # chat or comparison it belongs to
    position: Mapped[int] = mapped_column(default=0)  # turn, or column
    state: Mapped[str] = mapped_column(String(16), default="QUEUED")  # QUEUED RUNNING SUCCEEDED FAILED CANCELLED
    model: Mapped[str] = mapped_column(String(420))  # "base" or "base@checkpoint"
    request: Mapped[dict[str, Any]] = mapped_column(default=dict)  # messages and sampling
    text: Mapped[str] = mapped_column(Text, default="")
    summary: Mapped[dict[str, Any]] = mapped_column(default=dict)  # decoding.stats summary, notices
    error: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)
    finished_at: Mapped[datetime | None]


class RunStep(Table):
    """One step record of a run, as decoding.step.Step.record makes it, with texts."""

    __tablename__ = "run_steps"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    record: Mapped[dict[str, Any]]


class DeviceLease(Table):
    """Who holds a device (`cpu` or `cuda:0` of a machine: see speculoos.machine) for work whose figures must not be
    shared."""

    __tablename__ = "device_leases"

    device: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64), default="")  # "job:<id>", "run:<id>" or ""
    attempt: Mapped[int] = mapped_column(default=0)
    until: Mapped[datetime | None]


class Preference(Table):
    """Small settings chosen in the pages, and heartbeats of processes (`process:<name>`)."""

    __tablename__ = "preferences"

    key: Mapped[str] = mapped_column(String(100), primary_key=True)
    value: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime] = mapped_column(default=now, onupdate=now)


class ApiKey(Named, Table):
    """A key for the inference server. Only its sha256 is kept; `hint` is its beginning, by which people know it."""

    __tablename__ = "api_keys"
    __table_args__ = (Unique("sha256"),)

    sha256: Mapped[str] = mapped_column(String(64))
    hint: Mapped[str] = mapped_column(String(16))
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Login(Table):
    """A browser that was let in; its cookie holds as long as this row does. The id is a keyed digest of the
    cookie: see app.sessions."""

    __tablename__ = "logins"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str] = mapped_column(String(80), default="")
    created_at: Mapped[datetime] = mapped_column(default=now)
    ends_at: Mapped[datetime] = mapped_column(index=True)


class Stored(Table):
    """What of a row's files lies in the store: see tracking.stored. The id is the row's, or that of a path."""

    __tablename__ = "stored"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))  # models | datasets | checkpoints | uploads | exports
    key: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[datetime] = mapped_column(default=now)
