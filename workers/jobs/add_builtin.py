"""Adds a built-in set as a data set, once. No torch."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from speculoos.errors import Conflict
from speculoos.settings import Settings
from tracking import db
from tracking.names import find_named
from tracking.tables import Dataset, Job
from workers.jobs.builtin import built_in_of, find_built_in
from workers.jobs.submit import submit


@dataclass(frozen=True)
class Added:
    """The data set's id, and the job that imports it; None if it was added before."""

    dataset_id: str
    job: Job | None = None


def added_sets(session: Session) -> dict[str, str]:
    """{name: data set's id} of the built-in sets that were added, under any name, and did not fail."""
    columns = select(Dataset.id, Dataset.config).where(Dataset.kind == "prompts", Dataset.state != "failed")
    added: dict[str, str] = {}
    for row_id, config in session.execute(columns.order_by(Dataset.created_at.desc())):
        if name := built_in_of(config):
            added[name] = row_id
    return added


def add(name: str, *, experiment: str | None = None, user: str = "", settings: Settings) -> Added:
    """Add built-in set `name`, or return the data set if it was added before. Raises BadInput for an unknown name."""
    built_in = find_built_in(name)
    with db.reading(settings) as session:
        existing, same_name = added_sets(session).get(name), find_named(session, Dataset, name)
    if existing:
        return Added(existing)
    new_name = "" if same_name else name
    try:
        job = submit(built_in.request(), name=new_name, like=name, experiment=experiment, user=user, settings=settings)
    except Conflict:  # another user added it at the same time
        with db.reading(settings) as session:
            if existing := added_sets(session).get(name):
                return Added(existing)
        raise
    return Added(job.request["dataset_id"], job)
