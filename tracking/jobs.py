"""State changes of jobs. Every change is one compare-and-set update, so only one of several processes succeeds.

Attempts are fenced: writes of a worker or its child have `WHERE attempt = … AND state = RUNNING` and raise `Fenced` if
no row matches. Functions take an open session; the caller commits.
"""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, case, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from speculoos.errors import BadInput, Conflict, Fenced, NotFound
from tracking import shards
from tracking.names import check_user
from tracking.states import JobState
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job, now
from tracking.transitions import (
    ATTEMPTS,
    NO_ERROR,
    QUEUED_AGAIN,
    can_start,
    check_fence,
    end_of_queue,
    is_waiting,
    owned_by_attempt,
    runs_in_shards,
    update_job,
    update_job_and_version,
)
from tracking.values import storable

STOPPED_WITH_PREDECESSOR = "predecessor"  # `error_code` of a job cancelled because its predecessor did not succeed
OUTPUTS = (Base, Dataset, Checkpoint, Evaluation)


def create(
    session: Session,
    *,
    kind: str,
    queue: str,
    request: dict[str, Any],
    name: str,
    after_id: str | None = None,
    experiment_id: str | None = None,
    user: str = "",
    estimated_seconds: float | None = None,
    work: float = 0.0,
) -> Job:
    """Create a QUEUED job that starts once `after_id` SUCCEEDED. Raises Conflict if that one ended otherwise."""
    if after_id and (before := get(session, after_id)).state in (JobState.FAILED, JobState.CANCELLED):
        raise Conflict(f"“{before.name}” ended {before.state}, so nothing can start after it; retry it first.")
    job = Job(kind=kind, queue=queue, request=request, name=name, after_id=after_id, experiment_id=experiment_id)
    job.attempt_cap, job.queued_at, job.user = ATTEMPTS, end_of_queue(session, queue), check_user(user)
    job.estimated_seconds, job.work = estimated_seconds, work
    session.add(job)
    session.flush()
    return job


def get(session: Session, job_id: str) -> Job:
    """The job with this id, read from the database again. Raises NotFound."""
    if job := session.get(Job, job_id, populate_existing=True):
        return job
    raise NotFound(f"There is no job {job_id!r}; `speculoos jobs` lists them.")


def find(session: Session, reference: str) -> Job:
    """By id, at least 4 first characters of an id, or name (the newest). Raises NotFound or BadInput."""
    if job := session.get(Job, reference, populate_existing=True):
        return job
    if len(reference) >= 4:
        conditions = (Job.id.startswith(reference, autoescape=True), Job.parent_id.is_(None))
        matches = list(session.scalars(select(Job).where(*conditions).limit(2)))
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise BadInput(f"Several jobs begin with {reference!r}; enter more characters of the id.")
    by_name = select(Job).where(Job.name == reference).order_by(Job.created_at.desc()).limit(1)
    if job := session.scalar(by_name):
        return job
    raise NotFound(f"There is no job {reference!r}; `speculoos jobs` lists them.")


def claim(session: Session, job_id: str, owner: str, lease_seconds: float) -> int | None:
    """Claim a job for `owner`; returns the number of the new attempt, or None if the job cannot be claimed. It can be
    claimed if it is QUEUED or INTERRUPTED, has attempts left, no cancel request, and a SUCCEEDED predecessor (if any).
    Expired leases are handled by the reconciler (workers/supervise/reconcile.py). The row's `child` still names the
    last attempt's process, which the caller must end first."""
    time = now()
    values = {
        "state": JobState.RUNNING,
        "attempt": Job.attempt + 1,
        "owner": owner,
        "lease_until": time + timedelta(seconds=lease_seconds),
        "heartbeat_at": time,
        "eta_seconds": None,
        "progress_note": "",
        "done_before": case((Job.done > Job.done_before, Job.done), else_=Job.done_before),
        **NO_ERROR,
    }
    if not update_job_and_version(session, job_id, and_(can_start(), is_waiting()), **values):
        return None
    update_job(session, job_id, Job.started_at.is_(None), started_at=time)
    return get(session, job_id).attempt


def renew(session: Session, job_id: str, attempt: int, lease_seconds: float) -> bool:
    """The supervisor's heartbeat: renew the lease; returns whether a cancel was requested. Raises Fenced. `lease_until`
    is for display. The reconciler only checks whether it changed, which does not depend on clocks."""
    until = now() + timedelta(seconds=lease_seconds)
    check_fence(update_job(session, job_id, owned_by_attempt(attempt), lease_until=until), job_id, attempt)
    return bool(session.scalar(select(Job.cancel_requested).where(Job.id == job_id)))


def record_child(session: Session, job_id: str, attempt: int, child: dict[str, Any]) -> None:
    """Store the process of this attempt: host, boot id, pid and start time. Raises Fenced."""
    check_fence(update_job(session, job_id, owned_by_attempt(attempt), child=child), job_id, attempt)


def succeed(session: Session, job_id: str, attempt: int, result: dict[str, Any]) -> None:
    """RUNNING → SUCCEEDED. Raises Fenced."""
    values = {"result": result, "finished_at": now(), "eta_seconds": None, "progress_note": "", **NO_ERROR}
    ended = update_job_and_version(session, job_id, owned_by_attempt(attempt), state=JobState.SUCCEEDED, **values)
    check_fence(ended, job_id, attempt)


def fail(session: Session, job_id: str, attempt: int, code: str, error: str, hint: str = "") -> None:
    """RUNNING → FAILED with one sentence; jobs that wait for it are cancelled. Raises Fenced."""
    ended = _finish(session, job_id, owned_by_attempt(attempt), JobState.FAILED, code, error, hint)
    check_fence(ended, job_id, attempt)


def finish_cancelled(session: Session, job_id: str, attempt: int, message: str = "Stopped at your request.") -> None:
    """RUNNING → CANCELLED, after the work has stopped. Raises Fenced."""
    ended = _finish(session, job_id, owned_by_attempt(attempt), JobState.CANCELLED, "cancelled", message)
    check_fence(ended, job_id, attempt)


def interrupt(
    session: Session, job_id: str, attempt: int, reason: str, *, uses_attempt: bool = True, hint: str = ""
) -> JobState:
    """RUNNING → INTERRUPTED: the attempt ended early and the job will be resumed. Returns the new state. CANCELLED if a
    cancel was requested, except for a parent job that can still merge the results of its finished shards; FAILED, with
    `hint`, if no attempt is left. An attempt with more progress than all earlier ones resets the count of attempts.
    With `uses_attempt=False` (a worker that is shutting down) the attempt is not counted. Raises Fenced."""
    owned = owned_by_attempt(attempt)
    update_job(session, job_id, owned, Job.done > Job.done_before, attempt_cap=Job.attempt + ATTEMPTS)
    last_attempt = and_(owned, Job.attempt >= Job.attempt_cap)
    stopped = and_(owned, Job.cancel_requested, or_(Job.shards == 0, last_attempt))
    if _finish(session, job_id, stopped, JobState.CANCELLED, "cancelled", STOPPED_MESSAGE):
        return JobState.CANCELLED
    error = f"Failed after {ATTEMPTS} consecutive attempts without progress; the last one: {reason}"
    if uses_attempt and _finish(session, job_id, last_attempt, JobState.FAILED, "crashed", error, hint or RETRY_HINT):
        return JobState.FAILED
    values = {"lease_until": None, "eta_seconds": None, "progress_note": reason, "published_at": None}
    extra = {} if uses_attempt else {"attempt_cap": Job.attempt_cap + 1}
    moved = update_job_and_version(session, job_id, owned, state=JobState.INTERRUPTED, **values, **extra)
    check_fence(moved, job_id, attempt)
    return JobState.INTERRUPTED


def request_cancel(session: Session, job_id: str) -> Job:
    """Request that a job and its shards stop. A waiting job is CANCELLED at once; a running one stops at its next safe
    point, a parent job after merging the results of its finished shards. Raises Conflict if the job has ended or is a
    shard."""
    job = get(session, job_id)
    shards.must_not_be_shard(session, job)
    without_shards = and_(is_waiting(), Job.shards == 0)
    if _finish(session, job_id, without_shards, JobState.CANCELLED, "cancelled", "Cancelled while it waited."):
        return get(session, job_id)
    if not update_job_and_version(
        session, job_id, or_(Job.state == JobState.RUNNING, is_waiting()), cancel_requested=True
    ):
        raise Conflict(f"“{job.name}” has ended already ({job.state}).")
    shards.cancel(session, job_id)
    return get(session, job_id)


def retry(session: Session, job_id: str) -> Job:
    """Queue a FAILED or CANCELLED job again: a new attempt of the same row, from its last checkpoint or shard. Its
    shards and the jobs that were cancelled because it did not succeed are queued again too. Raises Conflict for other
    states, a shard, or a predecessor that did not succeed."""
    job = get(session, job_id)
    shards.must_not_be_shard(session, job)
    if not JobState(job.state).can_become(JobState.QUEUED):
        raise Conflict(f"“{job.name}” is {job.state}; only a failed or cancelled job can be retried.")
    if job.after_id and (before := get(session, job.after_id)).state in (JobState.FAILED, JobState.CANCELLED):
        raise Conflict(f"“{job.name}” needs “{before.name}”, which ended {before.state}; retry that one.")
    _requeue(session, job)
    return get(session, job_id)


def publishable(session: Session) -> list[Job]:
    """Jobs that can be claimed now, in queue order; of a parent job the next few shards, so others get a turn."""
    rank = func.row_number().over(partition_by=Job.parent_id, order_by=(Job.queued_at, Job.id))
    ranked = select(Job.id, Job.parent_id, rank.label("rank")).where(can_start(), is_waiting()).subquery()
    first = or_(ranked.c.parent_id.is_(None), ranked.c.rank <= shards.MAX_QUEUED_SHARDS)
    query = select(Job).join(ranked, ranked.c.id == Job.id).where(first)
    return list(session.scalars(query.order_by(Job.queued_at, Job.id)))


def running(session: Session) -> list[Job]:
    """RUNNING jobs that a worker holds."""
    return list(session.scalars(select(Job).where(Job.state == JobState.RUNNING, ~runs_in_shards())))


def cancel_stranded(session: Session) -> int:
    """Cancel waiting jobs whose predecessor ended badly while they were created; returns the number of predecessors."""
    before = aliased(Job)
    stranded = exists().where(before.id == Job.after_id, before.state.in_([JobState.FAILED, JobState.CANCELLED]))
    predecessors = set(session.scalars(select(Job.after_id).where(is_waiting(), stranded)))
    for predecessor in predecessors:
        _cancel_dependents(session, get(session, predecessor))
    return len(predecessors)


def resume_parents(session: Session) -> int:
    """Update parent jobs; those whose shards have ended become INTERRUPTED, for the merge. Returns their number."""
    shards.update_progress(session)
    ended = shards.all_ended(session)
    for job in ended:
        if job.cancel_requested:
            values = {"published_at": None, "attempt_cap": Job.attempt + ATTEMPTS}
            update_job_and_version(session, job.id, owned_by_attempt(job.attempt), state=JobState.INTERRUPTED, **values)
        else:
            with suppress(Fenced):  # another process has just done it
                interrupt(session, job.id, job.attempt, "Its shards have ended.")
    return len(ended)


def mark_published(session: Session, job_id: str) -> None:
    update_job(session, job_id, published_at=now())


STOPPED_MESSAGE = "Stopped at your request."
RETRY_HINT = "The job's log shows the last lines of each attempt; a retry resumes from the last checkpoint."


def _finish(
    session: Session, job_id: str, where: ColumnElement[bool], state: JobState, code: str, error: str, hint: str = ""
) -> bool:
    """Set FAILED or CANCELLED; fails pending outputs and cancels jobs that wait for it."""
    values = {"error_code": code, "error": storable(error), "hint": storable(hint), "lease_until": None}
    ended = {"finished_at": now(), "eta_seconds": None, "progress_note": ""}
    if not update_job_and_version(session, job_id, where, state=state, **values, **ended):
        return False
    # a dataset of an earlier version that was being extended can still be used
    extended = (Dataset.job_id == job_id, Dataset.state == "pending", Dataset.rows > 0)
    session.execute(update(Dataset).where(*extended).values(state="ready").execution_options(synchronize_session=False))
    _set_outputs(session, job_id, "pending", "failed")
    shards.cancel_after_failures(session, job_id)
    _cancel_dependents(session, get(session, job_id))
    return True


def _cancel_dependents(session: Session, job: Job) -> None:
    ending = "failed" if job.state == JobState.FAILED else "was cancelled"
    reason = f"Not started, because “{job.name}” {ending}; retry that job and this one follows."
    for job_id in session.scalars(select(Job.id).where(Job.after_id == job.id, is_waiting())).all():
        _finish(session, job_id, is_waiting(), JobState.CANCELLED, STOPPED_WITH_PREDECESSOR, reason)


def _requeue(session: Session, job: Job) -> None:
    if not update_job_and_version(session, job.id, queued_at=end_of_queue(session, job.queue), **QUEUED_AGAIN):
        return
    _set_outputs(session, job.id, "failed", "pending")
    shards.requeue(session, job.id)
    followers = select(Job).where(Job.after_id == job.id, Job.error_code == STOPPED_WITH_PREDECESSOR)
    for follower in session.scalars(followers.order_by(Job.created_at)).all():
        _requeue(session, follower)


def _set_outputs(session: Session, job_id: str, before: str, after: str) -> None:
    for table in OUTPUTS:
        statement = update(table).where(table.job_id == job_id, table.state == before)
        session.execute(statement.values(state=after).execution_options(synchronize_session=False))
