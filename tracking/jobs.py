"""Jobs and who may change them: every change is one compare-and-set update, so two processes never both win.

Attempts are fenced: what a worker or its child writes says `WHERE attempt = mine AND state = RUNNING`, and raises
`Fenced` when that touches no row. Functions take an open session and leave the commit to its caller.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, case, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from speculoos.errors import BadInput, Conflict, Fenced, NotFound
from tracking.names import check_user
from tracking.states import TRANSITIONS, WAITING, JobState
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job, now, storable

ATTEMPTS = 5
"""Attempts in a row that get no further before a job is given up: a crash loop must end."""
STOPPED_WITH_PREDECESSOR = "predecessor"
"""`error_code` of a job cancelled because the one before it did not succeed."""
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
) -> Job:
    """A QUEUED job, asked for by `user`. With `after_id` it starts only once that job SUCCEEDED."""
    if after_id and (before := get(session, after_id)).state in (JobState.FAILED, JobState.CANCELLED):
        raise Conflict(f"“{before.name}” ended {before.state}, so nothing can start after it; retry it first.")
    job = Job(kind=kind, queue=queue, request=request, name=name, after_id=after_id, experiment_id=experiment_id)
    job.attempt_cap, job.queued_at, job.user = ATTEMPTS, _end_of_queue(session, queue), check_user(user)
    session.add(job)
    session.flush()
    return job


def get(session: Session, job_id: str) -> Job:
    """The job with this id, freshly read. Raises NotFound."""
    if job := session.get(Job, job_id, populate_existing=True):
        return job
    raise NotFound(f"There is no job {job_id!r}; `speculoos jobs` lists them.")


def find(session: Session, reference: str) -> Job:
    """By id, by the first characters of an id, or by name (the newest). Raises NotFound or BadInput."""
    if job := session.get(Job, reference, populate_existing=True):
        return job
    if len(reference) >= 4:
        found = list(session.scalars(select(Job).where(Job.id.startswith(reference, autoescape=True)).limit(2)))
        if len(found) == 1:
            return found[0]
        if found:
            raise BadInput(f"Several jobs begin with {reference!r}; give more characters of the id.")
    by_name = select(Job).where(Job.name == reference).order_by(Job.created_at.desc()).limit(1)
    if job := session.scalar(by_name):
        return job
    raise NotFound(f"There is no job {reference!r}; `speculoos jobs` lists them.")


def claim(session: Session, job_id: str, owner: str, lease_seconds: float) -> int | None:
    """Take a job for `owner`; returns the new attempt's number, or None when it is not to be had.

    To be had: QUEUED or INTERRUPTED; attempts left; not asked to stop; and the job before it SUCCEEDED. (That a lease
    ran out is for the reconciler to say, who watches it: see workers/supervise/reconcile.py.) The row's `child` still
    names the last attempt's process, which the caller ends first.
    """
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
    if not _move(session, job_id, and_(ready(), _waiting()), **values):
        return None
    _update(session, job_id, Job.started_at.is_(None), started_at=time)
    return get(session, job_id).attempt


def renew(session: Session, job_id: str, attempt: int, lease_seconds: float) -> bool:
    """The supervisor's heartbeat: keep the lease; returns whether someone asked to stop. Raises Fenced.

    `lease_until` is for people to read. Whoever judges the lease only asks whether it changed, so that no clock counts.
    """
    until = now() + timedelta(seconds=lease_seconds)
    _fenced(_update(session, job_id, mine(attempt), lease_until=until), job_id, attempt)
    return bool(session.scalar(select(Job.cancel_requested).where(Job.id == job_id)))


def record_child(session: Session, job_id: str, attempt: int, child: dict[str, Any]) -> None:
    """Store which process works for this attempt: host, boot id, pid and start time. Raises Fenced."""
    _fenced(_update(session, job_id, mine(attempt), child=child), job_id, attempt)


def succeed(session: Session, job_id: str, attempt: int, result: dict[str, Any]) -> None:
    """RUNNING → SUCCEEDED, and its outputs are what the work published. Raises Fenced."""
    done = {"result": result, "finished_at": now(), "eta_seconds": None, "progress_note": "", **NO_ERROR}
    _fenced(_move(session, job_id, mine(attempt), state=JobState.SUCCEEDED, **done), job_id, attempt)


def fail(session: Session, job_id: str, attempt: int, code: str, error: str, hint: str = "") -> None:
    """RUNNING → FAILED with one sentence; jobs waiting for it are cancelled. Raises Fenced."""
    _fenced(_finish(session, job_id, mine(attempt), JobState.FAILED, code, error, hint), job_id, attempt)


def cancelled(session: Session, job_id: str, attempt: int, message: str = "Stopped at your request.") -> None:
    """RUNNING → CANCELLED, once the work has stopped. Raises Fenced."""
    _fenced(_finish(session, job_id, mine(attempt), JobState.CANCELLED, "cancelled", message), job_id, attempt)


def interrupt(
    session: Session, job_id: str, attempt: int, reason: str, *, counts: bool = True, hint: str = ""
) -> JobState:
    """RUNNING → INTERRUPTED: the work stopped without an end of its own, and will go on. Returns the new state.

    CANCELLED when someone had asked to stop; FAILED, with `hint`, when no attempt is left. An attempt that got further
    than those before it starts the count anew; a worker that is told to stop gives its attempt back (`counts=False`).
    Raises Fenced.
    """
    _update(session, job_id, mine(attempt), Job.done > Job.done_before, attempt_cap=Job.attempt + ATTEMPTS)
    if _finish(session, job_id, and_(mine(attempt), Job.cancel_requested), JobState.CANCELLED, "cancelled", STOPPED):
        return JobState.CANCELLED
    out = and_(mine(attempt), Job.attempt >= Job.attempt_cap)
    if counts and _finish(session, job_id, out, JobState.FAILED, "crashed", given_up(reason), hint or SEE_LOG):
        return JobState.FAILED
    values = {"lease_until": None, "eta_seconds": None, "progress_note": reason, "published_at": None}
    extra = {} if counts else {"attempt_cap": Job.attempt_cap + 1}
    moved = _move(session, job_id, mine(attempt), state=JobState.INTERRUPTED, **values, **extra)
    _fenced(moved, job_id, attempt)
    return JobState.INTERRUPTED


def request_cancel(session: Session, job_id: str) -> Job:
    """Ask a job to stop. One that waits is CANCELLED at once; a running one stops at its next safe point.

    Raises Conflict when it has ended already.
    """
    job = get(session, job_id)
    if _finish(session, job_id, _waiting(), JobState.CANCELLED, "cancelled", "Cancelled while it waited."):
        return get(session, job_id)
    if not _move(session, job_id, Job.state == JobState.RUNNING, cancel_requested=True):
        raise Conflict(f"“{job.name}” has ended already ({job.state}).")
    return get(session, job_id)


def retry(session: Session, job_id: str) -> Job:
    """Queue a FAILED or CANCELLED job again: the same row, a new attempt, from its last checkpoint or shard.

    Jobs that were cancelled because this one did not succeed are queued again too.
    """
    job = get(session, job_id)
    if not JobState(job.state).can_become(JobState.QUEUED):
        raise Conflict(f"“{job.name}” is {job.state}; only a failed or cancelled job can be retried.")
    if job.after_id and (before := get(session, job.after_id)).state in (JobState.FAILED, JobState.CANCELLED):
        raise Conflict(f"“{job.name}” needs “{before.name}”, which ended {before.state}; retry that one.")
    _requeue(session, job)
    return get(session, job_id)


def publishable(session: Session) -> list[Job]:
    """Jobs a worker could claim now, in queue order."""
    return list(session.scalars(select(Job).where(ready(), _waiting()).order_by(Job.queued_at, Job.id)))


def running(session: Session, queue: str = "") -> list[Job]:
    """Jobs some worker holds, of one queue or of all."""
    query = select(Job).where(Job.state == JobState.RUNNING)
    return list(session.scalars(query.where(Job.queue == queue) if queue else query))


def cancel_stranded(session: Session) -> int:
    """Cancel waiting jobs whose predecessor ended otherwise than well just while they were made. Returns how many."""
    before = aliased(Job)
    lost = exists().where(before.id == Job.after_id, before.state.in_([JobState.FAILED, JobState.CANCELLED]))
    parents = set(session.scalars(select(Job.after_id).where(_waiting(), lost)))
    for parent in parents:
        _cancel_dependents(session, get(session, parent))
    return len(parents)


def mark_published(session: Session, job_id: str) -> None:
    """Remember when the job's message was sent."""
    _update(session, job_id, published_at=now())


def mine(attempt: int) -> ColumnElement[bool]:
    """The fence: true only for the row of the attempt that still owns the job."""
    return and_(Job.attempt == attempt, Job.state == JobState.RUNNING)


def ready() -> ColumnElement[bool]:
    """Attempts left, not asked to stop, and nothing it still has to wait for."""
    before = aliased(Job)
    succeeded = exists().where(before.id == Job.after_id, before.state == JobState.SUCCEEDED)
    return and_(Job.attempt < Job.attempt_cap, ~Job.cancel_requested, or_(Job.after_id.is_(None), succeeded))


def given_up(reason: str) -> str:
    return f"Given up after {ATTEMPTS} attempts in a row that got no further; the last one: {reason}"


NO_ERROR = {"error_code": "", "error": "", "hint": ""}
STOPPED = "Stopped at your request."
SEE_LOG = "The job's log shows the last lines of each attempt; retry goes on from the last checkpoint."


def _waiting() -> ColumnElement[bool]:
    return Job.state.in_(WAITING)


def _update(session: Session, job_id: str, *conditions: ColumnElement[bool], **values: Any) -> bool:
    statement = update(Job).where(Job.id == job_id, *conditions).values(**values)
    return session.execute(statement.execution_options(synchronize_session=False)).rowcount == 1


def _move(session: Session, job_id: str, *conditions: ColumnElement[bool], **values: Any) -> bool:
    """Compare-and-set that pages should notice; True when it was ours to change."""
    if state := values.get("state"):
        conditions += (Job.state.in_([s for s, after in TRANSITIONS.items() if state in after]),)
    return _update(session, job_id, *conditions, version=Job.version + 1, **values)


def _fenced(touched: bool, job_id: str, attempt: int) -> None:
    if not touched:
        raise Fenced(f"Attempt {attempt} of job {job_id} is over; another one owns it, or it has ended.")


def _finish(
    session: Session, job_id: str, which: ColumnElement[bool], state: JobState, code: str, error: str, hint: str = ""
) -> bool:
    """To FAILED or CANCELLED, taking pending outputs and waiting jobs along."""
    values = {"error_code": code, "error": storable(error), "hint": storable(hint), "lease_until": None}
    ended = {"finished_at": now(), "eta_seconds": None, "progress_note": ""}
    if not _move(session, job_id, which, state=state, **values, **ended):
        return False
    _set_outputs(session, job_id, "pending", "failed")
    _cancel_dependents(session, get(session, job_id))
    return True


def _cancel_dependents(session: Session, job: Job) -> None:
    how = "failed" if job.state == JobState.FAILED else "was cancelled"
    reason = f"Not started, because “{job.name}” {how}; retry that job and this one follows."
    for waiting in session.scalars(select(Job.id).where(Job.after_id == job.id, _waiting())).all():
        _finish(session, waiting, _waiting(), JobState.CANCELLED, STOPPED_WITH_PREDECESSOR, reason)


def _requeue(session: Session, job: Job) -> None:
    values = {"cancel_requested": False, "finished_at": None, "published_at": None, "progress_note": "", **NO_ERROR}
    again = {"queued_at": _end_of_queue(session, job.queue), "attempt_cap": Job.attempt + ATTEMPTS}
    if not _move(session, job.id, state=JobState.QUEUED, **values, **again):
        return
    _set_outputs(session, job.id, "failed", "pending")
    followers = select(Job).where(Job.after_id == job.id, Job.error_code == STOPPED_WITH_PREDECESSOR)
    for follower in session.scalars(followers.order_by(Job.created_at)).all():
        _requeue(session, follower)


def _end_of_queue(session: Session, queue: str) -> datetime:
    """Now, or just behind the last one that waits: a clock that was put back lets no one jump the queue."""
    last = session.scalar(select(func.max(Job.queued_at)).where(Job.queue == queue, _waiting()))
    return max(now(), last + timedelta(microseconds=1)) if last else now()


def _set_outputs(session: Session, job_id: str, before: str, after: str) -> None:
    for table in OUTPUTS:
        which = update(table).where(table.job_id == job_id, table.state == before)
        session.execute(which.values(state=after).execution_options(synchronize_session=False))
