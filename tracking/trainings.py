"""Comparison of trainings: each job with the rows it reads and creates, and the evaluations of its draft."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tracking.leaderboard import MEASURED
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job, Metric, Table

MAX_TRAININGS = 8  # maximum number of trainings in one comparison; more lines in a chart cannot be distinguished
KIND = "train"


@dataclass(frozen=True)
class Training:
    """One training. `datasets` are the existing ones it reads; `evaluations` are those of its draft, newest first."""

    job: Job
    base: Base | None
    datasets: list[Dataset]
    checkpoint: Checkpoint | None
    evaluations: list[Evaluation]

    @property
    def data(self) -> str:
        return ", ".join(row.name for row in self.datasets) or "deleted"

    @property
    def name(self) -> str:
        """The draft's name, or the job's name without a draft."""
        return self.checkpoint.name if self.checkpoint else self.job.name


@dataclass(frozen=True)
class SelectedTrainings:
    """Jobs of a list of ids: trainings in order, other jobs, number of unknown ids, and trainings beyond the limit."""

    trainings: list[Training]
    others: list[Job]
    missing: int
    surplus: list[Job]


def find(session: Session, ids: Sequence[str], most: int = MAX_TRAININGS) -> SelectedTrainings:
    by_id = _by_id(session, Job, set(ids))
    existing_jobs = [by_id[row_id] for row_id in dict.fromkeys(ids) if row_id in by_id]
    jobs = [job for job in existing_jobs if job.kind == KIND]
    others = [job for job in existing_jobs if job.kind != KIND]
    return SelectedTrainings(with_rows(session, jobs[:most]), others, len(set(ids)) - len(existing_jobs), jobs[most:])


def best_values(session: Session, jobs: Sequence[str], metric: str) -> dict[str, float]:
    """Maximum value of a metric by job id."""
    conditions = (Metric.job_id.in_(jobs), Metric.name == metric)
    rows = session.execute(select(Metric.job_id, func.max(Metric.value)).where(*conditions).group_by(Metric.job_id))
    return {job_id: value for job_id, value in rows}


def signature(session: Session, ids: Sequence[str]) -> str:
    """A short text that changes when one of these jobs changes or one of their drafts is measured."""
    jobs = session.execute(select(Job.id, Job.version, Job.state).where(Job.id.in_(ids)).order_by(Job.id)).all()
    drafts = select(Checkpoint.id).where(Checkpoint.job_id.in_(ids))
    counted = select(func.count(), func.max(Evaluation.created_at))
    measured = session.execute(counted.where(*MEASURED, Evaluation.checkpoint_id.in_(drafts))).one()
    return ".".join(map(str, (*(field for job in jobs for field in job), *measured)))


def with_rows(session: Session, jobs: Sequence[Job]) -> list[Training]:
    """These jobs with the rows they read and created. The number of queries does not depend on the number of jobs."""
    checkpoints = session.scalars(select(Checkpoint).where(Checkpoint.job_id.in_([job.id for job in jobs])))
    drafts = {row.job_id: row for row in checkpoints}
    evaluations = _evaluations(session, [row.id for row in drafts.values()])
    bases = _by_id(session, Base, {job.request.get("base_id") for job in jobs})
    read = {job.id: dataset_ids(job.request) for job in jobs}
    sets = _by_id(session, Dataset, {row_id for ids in read.values() for row_id in ids})
    return [
        Training(
            job,
            bases.get(job.request.get("base_id")),
            [sets[row_id] for row_id in read[job.id] if row_id in sets],
            draft := drafts.get(job.id),
            evaluations.get(draft.id, []) if draft else [],
        )
        for job in jobs
    ]


def dataset_ids(request: Mapping[str, Any] | None) -> list[str]:
    fields = request or {}
    return list(dict.fromkeys(filter(None, [fields.get("dataset_id"), *(fields.get("more_dataset_ids") or [])])))


def _evaluations(session: Session, drafts: list[str]) -> dict[str, list[Evaluation]]:
    query = select(Evaluation).where(*MEASURED, Evaluation.checkpoint_id.in_(drafts))
    by_draft: dict[str, list[Evaluation]] = {}
    for row in session.scalars(query.order_by(Evaluation.created_at.desc(), Evaluation.id)):
        by_draft.setdefault(row.checkpoint_id or "", []).append(row)
    return by_draft


def _by_id(session: Session, table: type[Table], ids: set[Any]) -> dict[str, Any]:
    query = select(table).where(table.id.in_(ids))  # type: ignore[attr-defined]
    return {row.id: row for row in session.scalars(query)} if ids else {}
