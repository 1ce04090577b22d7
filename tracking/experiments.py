"""Experiments: named groups of jobs. A job is in at most one experiment, together with its outputs."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, case, func, select, update
from sqlalchemy.orm import Session

from speculoos.errors import Conflict, NotFound
from tracking import listing, queries, trainings
from tracking.states import FINISHED
from tracking.tables import Checkpoint, Dataset, Experiment, Job

NAMES = 50


def query() -> Select[Any]:
    return select(Experiment).order_by(Experiment.created_at.desc(), Experiment.id)


def names(session: Session) -> list[str]:
    """Names of the newest experiments, at most NAMES."""
    return list(session.scalars(query().with_only_columns(Experiment.name).limit(NAMES)))


def move_to_experiment(session: Session, job_id: str, name: str | None) -> None:
    """Move a job with its outputs to the experiment with this name, created if it does not exist, or to none (None).
    Raises NotFound, or Conflict if it is a shard."""
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound("This job does not exist: it was deleted, or the URL is wrong.")
    if job.parent_id:
        raise Conflict(f"“{job.name}” is a part of another job; choose that one.")
    experiment_id = None if name is None else queries.ensure_experiment(session, name.strip()).id
    for table in (Dataset, Checkpoint):
        session.execute(update(table).where(table.job_id == job.id).values(experiment_id=experiment_id))
    job.experiment_id = experiment_id
    job.version = Job.version + 1


def jobs_of(session: Session, experiment_id: str) -> list[Job]:
    """Jobs of an experiment, oldest first."""
    conditions = (Job.experiment_id == experiment_id, Job.parent_id.is_(None))
    return list(session.scalars(select(Job).where(*conditions).order_by(Job.created_at, Job.id)))


def counts(session: Session, ids: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """(number of jobs, number of trainings, number of unfinished jobs) by experiment id."""
    trained = func.sum(case((Job.kind == trainings.KIND, 1), else_=0))
    active = func.sum(case((Job.state.not_in(FINISHED), 1), else_=0))
    conditions = (Job.experiment_id.in_(ids), Job.parent_id.is_(None))
    query = select(Job.experiment_id, func.count(), trained, active).where(*conditions).group_by(Job.experiment_id)
    return {row_id: (count, int(trained), int(active)) for row_id, count, trained, active in session.execute(query)}


def signature(session: Session) -> str:
    """A short text that changes when an experiment or any job changes."""
    rows = session.execute(select(Experiment.id, Experiment.name, Experiment.note).order_by(Experiment.id)).all()
    return f"{listing.signature(session)}.{hash(tuple(map(tuple, rows)))}"


def row_signature(session: Session, experiment_id: str) -> str:
    """A short text that changes when an experiment, one of its jobs, or an evaluation of their drafts changes."""
    row = session.execute(select(Experiment.name, Experiment.note).where(Experiment.id == experiment_id)).one_or_none()
    ids = session.scalars(select(Job.id).where(Job.experiment_id == experiment_id, Job.parent_id.is_(None))).all()
    return f"{hash(tuple(row or ()))}.{trainings.signature(session, ids)}"
