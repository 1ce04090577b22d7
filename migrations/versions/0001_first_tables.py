"""First tables: experiments, bases, data sets, jobs, checkpoints, evaluations, runs, leases, preferences."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
ID, WORD, NAME, SHA256 = sa.String(32), sa.String(16), sa.String(200), sa.String(64)
TEXT, INTEGER, BIG, TIME = sa.Text(), sa.Integer(), sa.BigInteger(), sa.DateTime(timezone=True)
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLES = ("bases", "device_leases", "experiments", "preferences", "runs", "datasets", "jobs", "run_steps")
TABLES += ("checkpoints", "job_logs", "metrics", "samples", "evaluations")


def upgrade() -> None:
    _create(
        "bases",
        *_columns(source=WORD, location=TEXT, path=TEXT, state=WORD, weights_sha256=SHA256, tokenizer_sha256=SHA256),
        *_columns(card=JSON),
        *_optional(job_id=ID),
        *_named(),
        sa.UniqueConstraint("name", name="uq_bases_name"),
        index="created_at",
    )
    _create(
        "device_leases",
        *_columns(device=SHA256, holder=SHA256, attempt=INTEGER),
        *_optional(until=TIME),
        key=("device",),
    )
    _create("experiments", *_named(), index="created_at")
    _create("preferences", *_columns(key=sa.String(100), value=JSON, updated_at=TIME), key=("key",))
    _create(
        "runs",
        *_columns(id=ID, kind=WORD),
        *_optional(group_id=ID),
        *_columns(position=INTEGER, state=WORD, model=sa.String(420), request=JSON, text=TEXT, summary=JSON),
        *_columns(error=TEXT, created_at=TIME),
        *_optional(finished_at=TIME),
        index="created_at",
    )
    op.create_index("ix_runs_group_id", "runs", ["group_id"])
    _create(
        "datasets",
        *_columns(kind=WORD, state=WORD, path=TEXT, rows=INTEGER, bad_rows=INTEGER, report=JSON),
        *_optional(source_id=ID, base_id=ID, experiment_id=ID, job_id=ID),
        *_columns(config=JSON),
        *_named(),
        *_links("datasets", base_id="bases", experiment_id="experiments", source_id="datasets"),
        sa.UniqueConstraint("name", name="uq_datasets_name"),
        index="created_at",
    )
    _create(
        "jobs",
        *_columns(kind=ID, queue=WORD, state=WORD, request=JSON),
        *_optional(after_id=ID, experiment_id=ID),
        *_columns(attempt=INTEGER, attempt_cap=INTEGER, cancel_requested=sa.Boolean(), owner=NAME),
        *_optional(lease_until=TIME, heartbeat_at=TIME),
        *_columns(child=JSON, queued_at=TIME),
        *_optional(published_at=TIME, started_at=TIME, finished_at=TIME),
        *_columns(done=BIG),
        *_optional(total=BIG),
        *_columns(unit=ID, progress_note=TEXT),
        *_optional(eta_seconds=sa.Float()),
        *_columns(result=JSON, error_code=SHA256, error=TEXT, hint=TEXT, version=INTEGER),
        *_named(),
        *_links("jobs", after_id="jobs", experiment_id="experiments"),
        index="created_at",
    )
    op.create_index("ix_jobs_state_queue", "jobs", ["state", "queue"])
    _create(
        "run_steps",
        *_columns(run_id=ID, index=INTEGER, record=JSON),
        *_links("run_steps", "CASCADE", run_id="runs"),
        key=("run_id", "index"),
    )
    _create(
        "checkpoints",
        *_columns(method=ID, state=WORD, base_id=ID, base_sha256=SHA256),
        *_optional(dataset_id=ID, experiment_id=ID, job_id=ID),
        *_columns(path=TEXT, attempt=INTEGER, step=BIG, size_bytes=BIG, sha256=SHA256, config=JSON, figures=JSON),
        *_named(),
        *_links("checkpoints", base_id="bases", dataset_id="datasets", experiment_id="experiments"),
        sa.UniqueConstraint("base_id", "name", name="uq_checkpoints_base_name"),
        index="created_at",
    )
    _create(
        "job_logs",
        *_columns(id=ROW_ID, job_id=ID, attempt=INTEGER, at=TIME, level=WORD, message=TEXT),
        *_links("job_logs", "CASCADE", job_id="jobs"),
        index="job_id",
    )
    _create(
        "metrics",
        *_columns(id=ROW_ID, job_id=ID, attempt=INTEGER, step=BIG, name=sa.String(100), value=sa.Double()),
        *_links("metrics", "CASCADE", job_id="jobs"),
        sa.UniqueConstraint("job_id", "name", "step", name="uq_metrics_job_id"),
    )
    _create(
        "samples",
        *_columns(id=ROW_ID, job_id=ID, step=BIG, record=JSON),
        *_links("samples", "CASCADE", job_id="jobs"),
        index="job_id",
    )
    _create(
        "evaluations",
        *_columns(state=WORD, base_id=ID),
        *_optional(checkpoint_id=ID, job_id=ID),
        *_columns(config=JSON, result=JSON),
        *_named(),
        *_links("evaluations", base_id="bases", checkpoint_id="checkpoints"),
        index="created_at",
    )


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)


def _create(table: str, *parts: sa.schema.SchemaItem, key: tuple[str, ...] = ("id",), index: str = "") -> None:
    op.create_table(table, *parts, sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{table}")))
    if index:
        op.create_index(f"ix_{table}_{index}", table, [index])


def _columns(**kinds: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name, kind in kinds.items()]


def _optional(**kinds: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=True) for name, kind in kinds.items()]


def _named() -> list[sa.Column[Any]]:
    """The columns of all listed rows."""
    return _columns(id=ID, name=NAME, note=TEXT, created_at=TIME)


def _links(table: str, ondelete: str | None = None, **targets: str) -> list[sa.ForeignKeyConstraint]:
    return [
        sa.ForeignKeyConstraint([name], [f"{to}.id"], name=op.f(f"fk_{table}_{name}_{to}"), ondelete=ondelete)
        for name, to in targets.items()
    ]
