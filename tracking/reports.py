"""What a running job says about itself, as rows: progress, metrics, log lines, samples; and how pages read them."""

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tracking.moves import change, fenced, mine, move
from tracking.tables import Job, JobLog, Metric, Sample, now
from tracking.values import storable

UPSERT = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
MESSAGE_LIMIT = 4000
"""Characters of one log line that are kept."""


@dataclass
class JobReport:
    """What has gathered since the last one was written. `progress` is None when nothing moved."""

    progress: dict[str, Any] | None = None  # done, total, unit, progress_note, eta_seconds
    metrics: dict[tuple[str, int], float] = field(default_factory=dict)  # (name, step) → value
    logs: list[tuple[datetime, str, str]] = field(default_factory=list)  # (when, level, message)
    samples: list[tuple[int, dict[str, Any]]] = field(default_factory=list)  # (step, record)


def write(session: Session, job_id: str, attempt: int, report: JobReport) -> bool:
    """Store a report and the heartbeat; returns whether someone asked to stop. Raises Fenced, writing nothing."""
    values: dict[str, Any] = {"heartbeat_at": now(), **storable(report.progress or {})}
    if report.progress or report.metrics or report.logs or report.samples:
        values["version"] = Job.version + 1
    fenced(change(session, job_id, mine(attempt), **values), job_id, attempt)
    _write_metrics(session, job_id, attempt, report.metrics)
    _write_logs(session, job_id, attempt, report.logs)
    if report.samples:
        rows = [{"job_id": job_id, "step": step, "record": record} for step, record in report.samples]
        session.execute(insert(Sample), rows)
    return bool(session.scalar(select(Job.cancel_requested).where(Job.id == job_id)))


def add_log(session: Session, job_id: str, attempt: int, message: str, level: str = "info") -> None:
    """One line from outside the attempt (its supervisor, the reconciler); not fenced, since it only tells."""
    _write_logs(session, job_id, attempt, [(now(), level, message)])
    move(session, job_id)


def logs(session: Session, job_id: str, after_id: int = 0, limit: int = 1000) -> list[JobLog]:
    """Lines with an id greater than `after_id`, oldest first; with `after_id` 0 the newest `limit` of them."""
    query = select(JobLog).where(JobLog.job_id == job_id, JobLog.id > after_id)
    if after_id:
        return list(session.scalars(query.order_by(JobLog.id).limit(limit)))
    return list(session.scalars(query.order_by(JobLog.id.desc()).limit(limit)))[::-1]


def attempt_seconds(session: Session, job_id: str) -> dict[int, float]:
    """How long each attempt of a job wrote to its log, by its number."""
    spans = select(JobLog.attempt, func.min(JobLog.at), func.max(JobLog.at)).where(JobLog.job_id == job_id)
    found = session.execute(spans.where(JobLog.attempt > 0).group_by(JobLog.attempt))
    return {attempt: (last - first).total_seconds() for attempt, first, last in found}


def metrics(session: Session, job_id: str, *which: ColumnElement[bool]) -> dict[str, list[tuple[int, float]]]:
    """Each metric's (step, value) pairs in order of step; all of them, or only `which`."""
    query = select(Metric.name, Metric.step, Metric.value).where(Metric.job_id == job_id, *which)
    series: dict[str, list[tuple[int, float]]] = {}
    for name, step, value in session.execute(query.order_by(Metric.name, Metric.step)):
        series.setdefault(name, []).append((step, value))
    return series


def last_metrics(session: Session, job_id: str) -> dict[str, float]:
    """The newest value of every metric."""
    return {name: points[-1][1] for name, points in metrics(session, job_id).items()}


def samples(session: Session, job_id: str, limit: int = 20) -> list[Sample]:
    """The newest samples, oldest of them first."""
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
