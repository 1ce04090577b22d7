"""A worker process: `python -m workers.supervise.worker gpu` (one job at a time) or `io` (several).

Its thread pool keeps it responsive while a job runs. On SIGTERM or Ctrl-C it interrupts its jobs first.
"""

import argparse
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from celery.signals import setup_logging, worker_ready, worker_shutting_down

from speculoos import gpus, logs, machine, resources
from speculoos.private import set_private_umask
from speculoos.settings import Settings, load
from tracking import processes
from tracking.workload import QUEUES
from workers.celery_app import app
from workers.supervise import attempt
from workers.supervise.reconcile import recover

CONCURRENCY = {"gpu": 1, "io": 4}
QUIET = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True}


def main() -> int:
    """Serve one queue until a signal; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m workers.supervise.worker", description="Serve one queue of jobs.")
    parser.add_argument("queue", choices=QUEUES)
    parser.add_argument("--concurrency", type=int, help="jobs at once; default: gpu 1, io 4")
    arguments = parser.parse_args()
    queue, count = arguments.queue, arguments.concurrency or CONCURRENCY[arguments.queue]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until Celery installs its own handler
    set_private_umask()
    settings = load()
    settings.home.mkdir(parents=True, exist_ok=True)  # holds the machine id
    logs.configure_logging(settings, f"worker-{queue}")
    setup_logging.connect(lambda **_: None, weak=False)  # Celery then keeps our logging configuration
    worker_shutting_down.connect(lambda **_: attempt.stopping.set(), weak=False)  # jobs stop before the worker
    worker_ready.connect(lambda **_: recover(settings), weak=False)
    hostname = f"{queue}-{os.getpid()}@{machine.machine_key(settings.home)}"
    try:
        with processes.heartbeats_during(
            settings, f"worker-{queue}", lambda: worker_status(settings, queue), queue=queue, concurrency=count
        ):
            app.Worker(
                pool_cls="threads", concurrency=count, queues=[queue], hostname=hostname, loglevel="INFO", **QUIET
            ).start()
    finally:
        attempt.stopping.set()
    return 0


def worker_status(settings: Settings, queue: str) -> dict[str, Any]:
    """Status of this worker for the pages: why it starts no jobs, if disk space or memory is short; the GPUs."""
    shortage = resources.resource_monitor(settings).shortage()
    paused = {"paused": shortage.note + "."} if shortage else {}
    return {**paused, "gpus": [asdict(gpu) for gpu in gpus.measure()]} if queue == "gpu" else paused


if __name__ == "__main__":
    sys.exit(main())
