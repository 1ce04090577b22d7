"""Lists of jobs, their queue positions, and sentences on what they wait for. Shards are not listed, only their job."""

from collections.abc import Sequence
from datetime import timedelta
from functools import cache, partial
from typing import Any

from sqlalchemy import Select, case, func, select
from sqlalchemy.orm import Session

from tracking import processes
from tracking.states import FINISHED, WAITING, JobState
from tracking.tables import Job, now

LONG_JOB = timedelta(minutes=1)
IN_ORDER = (case((Job.state == JobState.RUNNING, 0), else_=1), Job.queued_at, Job.id)
"""Running jobs first, then waiting jobs in queue order."""


def jobs(session: Session, limit: int = 100) -> list[Job]:
    """The latest `limit` jobs, newest first."""
    return list(session.scalars(newest().limit(limit)))


def newest(states: Sequence[str] = ()) -> Select[Any]:
    """The query of all jobs (in these states), newest first, read from the database again."""
    query = select(Job).where(Job.parent_id.is_(None)).order_by(Job.created_at.desc(), Job.id)
    query = query.execution_options(populate_existing=True)
    return query.where(Job.state.in_(states)) if states else query


def active(session: Session) -> list[Job]:
    """Running and waiting jobs, in the order of IN_ORDER."""
    listed = (Job.state.not_in(FINISHED), Job.parent_id.is_(None))
    return list(session.scalars(select(Job).where(*listed).order_by(*IN_ORDER)))


def took_long(job: Job) -> bool:
    """Whether the job took so long that its user may want a notification."""
    return (job.finished_at or now()) - job.queued_at >= LONG_JOB


def signature(session: Session) -> str:
    """A short text that changes when any job changes; pages redraw only then."""
    columns = (func.count(Job.id), func.sum(Job.version), func.max(Job.created_at))
    return ".".join(map(str, session.execute(select(*columns).where(Job.parent_id.is_(None))).one()))


class Queues:
    """Snapshot of running and waiting jobs. The number of queries does not depend on the number of jobs."""

    def __init__(self, session: Session):
        active = session.execute(_brief().where(Job.state.not_in(FINISHED)).order_by(*IN_ORDER)).all()
        self._by_id = {job.id: job for job in active}
        self._running = {job.queue: [] for job in active}
        self._waiting = {job.queue: [] for job in active}
        self._parents = [job for job in active if _at_shards(job)]
        for job in (job for job in active if not _at_shards(job)):
            (self._running if job.state == JobState.RUNNING else self._waiting)[job.queue].append(job)
        self._positions = {job.id: number for jobs in self._waiting.values() for number, job in enumerate(jobs, 1)}
        before = {job.after_id for job in active if job.after_id} - set(self._by_id)
        if before:
            self._by_id |= {job.id: job for job in session.execute(_brief().where(Job.id.in_(before)))}
        self._capacity = processes.capacities(session) if active else {}
        self._last_seen = cache(partial(_last_seen, session))
        self._paused = cache(partial(processes.paused, session))

    @property
    def running(self) -> int:
        """Number of running jobs; a parent job counts once."""
        held = [job for jobs in self._running.values() for job in jobs if not job.parent_id]
        return len(held) + len(self._parents)

    @property
    def active(self) -> int:
        """Number of running and waiting jobs."""
        return self.running + sum(not self._by_id[job_id].parent_id for job_id in self._positions)

    def position(self, job: Job) -> int | None:
        """Position in its queue, from 1; None if the job is not waiting."""
        return self._positions.get(job.id)

    def waits_for(self, job: Job) -> str:
        """One sentence on why a job is not running yet; "" if it is running or has ended."""
        if job.state not in WAITING or (position := self.position(job)) is None:
            return ""
        before = self._by_id.get(job.after_id)
        if before and before.state != JobState.SUCCEEDED:
            return f"Waits for “{before.name}”, which is {_progress(before)}."
        if not (capacity := self._capacity.get(job.queue, 0)):
            return f"Waits for a worker of the {job.queue} queue: {self._last_seen(job.queue)}."
        if reason := self._paused(job.queue):
            return reason
        running = self._running[job.queue]
        if (ahead := len(running) + position - 1) >= capacity:
            first = (running or self._waiting[job.queue])[0]
            more = f" and {ahead - 1} more {'job' if ahead == 2 else 'jobs'}" if ahead > 1 else ""
            return f"Waits for “{first.name}” ({_progress(first)}){more}."
        return "Continues in a moment." if job.state == JobState.INTERRUPTED else "Starts in a moment."


def percent(job: Any) -> int | None:
    """Progress in per cent, rounded down; None if the total is unknown."""
    return min(100, int(100 * job.done / job.total)) if job.total else None


def _brief() -> Select[Any]:
    columns = (Job.id, Job.name, Job.queue, Job.state, Job.done, Job.total, Job.after_id)
    return select(*columns, Job.parent_id, Job.shards, Job.owner)


def _at_shards(job: Any) -> bool:
    return job.state == JobState.RUNNING and job.shards > 0 and not job.owner


def _progress(job: Any) -> str:
    done = f", {percent(job)} % done" if job.state == JobState.RUNNING and percent(job) is not None else ""
    return job.state.lower() + done


def _last_seen(session: Session, queue: str) -> str:
    seen = processes.last_seen(session, f"worker-{queue}")
    silent = f"has reported for {max(0, int((now() - seen).total_seconds()))} s" if seen else "is running"
    return f"none {silent}; `speculoos up` starts one"
