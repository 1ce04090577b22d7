"""What every change of a job's row is made of: compare-and-set updates, the fence, and who may start.

Used by the rest of tracking; others go through tracking.jobs and tracking.shards.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from speculoos.errors import Fenced
from tracking.states import TRANSITIONS, WAITING, JobState
from tracking.tables import Job, now

ATTEMPTS = 5
"""Attempts in a row that get no further before a job is given up: a crash loop must end."""
NO_ERROR = {"error_code": "", "error": "", "hint": ""}


def mine(attempt: int) -> ColumnElement[bool]:
    """The fence: true only for the row of the attempt that still owns the job."""
    return and_(Job.attempt == attempt, Job.state == JobState.RUNNING)


def waiting() -> ColumnElement[bool]:
    """Waits for a worker: QUEUED or INTERRUPTED."""
    return Job.state.in_(WAITING)


def ready() -> ColumnElement[bool]:
    """Attempts left, not asked to stop (a divided job ends by putting together what there is), and nothing it still
    has to wait for."""
    before = aliased(Job)
    succeeded = exists().where(before.id == Job.after_id, before.state == JobState.SUCCEEDED)
    wanted = or_(~Job.cancel_requested, Job.shards > 0)
    return and_(Job.attempt < Job.attempt_cap, wanted, or_(Job.after_id.is_(None), succeeded))


def at_shards() -> ColumnElement[bool]:
    """RUNNING without a worker of its own: its shards are at work."""
    return and_(Job.state == JobState.RUNNING, Job.shards > 0, Job.owner == "")


def change(session: Session, job_id: str, *conditions: ColumnElement[bool], **values: Any) -> bool:
    """Compare-and-set that no page needs to notice; True when it was ours to change."""
    statement = update(Job).where(Job.id == job_id, *conditions).values(**values)
    return session.execute(statement.execution_options(synchronize_session=False)).rowcount == 1


def move(session: Session, job_id: str, *conditions: ColumnElement[bool], **values: Any) -> bool:
    """Compare-and-set that pages should notice; True when it was ours to change."""
    if state := values.get("state"):
        conditions += (Job.state.in_([s for s, after in TRANSITIONS.items() if state in after]),)
    return change(session, job_id, *conditions, version=Job.version + 1, **values)


def fenced(touched: bool, job_id: str, attempt: int) -> None:
    """Raises Fenced when an update behind the fence touched no row."""
    if not touched:
        raise Fenced(f"Attempt {attempt} of job {job_id} is over; another one owns it, or it has ended.")


def end_of_queue(session: Session, queue: str) -> datetime:
    """Now, or just behind the last one that waits: a clock that was put back lets no one jump the queue."""
    last = session.scalar(select(func.max(Job.queued_at)).where(Job.queue == queue, waiting()))
    return max(now(), last + timedelta(microseconds=1)) if last else now()
