"""The only Celery task: a message says that a job may be ready; its row decides whether it runs."""

import logging

from speculoos import logs
from speculoos.errors import SpeculoosError
from speculoos.settings import load
from workers.celery_app import TASK, app
from workers.supervise.attempt import supervise_job
from workers.timing import job_timing

log = logging.getLogger(__name__)


@app.task(name=TASK)
def run_job(job_id: str) -> None:
    """Supervise a job if it can be claimed; a second or late message for it does nothing."""
    try:
        with logs.with_log_context(job=str(job_id)):
            supervise_job(load(), str(job_id), job_timing())
    except SpeculoosError as error:  # the row is unchanged; the reconciler sends a new message
        log.warning("Job %s was not started: %s", job_id, error)
