"""Adds answers to an existing data set: for more prompts, or more answers per prompt. No torch."""

from sqlalchemy.orm import Session

from speculoos.errors import BadInput
from speculoos.settings import Settings, load
from tracking import changes, db, jobs, queries
from tracking.tables import Dataset, Job
from workers.jobs.deliver import deliver
from workers.jobs.requests import GenerateData
from workers.jobs.submit import send


def extend(
    dataset_id: str,
    *,
    samples: int | None = None,
    limit: int | None = None,
    user: str = "",
    settings: Settings | None = None,
) -> Job:
    """Generate into data set `dataset_id` until it has `samples` answers to each of `limit` prompts (None: as many as
    before). Existing answers do not change. The data set is pending until the job has ended; after a failure or cancel
    it has its earlier content. The `config` of its row describes the content, and is updated when the job succeeds.

    Raises BadInput if that is not more than it has, Conflict while a job makes or uses it.
    """
    settings = settings or load()
    with db.reading(settings) as session:
        request = _extended_request(session, dataset_id, samples, limit)
    deliver(settings, request, (Dataset, dataset_id))
    with db.writing(settings) as session:
        request = _extended_request(session, dataset_id, samples, limit)
        request.check_options()
        row = session.get_one(Dataset, dataset_id)
        job = _create_job(session, row, request, user)
        row.state, row.job_id = "pending", job.id
    return send(settings, job)


def prompts_left(session: Session, row: Dataset) -> int | None:
    """Number of prompts of the source set without an answer; None if the data set cannot be extended."""
    source = session.get(Dataset, row.source_id) if row.source_id else None
    return max(source.rows - answered(session, row), 0) if source and _is_generated(row) else None


def answered(session: Session, row: Dataset) -> int:
    """Number of prompts of the source set that the data set was generated for."""
    prompts = session.get_one(Dataset, row.source_id).rows if row.source_id else row.rows
    return min((row.config or {}).get("limit") or prompts, prompts)


def made_by(row: Dataset) -> GenerateData:
    """The request that generated the data set. Raises BadInput if it was not generated here."""
    if not _is_generated(row):
        raise BadInput(f"{row.name!r} was not generated here, so it cannot be extended; generate another one.")
    return GenerateData.from_row({**row.config, "dataset_id": row.id})


def _is_generated(row: Dataset) -> bool:
    return row.kind == "conversations" and bool(row.source_id) and "max_tokens" in (row.config or {})


def _extended_request(session: Session, dataset_id: str, samples: int | None, limit: int | None) -> GenerateData:
    """The request that generated the data set, with the new `samples` and `limit`. Raises BadInput or Conflict."""
    row = session.get_one(Dataset, dataset_id)
    changes.must_be_idle(session, row)
    before = made_by(row)
    prompts = session.get_one(Dataset, row.source_id).rows
    after = before.changed(samples=samples or before.samples, limit=limit or before.limit)
    counts = [(each.samples, min(each.limit or prompts, prompts)) for each in (before, after)]
    if any(new < old for old, new in zip(*counts, strict=True)) or (counts[0] == counts[1] and _is_complete(row)):
        per_prompt, answered_prompts = counts[0]
        noun = "response" if per_prompt == 1 else "responses"
        responses = f"{per_prompt} {noun} to each of {answered_prompts:,} prompts"
        raise BadInput(f"{row.name!r} already has {responses}; raise one of these numbers.")
    return after


def _is_complete(row: Dataset) -> bool:
    return row.state == "ready" and (row.report or {}).get("complete", True)


def _create_job(session: Session, row: Dataset, request: GenerateData, user: str) -> Job:
    queries.must_be_ready(session.get_one(Dataset, request.source_id))
    return jobs.create(
        session,
        kind=request.kind,
        queue=request.runs_on,
        request=request.to_json(),
        name=f"Extend {row.name}",
        experiment_id=row.experiment_id,
        user=user,
    )
