"""The Celery application. Messages contain only job ids; the database holds the jobs and their states.

Messages are acknowledged when the task starts and fetched only when a thread is free. No job is lost: after a worker
dies, the reconciler sends a new message. With `acks_late`, Celery 5.7 workers stopped for good after a broker restart.
"""

import functools

from celery import Celery

from speculoos.settings import load

QUEUES = ("gpu", "io")
TASK = "workers.run_job"
VISIBILITY_SECONDS = 12 * 3600
"""Time until the broker redelivers an unacknowledged message; longer than most jobs run."""
CONNECT_SECONDS = 2


@functools.cache
def make_app(redis_url: str) -> Celery:
    """The application for a broker. Does not connect."""
    app = Celery("speculoos", broker=redis_url, include=["workers.supervise.tasks"], set_as_current=False)
    app.conf.update(
        task_acks_late=False,
        worker_disable_prefetch=True,
        task_ignore_result=True,
        task_default_queue="gpu",
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=True,  # unacknowledged tasks only: none here
        task_serializer="json",
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=CONNECT_SECONDS,
        visibility_timeout=VISIBILITY_SECONDS,
        result_backend_transport_options={"visibility_timeout": VISIBILITY_SECONDS},
        broker_transport_options={
            "visibility_timeout": VISIBILITY_SECONDS,
            "socket_connect_timeout": CONNECT_SECONDS,
            "socket_timeout": 30,
            "health_check_interval": 25,
        },
    )
    return app


app = make_app(load().redis_url)
