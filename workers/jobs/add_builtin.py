"""Adding a built-in set as a data set, once. No torch."""

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
    """The data set's id, and the job that makes it where nobody had asked for it before."""

    dataset_id: str
    job: Job | None = None


def added_sets(session: Session) -> dict[str, str]:
    """{name: data set's id} of the built-in sets that were added, under whichever name, and did not fail."""
    columns = select(Dataset.id, Dataset.config).where(Dataset.kind == "prompts", Dataset.state != "failed")
    found: dict[str, str] = {}
    for row_id, config in session.execute(columns.order_by(Dataset.created_at.desc())):
        if name := built_in_of(config):
            found[name] = row_id
    return found


def add(name: str, *, experiment: str | None = None, user: str = "", settings: Settings) -> Added:
    """Make a data set of built-in set `name`, once: where it is here, or on its way, that one is named. Raises BadInput
    for an unknown name."""
    built_in = find_built_in(name)
    with db.reading(settings) as session:
        known, other = added_sets(session).get(name), find_named(session, Dataset, name)
    if known:
        return Added(known)
    common = {"experiment": experiment, "user": user, "settings": settings}
    try:
        job = submit(built_in.request(), name="" if other else name, like=name, **common)
    except Conflict:  # somebody was faster by a moment
        with db.reading(settings) as session:
            if known := added_sets(session).get(name):
                return Added(known)
        raise
    return Added(job.request["dataset_id"], job)
