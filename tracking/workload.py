"""Counts of jobs, runs and processes in a few grouped queries, for metrics and readiness."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tracking import counters
from tracking.moves import can_start, is_waiting, runs_in_shards
from tracking.states import JobState
from tracking.tables import DeviceLease, Job, Preference, Run, now

QUEUES = ("gpu", "io")
START_DELAY = timedelta(seconds=60)
"""Maximum delay until a start is visible, because of clock differences and long transactions."""


@dataclass(frozen=True)
class Workload:
    """Snapshot: `jobs` by (queue, state); `oldest_wait` of jobs that could start, in seconds by queue; `attempts` of
    all existing jobs by queue; `silent_jobs`, age of the oldest heartbeat of a running job in seconds by queue; `runs`
    by state; ages of `heartbeats` in seconds by process; holders of `devices` (`job`, `run` or ""); `counters`."""

    jobs: dict[tuple[str, str], int]
    oldest_wait: dict[str, float]
    attempts: dict[str, int]
    silent_jobs: dict[str, float]
    runs: dict[str, int]
    heartbeats: dict[str, list[float]]
    devices: dict[str, str]
    counters: dict[str, int] = field(default_factory=dict)


def workload(session: Session) -> Workload:
    """Read the current Workload from the database."""
    return Workload(
        jobs=_jobs(session),
        oldest_wait=_oldest_wait(session),
        attempts=_by_queue(session, func.sum(Job.attempt)),
        silent_jobs=_silent_jobs(session),
        runs={state: count for state, count in session.execute(select(Run.state, func.count()).group_by(Run.state))},
        heartbeats=heartbeats(session),
        devices=_devices(session),
        counters=counters.read_counters(session),
    )


def heartbeats(session: Session) -> dict[str, list[float]]:
    """Ages of heartbeats in seconds by process name, ascending."""
    by_name: dict[str, list[float]] = {}
    rows = session.scalars(select(Preference).where(Preference.key.startswith("process:")))
    for row in rows:
        name = row.key.removeprefix("process:").partition("@")[0]
        by_name.setdefault(name, []).append(max(0.0, (now() - row.updated_at).total_seconds()))
    return {name: sorted(ages) for name, ages in by_name.items()}


def started_since(session: Session, since: datetime) -> list[tuple[str, str, float]]:
    """(id, queue, seconds from queueing to start) of jobs started after `since`, or at most a minute before it."""
    query = select(Job.id, Job.queue, Job.queued_at, Job.started_at).where(Job.started_at > since - START_DELAY)
    rows = session.execute(query)
    return [(job_id, queue, max(0.0, (started - queued).total_seconds())) for job_id, queue, queued, started in rows]


def _jobs(session: Session) -> dict[tuple[str, str], int]:
    query = select(Job.queue, Job.state, func.count()).group_by(Job.queue, Job.state)
    counts = {(queue, state): count for queue, state, count in session.execute(query)}
    return {(queue, state): 0 for queue in QUEUES for state in JobState} | counts


def _oldest_wait(session: Session) -> dict[str, float]:
    """Counts only jobs that could start now, not those that wait for another job."""
    query = select(Job.queue, func.min(Job.queued_at)).where(can_start(), is_waiting())
    rows = session.execute(query.group_by(Job.queue))
    return dict.fromkeys(QUEUES, 0.0) | {queue: max(0.0, (now() - at).total_seconds()) for queue, at in rows}


def _silent_jobs(session: Session) -> dict[str, float]:
    query = select(Job.queue, func.min(Job.heartbeat_at)).where(Job.state == JobState.RUNNING, ~runs_in_shards())
    query = query.group_by(Job.queue)
    return {queue: max(0.0, (now() - at).total_seconds()) for queue, at in session.execute(query) if at}


def _by_queue(session: Session, value) -> dict[str, int]:  # noqa: ANN001 - an aggregate
    rows = session.execute(select(Job.queue, value).group_by(Job.queue))
    return dict.fromkeys(QUEUES, 0) | {queue: int(number) for queue, number in rows}


def _devices(session: Session) -> dict[str, str]:
    """`job` or `run` by device; "" for a free device."""
    rows = session.scalars(select(DeviceLease))
    return {r.device: r.holder.partition(":")[0] if r.until and r.until > now() else "" for r in rows}
