"""Submitting jobs: the row is committed first, then its id is sent. No torch and no model here; pages call this."""

from typing import Any

from sqlalchemy.orm import Session

from speculoos.errors import NotFound
from speculoos.settings import Settings, load
from tracking import db, jobs, queries, shards
from tracking.names import KIND_NAMES, check_free_name, check_name, free_name, release_name, to_allowed_name
from tracking.states import FINISHED
from tracking.tables import Evaluation, Job
from workers.jobs.deliver import deliver
from workers.jobs.estimates import Estimate, estimate
from workers.jobs.publish import publish
from workers.jobs.request import Request, without_output
from workers.jobs.requests import Evaluate, FetchModel, Train, from_json


def submit(
    request: Request,
    *,
    name: str = "",
    like: str = "",
    experiment: str | None = None,
    user: str = "",
    settings: Settings | None = None,
) -> Job:
    """Make the job's row and its output row, commit them, and send the id. With a store its inputs go there first.

    `name` is the output's (when empty, made from `like` or from the inputs); `experiment` a name, made if new; `user`
    is for people. A job that still makes an input must succeed first. An unreachable broker is no error: the row waits.
    Raises BadInput, NotFound, Conflict or Unavailable where the job cannot be done.
    """
    settings = settings or load()
    request.check_settings(settings)
    deliver(settings, request)
    guess = check_and_estimate(settings, request)
    with db.writing(settings) as session:
        after_id = _find_inputs(session, request)
        experiment_id = queries.ensure_experiment(session, experiment).id if experiment else None
        request, row = _make_output(session, request, name, experiment_id, like)
        verb = request.verb or request.kind.partition("_")[0].capitalize()
        called = row.name if row else check_name(name) if name else request.default_name(session)
        job = jobs.create(
            session,
            kind=request.kind,
            queue=request.runs_on,
            request=request.to_json(),
            name=f"{verb} {called}",
            after_id=after_id,
            experiment_id=experiment_id,
            user=user,
            estimated_seconds=guess.seconds,
            work=guess.work,
        )
        if row:
            row.job_id = job.id
    return send(settings, job)


def submit_training(
    request: Train,
    *,
    measure: bool,
    name: str = "",
    experiment: str | None = None,
    user: str = "",
    settings: Settings | None = None,
) -> list[Job]:
    """Submit the training and, to `measure`, an evaluation of its checkpoint on the built-in questions."""
    common = {"experiment": experiment, "user": user, "settings": settings}
    training = submit(request, name=name, **common)
    if not measure:
        return [training]
    made = Evaluate(base_id=request.base_id, checkpoint_id=training.request["checkpoint_id"])
    return [training, submit(made, **common)]


def request_cancel(job_id: str, settings: Settings | None = None) -> Job:
    """Ask a job to stop; see tracking.jobs.request_cancel."""
    with db.writing(settings or load()) as session:
        return jobs.request_cancel(session, job_id)


def retry(job_id: str, settings: Settings | None = None) -> Job:
    """Queue a failed or cancelled job again, and send its id; see tracking.jobs.retry."""
    settings = settings or load()
    if settings.store:
        with db.reading(settings) as session:
            job = jobs.get(session, job_id)
        deliver(settings, from_json(job.kind, job.request))
    with db.writing(settings) as session:
        job = jobs.retry(session, job_id)
    return send(settings, job)


def clone(job_id: str, *, user: str = "", settings: Settings | None = None) -> Job:
    """A new job with the same request and an output of its own, asked for by `user`."""
    settings = settings or load()
    with db.reading(settings) as session:
        job = jobs.get(session, job_id)
        shards.must_not_be_shard(session, job)
    request = without_output(from_json(job.kind, job.request))
    return submit(request, experiment=job.experiment_id, user=user, settings=settings)


def check_and_estimate(settings: Settings, request: Request) -> Estimate:
    """Check the request and estimate the job, before anything is written: this may read a thousand conversations, and
    the database has one writer. Raises BadInput, NotFound, Conflict or Unsupported."""
    request.check_options()
    with db.reading(settings) as session:
        _find_inputs(session, request)
        request.check(session)
        return estimate(session, request, settings.home)


def _find_inputs(session: Session, request: Request) -> str | None:
    """The id of the last unfinished job that makes one of the inputs, if any. Raises NotFound or Conflict for an input
    that is missing or cannot be used."""
    makers = []
    for table, row_id in request.inputs():
        row = session.get(table, row_id)
        if row is None:
            raise NotFound(
                f"The {KIND_NAMES[table.__tablename__]} {row_id!r} does not exist; it may have been deleted."
            )
        job = session.get(Job, row.job_id) if row.job_id and row.state == "pending" else None
        if job and job.state not in FINISHED:
            makers.append(job)
        else:
            queries.must_be_ready(row)
    return max(makers, key=lambda job: job.created_at).id if makers else None


def _make_output(
    session: Session, request: Request, name: str, experiment_id: str | None, like: str
) -> tuple[Request, Any]:
    """The request with the id of its new output row, and that row in state `pending`; no row for kinds without one.

    A given `name` must be free (Conflict otherwise); without one it is `like`, `like-2`, … or a default.
    """
    if not request.output:
        return request, None
    field, table = request.output
    wanted = name.strip() or like or request.default_name(session)
    if isinstance(request, FetchModel):
        request.check_name(name or wanted)
    if table is not Evaluation:  # several evaluations may have the same name
        base_id = request.base_id if request.output_in_base else ""
        wanted = wanted if name else to_allowed_name(wanted)
        release_name(session, table, wanted, base_id)
        wanted = (check_free_name if name else free_name)(session, table, wanted, base_id)
    columns = request.columns(session)
    if hasattr(table, "experiment_id"):
        columns["experiment_id"] = experiment_id
    row = table(name=wanted, **columns)
    session.add(row)
    session.flush()
    return request.changed(**{field: row.id}), row


def send(settings: Settings, job: Job) -> Job:
    """Send the job if it may start; one that waits for another is sent when that one ends."""
    with db.reading(settings) as session:
        ready = [j for j in jobs.publishable(session) if j.id == job.id]
    publish(settings, ready)
    with db.reading(settings) as session:
        return jobs.get(session, job.id)
