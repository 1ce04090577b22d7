"""The Celery application and its messages, which contain only job ids; the database holds the jobs and their states.

Messages are acknowledged when the task starts and fetched only when a thread is free. No job is lost: after a worker
dies, the reconciler sends a new message. With `acks_late`, Celery 5.7 workers stopped for good after a broker restart.
"""

import functools
import logging

from celery import Celery
from kombu.exceptions import OperationalError

from speculoos.settings import Settings, load
from tracking import db, jobs
from tracking.tables import Job

log = logging.getLogger(__name__)

TASK = "workers.run_job"
VISIBILITY_SECONDS = 12 * 3600  # time until the broker redelivers an unacknowledged message; longer than most jobs run
CONNECT_SECONDS = 2


@functools.cache
def make_app(redis_url: str) -> Celery:
    """The application for a broker. Does not connect."""
    app = Celery("speculoos", broker=redis_url, include=["workers.supervise.attempt"], set_as_current=False)
    app.conf.update(
        worker_disable_prefetch=True,
        task_ignore_result=True,
        task_default_queue="gpu",
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=True,  # unacknowledged tasks only: none here
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=CONNECT_SECONDS,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_SECONDS,
            "socket_connect_timeout": CONNECT_SECONDS,
            "socket_timeout": 30,
            "health_check_interval": 25,
        },
    )
    return app


app = make_app(load().redis_url)


def publish(settings: Settings, waiting: list[Job]) -> int:
    """Send each job's id and record the time; returns the number sent. The reconciler sends the others later."""
    if not waiting:
        return 0
    app = make_app(settings.redis_url)
    sent = 0
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=2)
            with app.amqp.Producer(connection, auto_declare=False) as producer:
                for job in waiting:
                    options = {"queue": job.queue, "producer": producer, "retry": False, "ignore_result": True}
                    app.send_task(TASK, args=[job.id], **options)
                    with db.writing(settings) as session:
                        jobs.mark_published(session, job.id)
                    sent += 1
    except (OperationalError, OSError) as error:
        log.warning("The broker cannot be reached (%s); jobs stay queued and are sent later.", type(error).__name__)
    return sent


def publish_ready(settings: Settings) -> int:
    """Send every job that may start now and was not sent yet."""
    with db.reading(settings) as session:
        waiting = [job for job in jobs.publishable(session) if not job.published_at]
    return publish(settings, waiting)
