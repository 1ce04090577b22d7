"""Building blocks of changes to jobs: compare-and-set updates, the fence, and the conditions for starting.

Use tracking.jobs and tracking.shards outside this package.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from speculoos.errors import Fenced
from tracking.states import TRANSITIONS, WAITING, JobState
from tracking.tables import Job, now

ATTEMPTS = 5  # attempts in a row without progress after which a job fails, so that crash loops end
NO_ERROR = {"error_code": "", "error": "", "hint": ""}
QUEUED_AGAIN = {
    **{"state": JobState.QUEUED, "attempt_cap": Job.attempt + ATTEMPTS, "cancel_requested": False, "progress_note": ""},
    **{"started_at": None, "finished_at": None, "published_at": None, **NO_ERROR},
}


def owned_by_attempt(attempt: int) -> ColumnElement[bool]:
    """The fence: matches the job only while this attempt still owns it."""
    return and_(Job.attempt == attempt, Job.state == JobState.RUNNING)


def is_waiting() -> ColumnElement[bool]:
    """The job waits for a worker: QUEUED or INTERRUPTED."""
    return Job.state.in_(WAITING)


def can_start() -> ColumnElement[bool]:
    """Attempts are left, no cancel is requested (a parent job must still merge), and the predecessor has SUCCEEDED."""
    before = aliased(Job)
    succeeded = exists().where(before.id == Job.after_id, before.state == JobState.SUCCEEDED)
    not_cancelled = or_(~Job.cancel_requested, Job.shards > 0)
    return and_(Job.attempt < Job.attempt_cap, not_cancelled, or_(Job.after_id.is_(None), succeeded))


def runs_in_shards() -> ColumnElement[bool]:
    """The job is RUNNING without a worker, because its shards do the work."""
    return and_(Job.state == JobState.RUNNING, Job.shards > 0, Job.owner == "")


def update_job(session: Session, job_id: str, *conditions: ColumnElement[bool], **values: Any) -> bool:
    """Compare-and-set update that pages need not show. True if the row matched the conditions."""
    statement = update(Job).where(Job.id == job_id, *conditions).values(**values)
    return session.execute(statement.execution_options(synchronize_session=False)).rowcount == 1


def update_job_and_version(session: Session, job_id: str, *conditions: ColumnElement[bool], **values: Any) -> bool:
    """Compare-and-set update that increments `version`, so that pages show it. True if the row matched the conditions.
    A change of `state` must be an allowed transition."""
    if state := values.get("state"):
        conditions += (Job.state.in_([s for s, targets in TRANSITIONS.items() if state in targets]),)
    return update_job(session, job_id, *conditions, version=Job.version + 1, **values)


def check_fence(updated: bool, job_id: str, attempt: int) -> None:
    """Raises Fenced if a fenced update matched no row."""
    if not updated:
        raise Fenced(f"Attempt {attempt} of job {job_id} is over; another one owns it, or it has ended.")


def end_of_queue(session: Session, queue: str) -> datetime:
    """Now, or just after the last waiting job, so that a clock that was set back lets no job jump the queue."""
    last = session.scalar(select(func.max(Job.queued_at)).where(Job.queue == queue, is_waiting()))
    return max(now(), last + timedelta(microseconds=1)) if last else now()
