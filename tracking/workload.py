"""Counts of jobs, runs and processes in a few grouped queries, for metrics and readiness; persistent counters."""

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tracking.states import JobState
from tracking.tables import DeviceLease, Job, Preference, Run, now
from tracking.transitions import can_start, is_waiting, runs_in_shards

QUEUES = ("gpu", "io")
COUNTER_KEY = "count:"
LEASE_LOST, WORKER_GONE = "lease_lost", "worker_gone"
"""Counters of attempts interrupted because their worker's heartbeats stopped, or because its process was gone."""


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
    jobs = session.execute(select(Job.queue, Job.state, func.count()).group_by(Job.queue, Job.state))
    by_queue = {
        "oldest_wait": select(Job.queue, func.min(Job.queued_at)).where(can_start(), is_waiting()),
        "attempts": select(Job.queue, func.sum(Job.attempt)),
        "silent_jobs": select(Job.queue, func.min(Job.heartbeat_at)).where(
            Job.state == JobState.RUNNING, ~runs_in_shards()
        ),
    }
    results = {name: dict(session.execute(query.group_by(Job.queue)).all()) for name, query in by_queue.items()}
    leases = session.scalars(select(DeviceLease))
    return Workload(
        jobs={(queue, state): 0 for queue in QUEUES for state in JobState} | {(q, s): count for q, s, count in jobs},
        oldest_wait=dict.fromkeys(QUEUES, 0.0) | {queue: _age(at) for queue, at in results["oldest_wait"].items()},
        attempts=dict.fromkeys(QUEUES, 0) | {queue: int(number) for queue, number in results["attempts"].items()},
        silent_jobs={queue: _age(at) for queue, at in results["silent_jobs"].items() if at},
        runs=dict(session.execute(select(Run.state, func.count()).group_by(Run.state)).all()),
        heartbeats=heartbeats(session),
        devices={r.device: r.holder.partition(":")[0] if r.until and r.until > now() else "" for r in leases},
        counters=read_counters(session),
    )


def heartbeats(session: Session) -> dict[str, list[float]]:
    """Ages of heartbeats in seconds by process name, ascending."""
    by_name: dict[str, list[float]] = {}
    for row in session.scalars(select(Preference).where(Preference.key.startswith("process:"))):
        name = row.key.removeprefix("process:").partition("@")[0]
        silent = abs((now() - row.updated_at).total_seconds())  # negative if the clock was set back
        by_name.setdefault(name, []).append(silent)
    return {name: sorted(ages) for name, ages in by_name.items()}


def increment_counter(session: Session, name: str) -> None:
    """Increment a counter, a Preference row; the caller commits."""
    row = session.get(Preference, COUNTER_KEY + name, with_for_update=True)
    value = {"n": (row.value.get("n", 0) if row else 0) + 1}
    session.merge(Preference(key=COUNTER_KEY + name, value=value, updated_at=now()))
    session.flush()


def read_counters(session: Session) -> dict[str, int]:
    """Value of every counter by name, 0 if it was never incremented."""
    rows = session.execute(select(Preference.key, Preference.value).where(Preference.key.startswith(COUNTER_KEY)))
    values = {key.removeprefix(COUNTER_KEY): int(value.get("n", 0)) for key, value in rows}
    return dict.fromkeys((LEASE_LOST, WORKER_GONE), 0) | values


def _age(at: datetime) -> float:
    return max(0.0, (now() - at).total_seconds())
