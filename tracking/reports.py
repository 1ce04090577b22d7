"""Reports of running jobs as rows: progress, metrics, log lines and samples; and the queries for them."""

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tracking.moves import check_fence, owned_by_attempt, update_silently, update_visibly
from tracking.tables import Job, JobLog, Metric, Sample, now
from tracking.values import storable

UPSERT = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
MESSAGE_LIMIT = 4000
"""Maximum characters of one log line."""


@dataclass
class JobReport:
    """News since the last report. `progress` is None if it has not changed."""

    progress: dict[str, Any] | None = None  # done, total, unit, progress_note, eta_seconds
    metrics: dict[tuple[str, int], float] = field(default_factory=dict)  # (name, step) → value
    logs: list[tuple[datetime, str, str]] = field(default_factory=list)  # (time, level, message)
    samples: list[tuple[int, dict[str, Any]]] = field(default_factory=list)  # (step, record)


def write(session: Session, job_id: str, attempt: int, report: JobReport) -> bool:
    """Store a report and the heartbeat; returns whether a cancel was requested. Raises Fenced without writing."""
    values: dict[str, Any] = {"heartbeat_at": now(), **storable(report.progress or {})}
    if report.progress or report.metrics or report.logs or report.samples:
        values["version"] = Job.version + 1
    check_fence(update_silently(session, job_id, owned_by_attempt(attempt), **values), job_id, attempt)
    _write_metrics(session, job_id, attempt, report.metrics)
    _write_logs(session, job_id, attempt, report.logs)
    if report.samples:
        rows = [{"job_id": job_id, "step": step, "record": record} for step, record in report.samples]
        session.execute(insert(Sample), rows)
    return bool(session.scalar(select(Job.cancel_requested).where(Job.id == job_id)))


def add_log(session: Session, job_id: str, attempt: int, message: str, level: str = "info") -> None:
    """Add one log line from the supervisor or reconciler. Not fenced, because it changes no state."""
    _write_logs(session, job_id, attempt, [(now(), level, message)])
    update_visibly(session, job_id)


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


def last_metrics(session: Session, job_id: str) -> dict[str, float]:
    """The newest value of every metric."""
    return {name: points[-1][1] for name, points in metrics(session, job_id).items()}


def samples(session: Session, job_id: str, limit: int = 20) -> list[Sample]:
    """The newest `limit` samples, oldest first."""
    query = select(Sample).where(Sample.job_id == job_id).order_by(Sample.id.desc()).limit(limit)
    return list(session.scalars(query))[::-1]


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
