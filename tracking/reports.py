"""Reports of running jobs as rows: progress, metrics, log lines and samples; and the queries for them.

The progress of a data generation is in counters of the job and its shards (written by `corpus.generation_status`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, func, insert, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tracking.states import JobState
from tracking.tables import Job, JobLog, Metric, Sample, now
from tracking.transitions import check_fence, owned_by_attempt, update_job, update_job_and_version
from tracking.values import storable

UPSERT = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
MESSAGE_LIMIT = 4000  # maximum characters of one log line
POINTS = 240  # more points than a chart can show
COUNTER_PREFIX = "now/"  # name prefix of metrics that are counters instead of curves: one value each, at step 0
SPEED, REJECTED = "speed", "left_out"
ANSWERS, REJECTED_ROWS = 0, 1  # `step` of a generation's samples, which encodes their kind


@dataclass
class JobReport:
    """What changed since the last report; `progress` is None if it has not."""

    progress: dict[str, Any] | None = None  # done, total, unit, progress_note, eta_seconds
    metrics: dict[tuple[str, int], float] = field(default_factory=dict)  # (name, step) → value
    logs: list[tuple[datetime, str, str]] = field(default_factory=list)  # (time, level, message)
    samples: list[tuple[int, dict[str, Any]]] = field(default_factory=list)  # (step, record)


def write(session: Session, job_id: str, attempt: int, report: JobReport) -> bool:
    """Store a report and the heartbeat; returns whether a cancel was requested. Raises Fenced without writing."""
    values: dict[str, Any] = {"heartbeat_at": now(), **storable(report.progress or {})}
    if report.progress or report.metrics or report.logs or report.samples:
        values["version"] = Job.version + 1
    check_fence(update_job(session, job_id, owned_by_attempt(attempt), **values), job_id, attempt)
    _write_metrics(session, job_id, attempt, report.metrics)
    _write_logs(session, job_id, attempt, report.logs)
    if report.samples:
        rows = [{"job_id": job_id, "step": step, "record": record} for step, record in report.samples]
        session.execute(insert(Sample), rows)
    return bool(session.scalar(select(Job.cancel_requested).where(Job.id == job_id)))


def add_log(session: Session, job_id: str, attempt: int, message: str, level: str = "info") -> None:
    """Add one log line from the supervisor or reconciler. Not fenced, because it changes no state."""
    _write_logs(session, job_id, attempt, [(now(), level, message)])
    update_job_and_version(session, job_id)


def logs(session: Session, job_id: str, after_id: int = 0, limit: int = 1000) -> list[JobLog]:
    """Lines with an id greater than `after_id`, oldest first; with `after_id` 0 the newest `limit` of them."""
    query = select(JobLog).where(JobLog.job_id == job_id, JobLog.id > after_id)
    if after_id:
        return list(session.scalars(query.order_by(JobLog.id).limit(limit)))
    return list(session.scalars(query.order_by(JobLog.id.desc()).limit(limit)))[::-1]


def attempt_seconds(session: Session, job_id: str) -> dict[int, float]:
    """Seconds between the first and last log line of each attempt, by attempt number."""
    query = select(JobLog.attempt, func.min(JobLog.at), func.max(JobLog.at)).where(JobLog.job_id == job_id)
    rows = session.execute(query.where(JobLog.attempt > 0).group_by(JobLog.attempt))
    return {attempt: (last - first).total_seconds() for attempt, first, last in rows}


def metrics(session: Session, job_id: str, *conditions: ColumnElement[bool]) -> dict[str, list[tuple[int, float]]]:
    """Each metric's (step, value) pairs in order of step, optionally only those that match `conditions`."""
    query = select(Metric.name, Metric.step, Metric.value).where(Metric.job_id == job_id, *conditions)
    series: dict[str, list[tuple[int, float]]] = {}
    for name, step, value in session.execute(query.order_by(Metric.name, Metric.step)):
        series.setdefault(name, []).append((step, value))
    return series


def sampled_metrics(
    session: Session, job_id: str, points: int = POINTS, excluded_prefix: str = ""
) -> dict[str, list[tuple[int, float]]]:
    """Each metric's (step, value) pairs in order of step, about `points` at most, evenly spaced, with the first and the
    last. Metrics whose name starts with `excluded_prefix` are omitted. The database selects the points, so that a page
    that refreshes every second does not read 100,000 rows."""
    columns = (Metric.name, func.count(), func.min(Metric.step), func.max(Metric.step))
    ranges = session.execute(select(*columns).where(Metric.job_id == job_id).group_by(Metric.name)).all()
    conditions = [
        _sampled(job_id, *row, points) for row in ranges if not (excluded_prefix and row[0].startswith(excluded_prefix))
    ]
    return metrics(session, job_id, or_(*conditions)) if conditions else {}


def last_metrics(session: Session, job_id: str) -> dict[str, float]:
    return {name: points[-1][1] for name, points in metrics(session, job_id).items()}


def samples(session: Session, job_id: str, limit: int = 20) -> list[Sample]:
    """The newest `limit` samples, oldest first."""
    query = select(Sample).where(Sample.job_id == job_id).order_by(Sample.id.desc()).limit(limit)
    return list(session.scalars(query))[::-1]


def _sampled(job_id: str, name: str, count: int, first: int, last: int, points: int) -> ColumnElement[bool]:
    """Matches the first step in each of `points` intervals, and the last step. A condition on the remainder would miss
    steps that are not evenly spaced."""
    if count <= points:
        return Metric.name == name
    width = math.ceil((last - first + 1) / points)
    metric = and_(Metric.job_id == job_id, Metric.name == name)
    firsts = select(func.min(Metric.step)).where(metric).group_by((Metric.step - first) // width)
    return and_(Metric.name == name, or_(Metric.step.in_(firsts), Metric.step == last))


def _write_metrics(session: Session, job_id: str, attempt: int, values: dict[tuple[str, int], float]) -> None:
    rows = [
        {"job_id": job_id, "attempt": attempt, "name": name, "step": step, "value": float(value)}
        for (name, step), value in values.items()
        if math.isfinite(value)
    ]
    if not rows:
        return
    statement = UPSERT[session.get_bind().dialect.name](Metric)
    newer = {"value": statement.excluded.value, "attempt": statement.excluded.attempt}
    session.execute(statement.on_conflict_do_update(index_elements=["job_id", "name", "step"], set_=newer), rows)


def _write_logs(session: Session, job_id: str, attempt: int, lines: list[tuple[datetime, str, str]]) -> None:
    rows = [
        {"job_id": job_id, "attempt": attempt, "at": at, "level": level, "message": storable(message)[:MESSAGE_LIMIT]}
        for at, level, message in lines
    ]
    if rows:
        session.execute(insert(JobLog), rows)


@dataclass
class GenerationProgress:
    """Sums over a generation and its shards. Speeds of running shards in tokens per second, by worker and by server."""

    rows: int = 0
    tokens: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    workers: dict[str, float] = field(default_factory=dict)
    servers: dict[str, float] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        return sum(self.workers.values())


def generation_progress(session: Session, job_id: str) -> GenerationProgress:
    """The progress of a generation, summed over the counters of the job and its shards."""
    running = (Job.state == JobState.RUNNING).label("running")
    conditions = (_of(job_id), Metric.step == 0, Metric.name.startswith(COUNTER_PREFIX, autoescape=True))
    query = select(Metric.name, Job.owner, running, func.sum(Metric.value)).join(Job, Metric.job_id == Job.id)
    query = query.where(*conditions).group_by(Metric.name, Job.owner, running)
    progress = GenerationProgress()
    for metric, owner, is_running, value in session.execute(query):
        name, _, part = metric.removeprefix(COUNTER_PREFIX).partition("/")
        if name == SPEED and is_running:
            speeds = progress.servers if part else progress.workers
            speeds[part or owner] = speeds.get(part or owner, 0.0) + value
        elif name == REJECTED:
            progress.left_out[part] = progress.left_out.get(part, 0) + int(value)
        elif name in ("rows", "tokens"):
            setattr(progress, name, getattr(progress, name) + int(value))
    return progress


def generation_samples(session: Session, job_id: str, step: int, limit: int) -> Sequence[dict[str, Any]]:
    """The first samples of one kind; `step` encodes the kind."""
    query = select(Sample.record).join(Job, Sample.job_id == Job.id).where(_of(job_id), Sample.step == step)
    return list(session.scalars(query.order_by(Sample.id).limit(limit)))


def _of(job_id: str) -> ColumnElement[bool]:
    return or_(Job.id == job_id, Job.parent_id == job_id)
