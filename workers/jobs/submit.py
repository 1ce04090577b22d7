"""Submits jobs: commits the row, then sends its id. Pages use this module, so it does not import torch."""

from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from speculoos.errors import BadInput, Conflict, NotFound
from speculoos.settings import Settings, load
from tracking import db, jobs, queries, shards, stored
from tracking.names import KIND_NAMES, check_free_name, check_name, find_named, free_name, release_name, to_allowed_name
from tracking.states import FINISHED
from tracking.tables import Checkpoint, Dataset, Evaluation, Job
from workers.celery_app import publish
from workers.jobs.builtin import added_sets, find_built_in
from workers.jobs.estimates import Estimate, estimate
from workers.jobs.request import Request
from workers.jobs.requests import Evaluate, Train, from_json


def submit(
    request: Request,
    *,
    name: str = "",
    like: str = "",
    experiment: str | None = None,
    user: str = "",
    after: Job | None = None,
    settings: Settings | None = None,
) -> Job:
    """Create and commit the rows of a job and its output, and send its id. With a store its inputs are uploaded first.
    `name`: of the output (empty: from `like` or the inputs); `experiment`: its name, created if new; `user`: shown on
    pages. If another job still writes an input, this job waits for it; `after` is a job that waits for the same and
    shall succeed first. If the broker is unreachable, the reconciler sends the job later. Raises BadInput, NotFound,
    Conflict or Unavailable."""
    settings = settings or load()
    request.check_settings(settings)
    _upload_inputs(settings, request)
    estimated = check_and_estimate(settings, request)
    with db.writing(settings) as session:
        after_id = _find_inputs(session, request)
        experiment_id = queries.ensure_experiment(session, experiment).id if experiment else None
        request, row = _make_output(session, request, name, experiment_id, like)
        verb = request.verb or request.kind.partition("_")[0].capitalize()
        title = row.name if row else check_name(name) if name else request.default_name(session)
        job = jobs.create(
            session,
            kind=request.kind,
            queue=request.runs_on,
            request=request.to_json(),
            name=f"{verb} {title}",
            after_id=after.id if after else after_id,
            experiment_id=experiment_id,
            user=user,
            estimated_seconds=estimated.seconds,
            work=estimated.work,
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
    """Submit a training, and with `measure` an evaluation of its checkpoint on the built-in questions."""
    common = {"experiment": experiment, "user": user, "settings": settings}
    training = submit(request, name=name, **common)
    if not measure:
        return [training]
    evaluation = Evaluate(base_id=request.base_id, checkpoint_id=training.request["checkpoint_id"])
    return [training, submit(evaluation, **common)]


def add_built_in(
    name: str, *, experiment: str | None = None, user: str = "", settings: Settings
) -> tuple[str, Job | None]:
    """Add a built-in set once; returns its id and the job that imports it (None: added before). Raises BadInput."""
    built_in = find_built_in(name)
    with db.reading(settings) as session:
        existing, same_name = added_sets(session).get(name), find_named(session, Dataset, name)
    if existing:
        return existing, None
    common = {"experiment": experiment, "user": user, "settings": settings}
    try:
        job = submit(built_in.request(), name="" if same_name else name, like=name, **common)
    except Conflict:  # another user added it at the same time
        with db.reading(settings) as session:
            if existing := added_sets(session).get(name):
                return existing, None
        raise
    return job.request["dataset_id"], job


def request_cancel(job_id: str, settings: Settings | None = None) -> Job:
    """Request that a job stops; see tracking.jobs.request_cancel."""
    with db.writing(settings or load()) as session:
        return jobs.request_cancel(session, job_id)


def retry(job_id: str, settings: Settings | None = None) -> Job:
    """Queue a failed or cancelled job again, and send its id; see tracking.jobs.retry."""
    settings = settings or load()
    if settings.store:
        with db.reading(settings) as session:
            job = jobs.get(session, job_id)
        _upload_inputs(settings, from_json(job.kind, job.request))
    with db.writing(settings) as session:
        job = jobs.retry(session, job_id)
    return send(settings, job)


def clone(job_id: str, *, user: str = "", settings: Settings | None = None) -> Job:
    """Submit a new job of `user` with the same request and a new output."""
    settings = settings or load()
    with db.reading(settings) as session:
        job = jobs.get(session, job_id)
        shards.must_not_be_shard(session, job)
    request = from_json(job.kind, job.request)
    if request.output:
        request = request.changed(**{request.output[0]: ""})
    return submit(request, experiment=job.experiment_id, user=user, settings=settings)


def check_and_estimate(settings: Settings, request: Request) -> Estimate:
    """Check and estimate without a write transaction. Raises BadInput, NotFound, Conflict or Unsupported."""
    request.check_options()
    with db.reading(settings) as session:
        _find_inputs(session, request)
        request.check(session)
        estimated = estimate(session, request, settings.home)
    if estimated.refusal:
        raise BadInput(estimated.refusal)
    return estimated


def _upload_inputs(settings: Settings, request: Request) -> None:
    """Upload the local inputs to the store, so that any machine can run the job. Raises Unavailable."""
    if not settings.store:
        return
    files, uploads = stored.RowFiles(settings), []
    with db.reading(settings) as session:
        rows = [session.get(table, row_id) for table, row_id in request.inputs()]
        for path in filter(None, request.paths()):
            if checkpoint := session.scalar(select(Checkpoint).where(Checkpoint.path == path).limit(1)):
                rows.append(checkpoint)
            else:
                uploads.append((stored.UPLOADS, stored.path_id(settings, path), Path(path)))
        for row in rows:
            if row and row.state == "ready" and not stored.is_shipped(row) and not stored.stored_entry(session, row.id):
                uploads.append((stored.KINDS[type(row)], row.id, files.path(row)))
    for kind, row_id, path in (upload for upload in uploads if upload[2].exists()):
        folder = files.upload(kind, row_id, path)
        with db.writing(settings) as session:
            stored.save_stored(session, kind, row_id, folder)


def _find_inputs(session: Session, request: Request) -> str | None:
    writers = []
    for table, row_id in request.inputs():
        row = session.get(table, row_id)
        if row is None:
            raise NotFound(
                f"The {KIND_NAMES[table.__tablename__]} {row_id!r} does not exist; it may have been deleted."
            )
        job = session.get(Job, row.job_id) if row.job_id and row.state == "pending" else None
        if job and job.state not in FINISHED:
            writers.append(job)
        else:
            queries.must_be_ready(row)
    return max(writers, key=lambda job: job.created_at).id if writers else None


def _make_output(
    session: Session, request: Request, name: str, experiment_id: str | None, like: str
) -> tuple[Request, Any]:
    """(request with its output's id, the new row or None). Raises Conflict if `name` is in use."""
    if not request.output:
        return request, None
    field, table = request.output
    name = request.output_name(name)
    wanted = name or like or request.default_name(session)
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
    """Send the job if it may start; a job that waits for another is sent when that one ends."""
    with db.reading(settings) as session:
        ready = [j for j in jobs.publishable(session) if j.id == job.id]
    publish(settings, ready)
    with db.reading(settings) as session:
        return jobs.get(session, job.id)
