"""More answers into a data set that there is: further prompts of its set, or further answers to each. No torch here."""

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
    before); what it has already is kept as it is. It can be used again when the job has ended, with what it had where
    that failed or was cancelled: its row's `config` says what is in it, and changes when more is.

    Raises BadInput where that is not more than there is, Conflict while a job makes or uses it.
    """
    settings = settings or load()
    with db.reading(settings) as session:
        request = _larger(session, dataset_id, samples, limit)
    deliver(settings, request, (Dataset, dataset_id))
    with db.writing(settings) as session:
        request = _larger(session, dataset_id, samples, limit)
        request.check_options()
        row = session.get_one(Dataset, dataset_id)
        job = _job(session, row, request, user)
        row.state, row.job_id = "pending", job.id
    return send(settings, job)


def prompts_left(session: Session, row: Dataset) -> int | None:
    """Prompts of its set that have no answer in it yet; None where it cannot be extended."""
    source = session.get(Dataset, row.source_id) if row.source_id else None
    return max(source.rows - answered(session, row), 0) if source and _generated(row) else None


def answered(session: Session, row: Dataset) -> int:
    """Prompts of its set that it was made for."""
    prompts = session.get_one(Dataset, row.source_id).rows if row.source_id else row.rows
    return min((row.config or {}).get("limit") or prompts, prompts)


def made_by(row: Dataset) -> GenerateData:
    """What was asked for, when it was made. Raises BadInput for one that was not generated here."""
    if not _generated(row):
        raise BadInput(f"{row.name!r} was not generated here, so it cannot be extended; import more, or generate.")
    return GenerateData(**{**row.config, "dataset_id": row.id})


def _generated(row: Dataset) -> bool:
    return row.kind == "conversations" and bool(row.source_id) and "max_tokens" in (row.config or {})


def _larger(session: Session, dataset_id: str, samples: int | None, limit: int | None) -> GenerateData:
    """The request that made the data set, with more to do. Raises Conflict while a job makes or uses it."""
    row = session.get_one(Dataset, dataset_id)
    changes.must_be_idle(session, row)
    before = made_by(row)
    prompts = session.get_one(Dataset, row.source_id).rows
    wanted = before.changed(samples=samples or before.samples, limit=limit or before.limit)
    counts = [(made.samples, min(made.limit or prompts, prompts)) for made in (before, wanted)]
    if any(new < old for old, new in zip(*counts, strict=True)) or (counts[0] == counts[1] and _complete(row)):
        had, of = counts[0]
        noun = "answer" if had == 1 else "answers"
        raise BadInput(f"{row.name!r} has {had} {noun} to each of {of:,} prompts already; say what it shall have more.")
    return wanted


def _complete(row: Dataset) -> bool:
    return row.state == "ready" and (row.report or {}).get("complete", True)


def _job(session: Session, row: Dataset, request: GenerateData, user: str) -> Job:
    queries.must_be_ready(session.get_one(Dataset, request.source_id))
    asked = {"kind": request.kind, "queue": request.runs_on, "request": request.to_json()}
    return jobs.create(session, **asked, name=f"Extend {row.name}", experiment_id=row.experiment_id, user=user)
