"""Submitting work: the row is committed first, then its id is sent. No torch and no model here; pages call this."""

from dataclasses import replace
from typing import Any

from sqlalchemy.orm import Session

from methods import train_config
from speculoos.errors import BadInput, NotFound
from speculoos.settings import Settings, load
from tracking import db, jobs, queries, shards
from tracking.names import WORDS
from tracking.states import FINISHED
from tracking.tables import Job
from workers.ask.outputs import OUTPUT, default_name, input_ids, make_output
from workers.ask.publish import publish
from workers.ask.requests import GenerateData, Request, Train, from_json, queue_of

VERBS = {
    "fetch_model": "Fetch",
    "import_draft": "Import",
    "import_prompts": "Import",
    "import_answered": "Import",
    "generate_data": "Generate",
    "train": "Train",
    "evaluate": "Evaluate",
    "export": "Export",
}


def submit(
    request: Request,
    *,
    name: str = "",
    like: str = "",
    after: Job | str | None = None,
    experiment: str | None = None,
    user: str = "",
    settings: Settings | None = None,
) -> Job:
    """Make the job's row and its output row, commit them, and send the id.

    `name` is the output's (when empty made up from `like`, or from what goes in); `after` a job that must succeed
    first (found by itself when an input is still being made); `experiment` a name, made if new; `user` who asks, as
    they call themselves. An unreachable broker is no error: the row waits.
    Raises BadInput, NotFound or Conflict for names and inputs that cannot be.
    """
    settings = settings or load()
    with db.writing(settings) as session:
        job = _create(session, request, name, after.id if isinstance(after, Job) else after, experiment, like, user)
    return send(settings, job)


def request_cancel(job_id: str, settings: Settings | None = None) -> Job:
    """Ask a job to stop; see tracking.jobs.request_cancel."""
    with db.writing(settings or load()) as session:
        return jobs.request_cancel(session, job_id)


def retry(job_id: str, settings: Settings | None = None) -> Job:
    """Queue a failed or cancelled job again, and send its id; see tracking.jobs.retry."""
    settings = settings or load()
    with db.writing(settings) as session:
        job = jobs.retry(session, job_id)
    return send(settings, job)


def clone(job_id: str, *, name: str = "", user: str = "", settings: Settings | None = None, **changes: Any) -> Job:
    """A new job with the same request, some fields changed, and an output of its own, asked for by `user`."""
    settings = settings or load()
    with db.writing(settings) as session:
        job = jobs.get(session, job_id)
        shards.refuse(session, job)
        request = without_output(replace(from_json(job.kind, job.request), **changes))
        copy = _create(session, request, name, None, job.experiment_id, user=user)
    return send(settings, copy)


def without_output(request: Request) -> Request:
    """The request before it was given an output row: what clones and forms start from."""
    return replace(request, **{OUTPUT[type(request)][0]: ""}) if type(request) in OUTPUT else request


def _create(
    session: Session,
    request: Request,
    name: str,
    after_id: str | None,
    experiment: str | None,
    like: str = "",
    user: str = "",
) -> Job:
    maker = _check_inputs(session, request)
    after_id = after_id or maker
    experiment_id = queries.ensure_experiment(session, experiment).id if experiment else None
    request, row = make_output(session, request, name, experiment_id, like)
    job = jobs.create(
        session,
        kind=request.kind,
        queue=queue_of(request),
        request=request.to_json(),
        name=f"{VERBS[request.kind]} {row.name if row else default_name(session, request)}",
        after_id=after_id,
        experiment_id=experiment_id,
        user=user,
    )
    if row:
        row.job_id = job.id
    return job


def _check_inputs(session: Session, request: Request) -> str | None:
    """Check that every input is there; the id of the last unfinished job that makes one of them, if any."""
    if isinstance(request, GenerateData):
        check_generation(request)
    if isinstance(request, Train):
        train_config(**{**request.settings, "method": request.method})
    makers = []
    for table, row_id in input_ids(request):
        row = session.get(table, row_id)
        if row is None:
            raise NotFound(f"The {WORDS[table.__tablename__]} {row_id!r} does not exist; it may have been deleted.")
        job = session.get(Job, row.job_id) if row.job_id and row.state == "pending" else None
        if job and job.state not in FINISHED:
            makers.append(job)
        else:
            queries.must_be_ready(row)
    return max(makers, key=lambda job: job.created_at).id if makers else None


def check_generation(request: GenerateData) -> None:
    """Raises BadInput for what cannot be asked for together."""
    if not (request.endpoint or request.base_id):
        raise BadInput("Say which model answers: a base model, or the name of an endpoint.")
    if request.samples > 1 and request.temperature <= 0:
        raise BadInput("Several answers to a prompt need a temperature above 0; at 0 they would all be the same.")
    if request.shard_rows and request.max_minutes:
        raise BadInput("Minutes at most are for a generation in one job; leave them out, or the prompts a shard.")


def send(settings: Settings, job: Job) -> Job:
    """Send the job if it may start; one that waits for another is sent when that one ends."""
    with db.reading(settings) as session:
        ready = [j for j in jobs.publishable(session) if j.id == job.id]
    publish(settings, ready)
    with db.reading(settings) as session:
        return jobs.get(session, job.id)
