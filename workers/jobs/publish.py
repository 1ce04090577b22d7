"""Sends the ids of jobs that may start to the broker. After a failure the reconciler sends them again."""

import logging

from kombu.exceptions import OperationalError

from speculoos.settings import Settings
from tracking import db, jobs
from tracking.tables import Job
from workers.celery_app import TASK, make_app

log = logging.getLogger(__name__)
SENDING = (OperationalError, OSError)


def publish(settings: Settings, waiting: list[Job]) -> int:
    """Send each job's id to its queue and record the time; returns the number sent before an error of the broker."""
    if not waiting:
        return 0
    app = make_app(settings.redis_url)
    sent = 0
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=2)
            with app.amqp.Producer(connection, auto_declare=False) as producer:
                for job in waiting:
                    _send(app, producer, settings, job)
                    sent += 1
    except SENDING as error:
        log.warning("The broker cannot be reached (%s); jobs stay queued and are sent later.", type(error).__name__)
    return sent


def publish_ready(settings: Settings) -> int:
    """Send every job that may start now and was not sent yet."""
    with db.reading(settings) as session:
        waiting = [job for job in jobs.publishable(session) if not job.published_at]
    return publish(settings, waiting)


def _send(app, producer, settings: Settings, job: Job) -> None:  # noqa: ANN001 (Celery has no types)
    app.send_task(TASK, args=[job.id], queue=job.queue, producer=producer, retry=False, ignore_result=True)
    with db.writing(settings) as session:
        jobs.mark_published(session, job.id)
