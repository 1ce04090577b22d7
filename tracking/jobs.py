"""Jobs and who may change them: every change is one compare-and-set update, so two processes never both win.

Attempts are fenced: what a worker or its child writes says `WHERE attempt = mine AND state = RUNNING`, and raises
`Fenced` when that touches no row. Functions take an open session and leave the commit to its caller.
"""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, case, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from speculoos.errors import BadInput, Conflict, Fenced, NotFound
from tracking import shards
from tracking.moves import ATTEMPTS, NO_ERROR, at_shards, change, end_of_queue, fenced, mine, move, ready, waiting
from tracking.names import check_user
from tracking.states import JobState
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job, now
from tracking.values import storable

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
    estimated_seconds: float | None = None,
    work: float = 0.0,
) -> Job:
    """A QUEUED job, asked for by `user`, estimated from so much `work`. With `after_id` it starts only once that
    job SUCCEEDED."""
    if after_id and (before := get(session, after_id)).state in (JobState.FAILED, JobState.CANCELLED):
        raise Conflict(f"“{before.name}” ended {before.state}, so nothing can start after it; retry it first.")
    job = Job(kind=kind, queue=queue, request=request, name=name, after_id=after_id, experiment_id=experiment_id)
    job.attempt_cap, job.queued_at, job.user = ATTEMPTS, end_of_queue(session, queue), check_user(user)
    job.estimated_seconds, job.work = estimated_seconds, work
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
        begun = (Job.id.startswith(reference, autoescape=True), Job.parent_id.is_(None))
        matches = list(session.scalars(select(Job).where(*begun).limit(2)))
        if len(matches) == 1:
            return matches[0]
        if matches:
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
    if not move(session, job_id, and_(ready(), waiting()), **values):
        return None
    change(session, job_id, Job.started_at.is_(None), started_at=time)
    return get(session, job_id).attempt


def renew(session: Session, job_id: str, attempt: int, lease_seconds: float) -> bool:
    """The supervisor's heartbeat: keep the lease; returns whether someone asked to stop. Raises Fenced.

    `lease_until` is for people to read. Whoever judges the lease only asks whether it changed, so that no clock counts.
    """
    until = now() + timedelta(seconds=lease_seconds)
    fenced(change(session, job_id, mine(attempt), lease_until=until), job_id, attempt)
    return bool(session.scalar(select(Job.cancel_requested).where(Job.id == job_id)))


def record_child(session: Session, job_id: str, attempt: int, child: dict[str, Any]) -> None:
    """Store which process works for this attempt: host, boot id, pid and start time. Raises Fenced."""
    fenced(change(session, job_id, mine(attempt), child=child), job_id, attempt)


def succeed(session: Session, job_id: str, attempt: int, result: dict[str, Any]) -> None:
    """RUNNING → SUCCEEDED, and its outputs are what the work published. Raises Fenced."""
    done = {"result": result, "finished_at": now(), "eta_seconds": None, "progress_note": "", **NO_ERROR}
    fenced(move(session, job_id, mine(attempt), state=JobState.SUCCEEDED, **done), job_id, attempt)


def fail(session: Session, job_id: str, attempt: int, code: str, error: str, hint: str = "") -> None:
    """RUNNING → FAILED with one sentence; jobs waiting for it are cancelled. Raises Fenced."""
    fenced(_finish(session, job_id, mine(attempt), JobState.FAILED, code, error, hint), job_id, attempt)


def cancelled(session: Session, job_id: str, attempt: int, message: str = "Stopped at your request.") -> None:
    """RUNNING → CANCELLED, once the work has stopped. Raises Fenced."""
    fenced(_finish(session, job_id, mine(attempt), JobState.CANCELLED, "cancelled", message), job_id, attempt)


def interrupt(
    session: Session, job_id: str, attempt: int, reason: str, *, counts: bool = True, hint: str = ""
) -> JobState:
    """RUNNING → INTERRUPTED: the work stopped without an end of its own, and will go on. Returns the new state.

    CANCELLED when someone had asked to stop, but for a divided job that can still put together what its shards have
    finished; FAILED, with `hint`, when no attempt is left. An attempt that got further than those before it starts the
    count anew; a worker that is told to stop gives its attempt back (`counts=False`). Raises Fenced.
    """
    change(session, job_id, mine(attempt), Job.done > Job.done_before, attempt_cap=Job.attempt + ATTEMPTS)
    out = and_(mine(attempt), Job.attempt >= Job.attempt_cap)
    for_good = and_(mine(attempt), Job.cancel_requested, or_(Job.shards == 0, out))
    if _finish(session, job_id, for_good, JobState.CANCELLED, "cancelled", STOPPED):
        return JobState.CANCELLED
    if counts and _finish(session, job_id, out, JobState.FAILED, "crashed", given_up(reason), hint or SEE_LOG):
        return JobState.FAILED
    values = {"lease_until": None, "eta_seconds": None, "progress_note": reason, "published_at": None}
    extra = {} if counts else {"attempt_cap": Job.attempt_cap + 1}
    moved = move(session, job_id, mine(attempt), state=JobState.INTERRUPTED, **values, **extra)
    fenced(moved, job_id, attempt)
    return JobState.INTERRUPTED


def request_cancel(session: Session, job_id: str) -> Job:
    """Ask a job to stop, its shards too. One that waits is CANCELLED at once; a running one stops at its next safe
    point, a divided one once what its shards have finished is put together.

    Raises Conflict when it has ended already, or is a shard of another job.
    """
    job = get(session, job_id)
    shards.refuse(session, job)
    if _finish(session, job_id, and_(waiting(), Job.shards == 0), JobState.CANCELLED, "cancelled", NEVER_BEGUN):
        return get(session, job_id)
    if not move(session, job_id, or_(Job.state == JobState.RUNNING, waiting()), cancel_requested=True):
        raise Conflict(f"“{job.name}” has ended already ({job.state}).")
    shards.cancel(session, job_id)
    return get(session, job_id)


def retry(session: Session, job_id: str) -> Job:
    """Queue a FAILED or CANCELLED job again: the same row, a new attempt, from its last checkpoint or shard.

    Jobs that were cancelled because this one did not succeed are queued again too. So are its own shards.
    """
    job = get(session, job_id)
    shards.refuse(session, job)
    if not JobState(job.state).can_become(JobState.QUEUED):
        raise Conflict(f"“{job.name}” is {job.state}; only a failed or cancelled job can be retried.")
    if job.after_id and (before := get(session, job.after_id)).state in (JobState.FAILED, JobState.CANCELLED):
        raise Conflict(f"“{job.name}” needs “{before.name}”, which ended {before.state}; retry that one.")
    _requeue(session, job)
    return get(session, job_id)


def publishable(session: Session) -> list[Job]:
    """Jobs a worker could claim now, in queue order. Of one job's shards only the next few, so that others get a turn
    and no queue holds thousands of messages."""
    place = func.row_number().over(partition_by=Job.parent_id, order_by=(Job.queued_at, Job.id))
    found = select(Job.id, Job.parent_id, place.label("place")).where(ready(), waiting()).subquery()
    next_ones = or_(found.c.parent_id.is_(None), found.c.place <= shards.AT_ONCE)
    query = select(Job).join(found, found.c.id == Job.id).where(next_ones)
    return list(session.scalars(query.order_by(Job.queued_at, Job.id)))


def running(session: Session) -> list[Job]:
    """Jobs some worker holds."""
    return list(session.scalars(select(Job).where(Job.state == JobState.RUNNING, ~at_shards())))


def cancel_stranded(session: Session) -> int:
    """Cancel waiting jobs whose predecessor ended otherwise than well just while they were made. Returns how many."""
    before = aliased(Job)
    lost = exists().where(before.id == Job.after_id, before.state.in_([JobState.FAILED, JobState.CANCELLED]))
    parents = set(session.scalars(select(Job.after_id).where(waiting(), lost)))
    for parent in parents:
        _cancel_dependents(session, get(session, parent))
    return len(parents)


def collect(session: Session) -> int:
    """Divided jobs whose shards have all ended wait for a worker again, to put together what was made; how many.
    Those whose shards are at work still say how far they are."""
    shards.gather(session)
    over = shards.all_ended(session)
    for job in over:
        if job.cancel_requested:
            move(
                session,
                job.id,
                mine(job.attempt),
                state=JobState.INTERRUPTED,
                published_at=None,
                attempt_cap=Job.attempt + ATTEMPTS,
            )
        else:
            with suppress(Fenced):  # another process has just done it
                interrupt(session, job.id, job.attempt, "Its shards have ended.")
    return len(over)


def mark_published(session: Session, job_id: str) -> None:
    """Remember when the job's message was sent."""
    change(session, job_id, published_at=now())


def given_up(reason: str) -> str:
    return f"Given up after {ATTEMPTS} attempts in a row that got no further; the last one: {reason}"


STOPPED = "Stopped at your request."
NEVER_BEGUN = "Cancelled while it waited."
SEE_LOG = "The job's log shows the last lines of each attempt; retry goes on from the last checkpoint."


def _finish(
    session: Session, job_id: str, which: ColumnElement[bool], state: JobState, code: str, error: str, hint: str = ""
) -> bool:
    """To FAILED or CANCELLED, taking pending outputs and waiting jobs along."""
    values = {"error_code": code, "error": storable(error), "hint": storable(hint), "lease_until": None}
    ended = {"finished_at": now(), "eta_seconds": None, "progress_note": ""}
    if not move(session, job_id, which, state=state, **values, **ended):
        return False
    _give_back(session, job_id)
    _set_outputs(session, job_id, "pending", "failed")
    shards.spare(session, job_id)
    _cancel_dependents(session, get(session, job_id))
    return True


def _cancel_dependents(session: Session, job: Job) -> None:
    how = "failed" if job.state == JobState.FAILED else "was cancelled"
    reason = f"Not started, because “{job.name}” {how}; retry that job and this one follows."
    for job_id in session.scalars(select(Job.id).where(Job.after_id == job.id, waiting())).all():
        _finish(session, job_id, waiting(), JobState.CANCELLED, STOPPED_WITH_PREDECESSOR, reason)


def _requeue(session: Session, job: Job) -> None:
    values = {"cancel_requested": False, "finished_at": None, "published_at": None, "progress_note": "", **NO_ERROR}
    again = {"queued_at": end_of_queue(session, job.queue), "attempt_cap": Job.attempt + ATTEMPTS, "started_at": None}
    if not move(session, job.id, state=JobState.QUEUED, **values, **again):
        return
    _set_outputs(session, job.id, "failed", "pending")
    shards.requeue(session, job.id)
    followers = select(Job).where(Job.after_id == job.id, Job.error_code == STOPPED_WITH_PREDECESSOR)
    for follower in session.scalars(followers.order_by(Job.created_at)).all():
        _requeue(session, follower)


def _give_back(session: Session, job_id: str) -> None:
    """A data set that was to get more rows is what it was before: its old ones can be used."""
    had_rows = (Dataset.job_id == job_id, Dataset.state == "pending", Dataset.rows > 0)
    session.execute(update(Dataset).where(*had_rows).values(state="ready").execution_options(synchronize_session=False))


def _set_outputs(session: Session, job_id: str, before: str, after: str) -> None:
    for table in OUTPUTS:
        which = update(table).where(table.job_id == job_id, table.state == before)
        session.execute(which.values(state=after).execution_options(synchronize_session=False))
