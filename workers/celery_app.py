"""The Celery application: a doorbell that carries job ids. What a job is and whether it runs is in the database.

A message is acknowledged when its task begins, and none is fetched before a thread is free. Nothing is lost with it:
what a dead worker held is in its row, and the reconciler rings again. (Held until the end of a long job, as
`acks_late` does, messages made Celery 5.7 workers stop for good when the broker was restarted.)
"""

import functools

from celery import Celery

from speculoos.settings import load

QUEUES = ("gpu", "io")
TASK = "workers.run_job"
VISIBILITY_SECONDS = 12 * 3600
"""How long the broker waits before it delivers an unacknowledged message again; longer than most jobs run."""
CONNECT_SECONDS = 2


@functools.cache
def make_app(redis_url: str) -> Celery:
    """The application on this broker. Makes no connection."""
    app = Celery("speculoos", broker=redis_url, include=["workers.supervise.tasks"], set_as_current=False)
    app.conf.update(
        task_acks_late=False,
        worker_disable_prefetch=True,
        task_ignore_result=True,
        task_default_queue="gpu",
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=True,  # only those not acknowledged: none of ours
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
