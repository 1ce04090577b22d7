"""A job divided into shards: jobs of their own, which any worker of their queue takes under the same claims and fences.

While they are at work the divided job is RUNNING and holds no worker, so that one worker is enough for both. Once all
have ended it waits for a worker again (tracking.jobs.collect), which puts together what they made. Lists leave shards
out; who cancels, retries or deletes the divided job does so with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.orm import Session, aliased

from speculoos.errors import Cancelled, Conflict
from tracking.moves import ATTEMPTS, NO_ERROR, at_shards, change, end_of_queue, fenced, mine, move, waiting
from tracking.states import FINISHED, JobState
from tracking.tables import Job, now

AT_ONCE = 64
"""Shards of one job whose messages are under way at a time."""
ENOUGH_FAILED = 3
"""Shards of one job that failed, after which those that wait are not begun."""
SPARED = "Not begun, because other shards failed."
INDEPENDENT = ("evaluate",)
"""Kinds of shards that say nothing of each other: one that failed spares no other."""
NOUNS = {"matrix": "cells"}
"""What the shards of a kind of job are called."""


@dataclass(frozen=True)
class Shard:
    """One shard: its request, how many units it has, and its result where that is there already."""

    request: dict[str, Any]
    total: int
    result: dict[str, Any] | None = None
    name: str = ""
    """"" for its number under the name of its job."""
    estimated_seconds: float | None = None
    work: float = 0.0
    """What it was estimated at, as jobs of its kind are."""


@dataclass(frozen=True)
class Division:
    """What a job's work is divided into, numbered in order; `unit` is what the totals count."""

    kind: str
    queue: str
    unit: str
    shards: Sequence[Shard]


@dataclass(frozen=True)
class Tally:
    """Shards of a job by state, and the sums of what they say of themselves."""

    states: dict[str, int] = field(default_factory=dict)
    done: int = 0
    units: int = 0
    """What there is to do, as each shard says by now: an evaluation that asks again has more than was planned."""
    per_second: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def ended_well(self) -> int:
        return self.states.get(JobState.SUCCEEDED, 0)

    @property
    def failed(self) -> int:
        return self.states.get(JobState.FAILED, 0)

    @property
    def running(self) -> int:
        return self.states.get(JobState.RUNNING, 0)

    def words(self, kind: str = "") -> str:
        """`3 of 8 shards done, 2 running, 1 failed`, of a job of that kind."""
        more = [f"{n} {word}" for n, word in ((self.running, "running"), (self.failed, "failed")) if n]
        return ", ".join([f"{self.ended_well} of {self.total} {NOUNS.get(kind, 'shards')} done", *more])


def divide(session: Session, job_id: str, attempt: int, division: Division) -> None:
    """Give a running job's work to its shards: missing ones are made, and those that ended without the result that is
    wanted are queued again. The job itself holds no worker from now on. Raises Fenced, or Cancelled when someone asked
    it to stop."""
    values = {"shards": len(division.shards), "owner": "", "lease_until": None, "published_at": None}
    if not move(session, job_id, mine(attempt), ~Job.cancel_requested, **values):
        fenced(move(session, job_id, mine(attempt)), job_id, attempt)
        raise Cancelled("Stopped at your request.")
    parent = session.get_one(Job, job_id, populate_existing=True)
    known = {shard.number: shard for shard in of(session, job_id)}
    first = end_of_queue(session, division.queue)
    for number, shard in enumerate(division.shards):
        if number in known:
            _again(session, known[number], shard)
        else:
            session.add(_made(parent, division, number, shard, first + timedelta(microseconds=number)))
    session.flush()
    total = sum(shard.total for shard in division.shards)
    change(session, job_id, total=total, unit=division.unit)
    gather(session)


def of(session: Session, job_id: str) -> list[Job]:
    """The shards of a job, in order."""
    query = select(Job).where(Job.parent_id == job_id).order_by(Job.number)
    return list(session.scalars(query.execution_options(populate_existing=True)))


def brief(session: Session, job_id: str) -> Sequence[Any]:
    """(id, number, state, done, total) of a job's shards, in order: what a page draws of thousands."""
    query = select(Job.id, Job.number, Job.state, Job.done, Job.total).where(Job.parent_id == job_id)
    return session.execute(query.order_by(Job.number)).all()


def failed(session: Session, job_id: str) -> list[Job]:
    """Shards that ended otherwise than well, the first that did before those that were spared."""
    query = select(Job).where(Job.parent_id == job_id, Job.state.in_([JobState.FAILED, JobState.CANCELLED]))
    return list(session.scalars(query.order_by(Job.state.desc(), Job.finished_at, Job.number)))


def tally(session: Session, job_id: str) -> Tally:
    """How far the shards of one job are."""
    return _tallies(session, Job.parent_id == job_id).get(job_id, Tally())


def gather(session: Session) -> None:
    """Write into each job whose shards are at work how far they are, where that changed."""
    divided = list(session.scalars(select(Job).where(at_shards()).execution_options(populate_existing=True)))
    found = _tallies(session, Job.parent_id.in_([job.id for job in divided])) if divided else {}
    for job in (job for job in divided if job.id in found):
        tallied = found[job.id]
        new = {
            "done": tallied.done,
            "total": tallied.units,
            "progress_note": tallied.words(job.kind),
            "eta_seconds": _seconds_left(job, tallied),
        }
        if any(getattr(job, name) != value for name, value in new.items()):
            move(session, job.id, at_shards(), **new)


def _seconds_left(job: Job, tallied: Tally) -> float | None:
    """At the speed of the shards that run; while none knows its own yet, at the one that was said last."""
    left = max(0, tallied.units - tallied.done)
    if tallied.per_second:
        return round(left / tallied.per_second, 1)
    before = (job.total or 0) - job.done
    return round(job.eta_seconds * left / before, 1) if job.eta_seconds is not None and before > 0 else None


def all_ended(session: Session) -> list[Job]:
    """Divided jobs that hold no worker and whose shards have all ended."""
    shard = aliased(Job)
    at_work = exists().where(shard.parent_id == Job.id, shard.state.not_in(FINISHED))
    query = select(Job).where(at_shards(), ~at_work).execution_options(populate_existing=True)
    return list(session.scalars(query))


def cancel(session: Session, job_id: str) -> None:
    """Ask a job's shards to stop: those that wait are CANCELLED at once."""
    _end_waiting(session, job_id, "cancelled", "Cancelled while it waited.")
    running = update(Job).where(Job.parent_id == job_id, Job.state == JobState.RUNNING)
    session.execute(_quietly(running.values(cancel_requested=True, version=Job.version + 1)))


def spare(session: Session, shard_id: str) -> None:
    """Where enough shards of a job have failed, those that wait are not begun: they would most likely fail too."""
    shard = session.get_one(Job, shard_id)
    if shard.parent_id and shard.kind not in INDEPENDENT and tally(session, shard.parent_id).failed >= ENOUGH_FAILED:
        _end_waiting(session, shard.parent_id, "spared", SPARED)


def requeue(session: Session, job_id: str) -> None:
    """Queue again what did not end well, when the job itself is."""
    for shard in failed(session, job_id):
        _queue(session, shard, shard.request)


def refuse(session: Session, job: Job) -> None:
    """Raises Conflict for a shard: people act on the job it belongs to."""
    if job.parent_id:
        whole = session.get_one(Job, job.parent_id)
        raise Conflict(f"“{job.name}” is a shard of “{whole.name}”; cancel, retry or clone that job.")


def waiting_whole(session: Session, job_id: str) -> str | None:
    """The divided job that a shard belongs to, when that one waits for a worker now."""
    shard = aliased(Job)
    return session.scalar(select(Job.id).join(shard, shard.parent_id == Job.id).where(shard.id == job_id, waiting()))


def _tallies(session: Session, which: ColumnElement[bool]) -> dict[str, Tally]:
    """Per second: each running shard says how long it still takes, so how fast it is."""
    left = Job.total - Job.done
    speed = func.sum(left / func.nullif(Job.eta_seconds, 0)).filter(Job.state == JobState.RUNNING)
    sums = (func.count(), func.sum(Job.done), func.sum(func.coalesce(Job.total, Job.done)), speed)
    found: dict[str, Tally] = {}
    query = select(Job.parent_id, Job.state, *sums).where(which).group_by(Job.parent_id, Job.state)
    for job_id, state, count, done, units, per_second in session.execute(query):
        old = found.get(job_id, Tally())
        more = old.per_second + float(per_second or 0.0)
        found[job_id] = Tally({**old.states, state: count}, old.done + int(done), old.units + int(units), more)
    return found


def _made(parent: Job, division: Division, number: int, shard: Shard, queued_at: Any) -> Job:
    named = shard.name or f"{parent.name}, shard {number + 1} of {len(division.shards)}"
    job = Job(kind=division.kind, queue=division.queue, request=shard.request, name=named[:200], user=parent.user)
    job.parent_id, job.number, job.queued_at, job.attempt_cap = parent.id, number, queued_at, ATTEMPTS
    job.total, job.unit = shard.total, division.unit
    job.estimated_seconds, job.work = shard.estimated_seconds, shard.work
    if shard.result is not None:
        job.state, job.done, job.result, job.finished_at = JobState.SUCCEEDED, shard.total, shard.result, now()
    return job


def _again(session: Session, job: Job, wanted: Shard) -> None:
    """A shard that is known: queued again where its result is missing, done where that is there."""
    if wanted.result is not None and job.state != JobState.SUCCEEDED:
        values = {
            "done": wanted.total,
            "total": wanted.total,
            "result": wanted.result,
            "finished_at": now(),
            **NO_ERROR,
        }
        change(session, job.id, Job.state != JobState.RUNNING, state=JobState.SUCCEEDED, **values)
    elif wanted.result is None and job.state in FINISHED:
        _queue(session, job, wanted.request)


def _queue(session: Session, job: Job, request: dict[str, Any]) -> None:
    values = {"cancel_requested": False, "finished_at": None, "published_at": None, "progress_note": "", **NO_ERROR}
    values |= {"state": JobState.QUEUED, "request": request, "attempt_cap": Job.attempt + ATTEMPTS, "started_at": None}
    change(session, job.id, Job.state.in_(FINISHED), version=Job.version + 1, done=0, done_before=0, **values)


def _end_waiting(session: Session, job_id: str, code: str, error: str) -> None:
    ended = {"state": JobState.CANCELLED, "error_code": code, "error": error, "finished_at": now()}
    which = update(Job).where(Job.parent_id == job_id, waiting())
    session.execute(_quietly(which.values(version=Job.version + 1, progress_note="", **ended)))


def _quietly(statement: Any) -> Any:
    return statement.execution_options(synchronize_session=False)
