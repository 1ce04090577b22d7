"""Experiments people make: named groups of jobs. A job is in one experiment at most, and what it made goes with it."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, case, func, select, update
from sqlalchemy.orm import Session

from speculoos.errors import Conflict, NotFound
from tracking import listing, queries, trainings
from tracking.names import insist
from tracking.states import FINISHED
from tracking.tables import Checkpoint, Dataset, Experiment, Job

MADE = (Dataset, Checkpoint)
"""Tables whose rows know their experiment too."""
NAMES = 50


def query() -> Select[Any]:
    """All experiments, newest first."""
    return select(Experiment).order_by(Experiment.created_at.desc(), Experiment.id)


def names(session: Session) -> list[str]:
    """What the newest ones are called."""
    return list(session.scalars(query().with_only_columns(Experiment.name).limit(NAMES)))


def create(session: Session, name: str) -> Experiment:
    """A new one. Raises BadInput, or Conflict when there is one of this name."""
    made = Experiment(name=insist(session, Experiment, name))
    session.add(made)
    session.flush()
    return made


def add(session: Session, job_id: str, name: str) -> None:
    """Put a job into the experiment of this name, which is made if there is none; out of the one it was in."""
    _move(session, _whole(session, job_id), queries.ensure_experiment(session, name.strip()).id)


def remove(session: Session, job_id: str) -> None:
    """Take a job out of its experiment; the job stays."""
    _move(session, _whole(session, job_id), None)


def jobs_of(session: Session, experiment_id: str) -> list[Job]:
    """First to last."""
    own = (Job.experiment_id == experiment_id, Job.parent_id.is_(None))
    return list(session.scalars(select(Job).where(*own).order_by(Job.created_at, Job.id)))


def counts(session: Session, ids: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """id → how many jobs it has, how many of them are trainings, how many have not ended."""
    training = func.sum(case((Job.kind == trainings.KIND, 1), else_=0))
    going = func.sum(case((Job.state.not_in(FINISHED), 1), else_=0))
    own = (Job.experiment_id.in_(ids), Job.parent_id.is_(None))
    rows = session.execute(
        select(Job.experiment_id, func.count(), training, going).where(*own).group_by(Job.experiment_id)
    )
    return {row_id: (count, int(trained), int(active)) for row_id, count, trained, active in rows}


def signature(session: Session) -> str:
    """A short text that changes when an experiment or any job does."""
    told = session.execute(select(Experiment.id, Experiment.name, Experiment.note).order_by(Experiment.id)).all()
    return f"{listing.signature(session)}.{hash(tuple(map(tuple, told)))}"


def row_signature(session: Session, experiment_id: str) -> str:
    """The same of one experiment, its jobs and what was measured of their drafts."""
    told = session.execute(select(Experiment.name, Experiment.note).where(Experiment.id == experiment_id)).one_or_none()
    ids = session.scalars(select(Job.id).where(Job.experiment_id == experiment_id, Job.parent_id.is_(None))).all()
    return f"{hash(tuple(told or ()))}.{trainings.signature(session, ids)}"


def _whole(session: Session, job_id: str) -> Job:
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound("This job is gone; it was deleted, or the address is wrong.")
    if job.parent_id:
        raise Conflict(f"“{job.name}” is a part of another job; choose that one.")
    return job


def _move(session: Session, job: Job, experiment_id: str | None) -> None:
    for table in MADE:
        session.execute(update(table).where(table.job_id == job.id).values(experiment_id=experiment_id))
    job.experiment_id = experiment_id
    job.version = Job.version + 1
