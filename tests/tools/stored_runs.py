"""Queries of stored runs."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tracking.tables import Run, RunStep


def all_runs(session: Session) -> list[Run]:
    """All runs, newest first."""
    return list(session.scalars(select(Run).order_by(Run.created_at.desc())))


def step_count(session: Session, run_id: str) -> int:
    """Number of stored steps of a run."""
    return session.scalar(select(func.count()).select_from(RunStep).where(RunStep.run_id == run_id)) or 0
