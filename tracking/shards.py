"""Jobs divided into shards. A shard is a job that any worker of its queue claims, with the usual fences; the
divided job is its parent. The files of a dataset (corpus.shards) are also called shards: a shard of a
generation job writes one of them.

While shards run, the parent is RUNNING without a worker, so that one worker is enough for both. After all shards
have ended, it waits for a worker again (see tracking.jobs), which merges their results. Lists do not show shards;
cancelling, retrying or deleting the parent includes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.orm import Session, aliased

from speculoos.errors import Cancelled, Conflict
from tracking.states import FINISHED, JobState
from tracking.tables import Job, now
from tracking.transitions import (
    ATTEMPTS,
    NO_ERROR,
    QUEUED_AGAIN,
    check_fence,
    end_of_queue,
    is_waiting,
    owned_by_attempt,
    runs_in_shards,
    update_job,
    update_job_and_version,
)

MAX_QUEUED_SHARDS = 64  # maximum number of shards of one job whose messages are queued at a time
MAX_FAILED = 3  # number of failed shards of one job after which its waiting shards are cancelled
NOT_STARTED_MESSAGE = "Not started, because other shards failed."  # `error_code`: spared
INDEPENDENT = ("evaluate",)
"""Kinds of shards whose failures are independent, so that the waiting ones are not cancelled."""
NOUNS = {"matrix": "cells"}  # names for the shards of a kind of job


@dataclass(frozen=True)
class ShardSpec:
    """One shard before it is a job: its request, number of units, and result if it exists already."""

    request: dict[str, Any]
    total: int
    result: dict[str, Any] | None = None
    name: str = ""  # Default: the name of its job with the shard's number
    estimated_seconds: float | None = None
    work: float = 0.0  # units of the estimate, as for other jobs of its kind


@dataclass(frozen=True)
class ShardPlan:
    """The shards to create for a job, in order; `unit` is the unit of their totals."""

    kind: str
    queue: str
    unit: str
    shards: Sequence[ShardSpec]


@dataclass(frozen=True)
class Tally:
    """Number of a job's shards by state, and sums of their progress."""

    states: dict[str, int] = field(default_factory=dict)
    done: int = 0
    units: int = 0  # sum of the shards' current totals, which may exceed the plan when an evaluation repeats requests
    per_second: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.states.values())

    def count(self, state: JobState) -> int:
        return self.states.get(state, 0)

    def summary(self, kind: str = "") -> str:
        """`3 of 8 shards done, 2 running, 1 failed`, for a job of that kind."""
        done = f"{self.count(JobState.SUCCEEDED)} of {self.total} {NOUNS.get(kind, 'shards')} done"
        others = (f"{self.count(s)} {s.lower()}" for s in (JobState.RUNNING, JobState.FAILED) if self.count(s))
        return ", ".join([done, *others])


def create_shards(session: Session, job_id: str, attempt: int, plan: ShardPlan) -> None:
    """Divide a running job: create missing shards, queue those without a result. Raises Fenced or Cancelled."""
    values = {"shards": len(plan.shards), "owner": "", "lease_until": None, "published_at": None}
    if not update_job_and_version(session, job_id, owned_by_attempt(attempt), ~Job.cancel_requested, **values):
        check_fence(update_job_and_version(session, job_id, owned_by_attempt(attempt)), job_id, attempt)
        raise Cancelled("Stopped at your request.")
    parent = session.get_one(Job, job_id, populate_existing=True)
    existing = {shard.number: shard for shard in list_shards(session, job_id)}
    first = end_of_queue(session, plan.queue)
    for number, shard in enumerate(plan.shards):
        if number in existing:
            _update(session, existing[number], shard)
        else:
            session.add(_new_job(parent, plan, number, shard, first + timedelta(microseconds=number)))
    session.flush()
    total = sum(shard.total for shard in plan.shards)
    update_job(session, job_id, total=total, unit=plan.unit)
    update_progress(session)


def list_shards(session: Session, job_id: str) -> list[Job]:
    """The shards of a job, in order."""
    query = select(Job).where(Job.parent_id == job_id).order_by(Job.number)
    return list(session.scalars(query.execution_options(populate_existing=True)))


def brief(session: Session, job_id: str) -> Sequence[Any]:
    """(id, number, state, done, total) of a job's shards, in order."""
    query = select(Job.id, Job.number, Job.state, Job.done, Job.total).where(Job.parent_id == job_id)
    return session.execute(query.order_by(Job.number)).all()


def failed(session: Session, job_id: str) -> list[Job]:
    """Failed and cancelled shards: failed ones first, in the order in which they ended."""
    query = select(Job).where(Job.parent_id == job_id, Job.state.in_([JobState.FAILED, JobState.CANCELLED]))
    return list(session.scalars(query.order_by(Job.state.desc(), Job.finished_at, Job.number)))


def tally(session: Session, job_id: str) -> Tally:
    return _tallies(session, Job.parent_id == job_id).get(job_id, Tally())


def update_progress(session: Session) -> None:
    """Update the progress of all jobs whose shards are running."""
    parents = list(session.scalars(select(Job).where(runs_in_shards()).execution_options(populate_existing=True)))
    tallies = _tallies(session, Job.parent_id.in_([job.id for job in parents])) if parents else {}
    for job in (job for job in parents if job.id in tallies):
        progress = tallies[job.id]
        values = {
            "done": progress.done,
            "total": progress.units,
            "progress_note": progress.summary(job.kind),
            "eta_seconds": _eta_seconds(job, progress),
        }
        if any(getattr(job, name) != value for name, value in values.items()):
            update_job_and_version(session, job.id, runs_in_shards(), **values)


def _eta_seconds(job: Job, progress: Tally) -> float | None:
    """Remaining seconds at the speed of the running shards, or at the last known speed while none has an estimate."""
    remaining = max(0, progress.units - progress.done)
    if progress.per_second:
        return round(remaining / progress.per_second, 1)
    before = (job.total or 0) - job.done
    return round(job.eta_seconds * remaining / before, 1) if job.eta_seconds is not None and before > 0 else None


def all_ended(session: Session) -> list[Job]:
    """Parent jobs without a worker whose shards have all ended."""
    shard = aliased(Job)
    unfinished = exists().where(shard.parent_id == Job.id, shard.state.not_in(FINISHED))
    query = select(Job).where(runs_in_shards(), ~unfinished).execution_options(populate_existing=True)
    return list(session.scalars(query))


def cancel(session: Session, job_id: str) -> None:
    """Request that a job's shards stop; waiting ones are CANCELLED at once."""
    _end_waiting(session, job_id, "cancelled", "Cancelled while it waited.")
    running = update(Job).where(Job.parent_id == job_id, Job.state == JobState.RUNNING)
    session.execute(_unsynchronized(running.values(cancel_requested=True, version=Job.version + 1)))


def cancel_after_failures(session: Session, shard_id: str) -> None:
    """Cancel the waiting shards of the same job after MAX_FAILED failures, because they would probably fail too."""
    shard = session.get_one(Job, shard_id)
    if (
        shard.parent_id
        and shard.kind not in INDEPENDENT
        and tally(session, shard.parent_id).count(JobState.FAILED) >= MAX_FAILED
    ):
        _end_waiting(session, shard.parent_id, "spared", NOT_STARTED_MESSAGE)


def requeue(session: Session, job_id: str) -> None:
    """Queue the failed and cancelled shards of a retried job again."""
    for shard in failed(session, job_id):
        _queue(session, shard, shard.request)


def must_not_be_shard(session: Session, job: Job) -> None:
    """Raises Conflict for a shard, because users can only change its parent job."""
    if job.parent_id:
        parent = session.get_one(Job, job.parent_id)
        raise Conflict(f"“{job.name}” is a shard of “{parent.name}”; cancel, retry or clone that job.")


def waiting_parent(session: Session, job_id: str) -> str | None:
    """Id of a shard's parent job if that job waits for a worker, else None."""
    shard = aliased(Job)
    return session.scalar(select(Job.id).join(shard, shard.parent_id == Job.id).where(shard.id == job_id, is_waiting()))


def _tallies(session: Session, condition: ColumnElement[bool]) -> dict[str, Tally]:
    remaining = Job.total - Job.done
    speed = func.sum(remaining / func.nullif(Job.eta_seconds, 0)).filter(Job.state == JobState.RUNNING)
    sums = (func.count(), func.sum(Job.done), func.sum(func.coalesce(Job.total, Job.done)), speed)
    tallies: dict[str, Tally] = {}
    query = select(Job.parent_id, Job.state, *sums).where(condition).group_by(Job.parent_id, Job.state)
    for job_id, state, count, done, units, per_second in session.execute(query):
        old = tallies.get(job_id, Tally())
        speed = old.per_second + float(per_second or 0.0)
        tallies[job_id] = Tally({**old.states, state: count}, old.done + int(done), old.units + int(units), speed)
    return tallies


def _new_job(parent: Job, plan: ShardPlan, number: int, shard: ShardSpec, queued_at: Any) -> Job:
    name = shard.name or f"{parent.name}, shard {number + 1} of {len(plan.shards)}"
    job = Job(kind=plan.kind, queue=plan.queue, request=shard.request, name=name[:200], user=parent.user)
    job.parent_id, job.number, job.queued_at, job.attempt_cap = parent.id, number, queued_at, ATTEMPTS
    job.total, job.unit = shard.total, plan.unit
    job.estimated_seconds, job.work = shard.estimated_seconds, shard.work
    if shard.result is not None:
        job.state, job.done, job.result, job.finished_at = JobState.SUCCEEDED, shard.total, shard.result, now()
    return job


def _update(session: Session, job: Job, shard: ShardSpec) -> None:
    if shard.result is not None and job.state != JobState.SUCCEEDED:
        values = {"done": shard.total, "total": shard.total, "result": shard.result, "finished_at": now(), **NO_ERROR}
        update_job(session, job.id, Job.state != JobState.RUNNING, state=JobState.SUCCEEDED, **values)
    elif shard.result is None and job.state in FINISHED:
        _queue(session, job, shard.request)


def _queue(session: Session, job: Job, request: dict[str, Any]) -> None:
    values = {"version": Job.version + 1, "request": request, "done": 0, "done_before": 0, **QUEUED_AGAIN}
    update_job(session, job.id, Job.state.in_(FINISHED), **values)


def _end_waiting(session: Session, job_id: str, code: str, error: str) -> None:
    values = {"state": JobState.CANCELLED, "error_code": code, "error": error, "finished_at": now()}
    statement = update(Job).where(Job.parent_id == job_id, is_waiting())
    session.execute(_unsynchronized(statement.values(version=Job.version + 1, progress_note="", **values)))


def _unsynchronized(statement: Any) -> Any:
    return statement.execution_options(synchronize_session=False)
