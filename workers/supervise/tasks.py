"""The one Celery task: a message says that a job may be ready; the row decides."""

import logging

from speculoos import logs
from speculoos.errors import SpeculoosError
from speculoos.settings import load
from workers.celery_app import TASK, app
from workers.supervise.attempt import run
from workers.timing import timing

log = logging.getLogger(__name__)


@app.task(name=TASK)
def run_job(job_id: str) -> None:
    """Supervise a job if it can be claimed; a second or late message for it does nothing."""
    try:
        with logs.about(job=str(job_id)):
            run(load(), str(job_id), timing())
    except SpeculoosError as error:  # the row stays as it is, and the reconciler rings again
        log.warning("Job %s was not taken: %s", job_id, error)
