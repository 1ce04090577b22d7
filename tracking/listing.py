"""Lists of jobs, their place in the queue, and in words what each waits for."""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tracking import processes
from tracking.jobs import get
from tracking.states import FINISHED, WAITING, JobState
from tracking.tables import Job, now


def jobs(
    session: Session,
    *,
    states: Sequence[str] = (),
    kind: str = "",
    experiment_id: str = "",
    limit: int = 100,
    offset: int = 0,
) -> list[Job]:
    """Newest first, narrowed by any of the arguments."""
    query = select(Job).order_by(Job.created_at.desc(), Job.id).limit(limit).offset(offset)
    if states:
        query = query.where(Job.state.in_(states))
    if kind:
        query = query.where(Job.kind == kind)
    if experiment_id:
        query = query.where(Job.experiment_id == experiment_id)
    return list(session.scalars(query.execution_options(populate_existing=True)))


def active(session: Session) -> list[Job]:
    """Running ones first, then the waiting ones in queue order."""
    found = session.scalars(select(Job).where(Job.state.not_in(FINISHED)).order_by(Job.queued_at, Job.id))
    return sorted(found, key=lambda job: job.state != JobState.RUNNING)


def signature(session: Session) -> str:
    """A short text that changes whenever any job does: pages compare it before they redraw."""
    count, versions = session.execute(select(func.count(Job.id), func.coalesce(func.sum(Job.version), 0))).one()
    return f"{count}.{versions}.{session.scalar(select(func.max(Job.created_at)))}"


def ahead(session: Session, job: Job) -> list[Job]:
    """Jobs of the same queue that run, or come before `job`, in order."""
    before = (Job.state == JobState.RUNNING) | (Job.state.in_(WAITING) & (Job.queued_at < job.queued_at))
    query = select(Job).where(Job.queue == job.queue, Job.id != job.id, before)
    return sorted(session.scalars(query.order_by(Job.queued_at)), key=lambda j: j.state != JobState.RUNNING)


def queue_place(session: Session, job: Job) -> int | None:
    """1 for the next one to start; None when the job is not waiting."""
    if job.state not in WAITING:
        return None
    return 1 + sum(other.state in WAITING for other in ahead(session, job))


def waits_for(session: Session, job: Job) -> str:
    """One sentence on why a job is not running yet; "" when it is, or has ended."""
    if job.state not in WAITING:
        return ""
    if job.after_id and (before := get(session, job.after_id)).state != JobState.SUCCEEDED:
        return f"Waits for “{before.name}”, which is {_how_far(before)}."
    if not processes.capacity(session, job.queue):
        return f"Waits for a worker of the {job.queue} queue: {_last_heard(session, job.queue)}."
    if reason := processes.paused(session, job.queue):
        return reason
    others = ahead(session, job)
    if len(others) >= processes.capacity(session, job.queue):
        return _behind(others)
    return "Goes on in a moment." if job.state == JobState.INTERRUPTED else "Starts in a moment."


def percent(job: Job) -> int | None:
    """Whole per cent done; None when the total is not known."""
    return min(100, int(100 * job.done / job.total)) if job.total else None


def _behind(others: list[Job]) -> str:
    first, more = others[0], len(others) - 1
    tail = f" and {more} more {'job' if more == 1 else 'jobs'}" if more else ""
    return f"Waits for “{first.name}” ({_how_far(first)}){tail}."


def _how_far(job: Job) -> str:
    done = f", {percent(job)} % done" if job.state == JobState.RUNNING and percent(job) is not None else ""
    return job.state.lower() + done


def _last_heard(session: Session, queue: str) -> str:
    seen = processes.last_seen(session, f"worker-{queue}")
    if seen is None:
        return "none is running; `speculoos up` starts one"
    return f"none has reported for {max(0, int((now() - seen).total_seconds()))} s; `speculoos up` starts one"
