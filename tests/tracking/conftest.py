"""Fixtures that create jobs and read them again."""

from collections.abc import Callable
from typing import Any

import pytest

from speculoos.settings import Settings
from tracking import db, jobs
from tracking.tables import Job


@pytest.fixture
def make_job(database: Settings) -> Callable[..., Job]:
    """Creates a committed job; keyword arguments set its columns afterwards."""

    def make(name: str = "work", after: Job | None = None, **columns: Any) -> Job:
        with db.writing(database) as session:
            queue = columns.pop("queue", "gpu")
            after_id = after.id if after else None
            job = jobs.create(session, kind="train", queue=queue, request={}, name=name, after_id=after_id)
            for column, value in columns.items():
                setattr(job, column, value)
        return job

    return make


@pytest.fixture
def read(database: Settings) -> Callable[[Job], Job]:
    """Reads the stored state of a job."""

    def read_job(job: Job) -> Job:
        with db.reading(database) as session:
            return jobs.get(session, job.id)

    return read_job
