"""The database tables, one class per table.

Ids are uuid4 hex strings. Times are UTC. JSON columns hold values that are only displayed or read by one kind of job.
Paths inside the home are stored relative to it (see tracking.path_columns) and returned as absolute paths.
"""

import time
import uuid
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Float, ForeignKey, Index, Integer, MetaData, String, Text, select
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column

from tracking.path_columns import HomeJson, HomePath
from tracking.values import CheckedType, Json


class UtcDateTime(CheckedType):
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
    """Columns of all listed rows."""

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(200))
    note: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)


class Experiment(Named, Table):
    """A named group of jobs, datasets and checkpoints."""

    __tablename__ = "experiments"


class Base(Named, Table):
    """A base model. `weights_sha256` is its identity."""

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
    """Imported prompts or generated conversations. Files are in home/datasets/<id>/."""

    __tablename__ = "datasets"
    __table_args__ = (Unique("name"),)

    kind: Mapped[str] = mapped_column(String(16))  # prompts | conversations
    state: Mapped[str] = mapped_column(String(16), default="pending")  # pending | ready | failed
    path: Mapped[str] = mapped_column(HomePath, default="")
    rows: Mapped[int] = mapped_column(default=0)
    bad_rows: Mapped[int] = mapped_column(default=0)
    report: Mapped[dict[str, Any]] = mapped_column(default=dict)  # {"bad": [{"line", "reason"}, …], "tokens": n, …}
    source_id: Mapped[str | None] = mapped_column(ForeignKey("datasets.id"))  # prompts it was generated from
    base_id: Mapped[str | None] = mapped_column(ForeignKey("bases.id"))  # base that generated the responses
    experiment_id: Mapped[str | None] = mapped_column(ForeignKey("experiments.id"))
    job_id: Mapped[str | None] = mapped_column(String(32))
    config: Mapped[dict[str, Any]] = mapped_column(HomeJson, default=dict)


class Job(Named, Table):
    """Work for a worker. See tracking.jobs for the states and their changes."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_state_queue", "state", "queue"), Unique("parent_id", "number"))

    kind: Mapped[str] = mapped_column(String(32))  # a key of workers.jobs.requests.REQUESTS
    queue: Mapped[str] = mapped_column(String(16))  # gpu | io
    state: Mapped[str] = mapped_column(String(16), default="QUEUED")
    request: Mapped[dict[str, Any]] = mapped_column(HomeJson, default=dict)  # a workers.jobs.request.Request as JSON
    after_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))  # starts only once that one SUCCEEDED
    experiment_id: Mapped[str | None] = mapped_column(ForeignKey("experiments.id"))
    user: Mapped[str] = mapped_column(String(80), default="")  # who submitted it, by the name they entered
    attempt: Mapped[int] = mapped_column(default=0)
    attempt_cap: Mapped[int] = mapped_column(default=5)  # retry limit: last attempt; progress and retries raise it
    done_before: Mapped[int] = mapped_column(BigInteger, default=0)  # most `done` of earlier attempts; more is progress
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    owner: Mapped[str] = mapped_column(String(200), default="")  # worker that holds the lease
    lease_until: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    child: Mapped[dict[str, Any]] = mapped_column(default=dict)  # process of the attempt, see workers.identity
    queued_at: Mapped[datetime] = mapped_column(default=now)  # defines its position in the queue
    published_at: Mapped[datetime | None]  # when its message was last sent
    started_at: Mapped[datetime | None]  # first claim since submission or retry
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
    version: Mapped[int] = mapped_column(default=0)  # incremented by every change that pages show
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))  # the job this one is a shard of
    number: Mapped[int] = mapped_column(default=0)  # which of its shards, from 0
    shards: Mapped[int] = mapped_column(default=0)  # number of its shards; 0: not divided
    estimated_seconds: Mapped[float | None] = mapped_column(Float)  # estimate at submission
    work: Mapped[float] = mapped_column(Float, default=0.0)  # units of that estimate (workers.jobs.estimates)


class JobLog(Table):
    """Log lines of a job, stored as rows so that every machine can show them."""

    __tablename__ = "job_logs"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    attempt: Mapped[int]
    at: Mapped[datetime] = mapped_column(default=now)
    level: Mapped[str] = mapped_column(String(16), default="info")
    message: Mapped[str] = mapped_column(Text)


class Metric(Table):
    """One value of a metric at a step, for charts. A resumed attempt overwrites the steps it repeats."""

    __tablename__ = "metrics"
    __table_args__ = (Unique("job_id", "name", "step"),)

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    step: Mapped[int] = mapped_column(BigInteger)
    name: Mapped[str] = mapped_column(String(100))
    value: Mapped[float]


class Sample(Table):
    """A sample generation or another record of a job at a step."""

    __tablename__ = "samples"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    step: Mapped[int] = mapped_column(BigInteger)
    record: Mapped[dict[str, Any]]


class Checkpoint(Named, Table):
    """A trained draft model. `figures` are the latest measurements, `config` is the training config."""

    __tablename__ = "checkpoints"
    __table_args__ = (Unique("base_id", "name", name="uq_checkpoints_base_name"),)

    method: Mapped[str] = mapped_column(String(32))  # a key of models.methods.METHODS
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
    base_id: Mapped[str | None] = mapped_column(ForeignKey("bases.id"))  # None: a server's model without a row
    checkpoint_id: Mapped[str | None] = mapped_column(ForeignKey("checkpoints.id"))
    job_id: Mapped[str | None] = mapped_column(String(32))
    config: Mapped[dict[str, Any]] = mapped_column(default=dict)
    result: Mapped[dict[str, Any]] = mapped_column(default=dict)
    # Columns for sorting and filtering, from the request and (once ready) the result. See tracking.evaluations.
    matrix_id: Mapped[str | None] = mapped_column(String(32), index=True)  # the matrix job whose cell this is
    suite: Mapped[str] = mapped_column(String(64), default="")  # speculoos.suites
    questions: Mapped[str] = mapped_column(String(200), default="")  # the dataset's name at submission
    temperature: Mapped[float] = mapped_column(Float, default=0.0)
    top_p: Mapped[float] = mapped_column(Float, default=1.0)
    tree: Mapped[str] = mapped_column(String(200), default="")  # as text; "" is the checkpoint's own
    source: Mapped[str] = mapped_column(String(200), default="")  # the measured endpoint; "" is this engine
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
    finished_at: Mapped[datetime | None] = column_property(  # of its job; created_at is the time of submission
        select(Job.finished_at).where(Job.id == job_id).correlate_except(Job).scalar_subquery()
    )

    @property
    def measured_at(self) -> datetime:
        """End of its job, or time of submission before that."""
        return self.finished_at or self.created_at


class Run(Table):
    """One live generation: a Playground turn or one column of a Compare."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(16))  # chat | compare
    group_id: Mapped[str | None] = mapped_column(String(32), index=True)  # chat or comparison it belongs to
    position: Mapped[int] = mapped_column(default=0)  # number of the turn or column
    state: Mapped[str] = mapped_column(String(16), default="QUEUED")  # QUEUED RUNNING SUCCEEDED FAILED CANCELLED
    model: Mapped[str] = mapped_column(String(420))  # "base", "base@checkpoint" or "@endpoint"
    request: Mapped[dict[str, Any]] = mapped_column(default=dict)  # messages and sampling
    text: Mapped[str] = mapped_column(Text, default="")
    summary: Mapped[dict[str, Any]] = mapped_column(default=dict)  # decoding.stats summary, notices
    error: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)
    finished_at: Mapped[datetime | None]


class RunStep(Table):
    """One step record of a run: decoding.step.Step.record with texts."""

    __tablename__ = "run_steps"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    record: Mapped[dict[str, Any]]


class DeviceLease(Table):
    """The holder of a device (`cpu` or a GPU of a machine, see speculoos.machine) for exclusive measurements."""

    __tablename__ = "device_leases"

    device: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64), default="")  # "job:<id>", "run:<id>" or ""
    reserved_for: Mapped[str] = mapped_column(String(64), default="")  # oldest waiting job, as "job:<id>", or ""
    attempt: Mapped[int] = mapped_column(default=0)
    until: Mapped[datetime | None]
    memory: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Bytes of a GPU that the inference server leaves to the job that holds it."""


class Preference(Table):
    """Small settings of the web app, and heartbeats of processes (`process:<name>`)."""

    __tablename__ = "preferences"

    key: Mapped[str] = mapped_column(String(100), primary_key=True)
    value: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime] = mapped_column(default=now, onupdate=now)


class ApiKey(Named, Table):
    """An API key of the inference server. Only its sha256 is stored; `hint` is its first characters, for display."""

    __tablename__ = "api_keys"
    __table_args__ = (Unique("sha256"),)

    sha256: Mapped[str] = mapped_column(String(64))
    hint: Mapped[str] = mapped_column(String(16))
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Login(Table):
    """A logged-in browser; its cookie is valid while this row exists. The id is a keyed digest of the cookie, see
    tracking.logins."""

    __tablename__ = "logins"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str] = mapped_column(String(80), default="")
    created_at: Mapped[datetime] = mapped_column(default=now)
    ends_at: Mapped[datetime] = mapped_column(index=True)


class Stored(Table):
    """Files of a row or path in the store, see tracking.stored. The id is the row's or the path's."""

    __tablename__ = "stored"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))  # models | datasets | checkpoints | uploads | exports
    key: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[datetime] = mapped_column(default=now)
