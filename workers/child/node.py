"""One more machine for trainings on several: `python -m workers.child.node HOST:PORT`, until a signal.

It waits for the training whose first node serves HOST:PORT, runs this machine's share, and begins anew with the next
training or attempt. The processes run the job's first node; only the leases of GPUs are written from here.
"""

import logging
import os
import sys
import time
from functools import partial

from models.base import lease_name
from speculoos import logs
from speculoos.errors import SpeculoosError, Unavailable
from speculoos.private import set_private_umask
from speculoos.settings import Settings, load
from training.processes import join_training
from workers.child.context import JobContext
from workers.child.work.measure import take_devices
from workers.timing import job_timing

log = logging.getLogger(__name__)
PAUSE_SECONDS = 2.0


def main(endpoint: str) -> None:
    """Join one training, then replace this process by a new one, which has no CUDA context."""
    environment = dict(os.environ)  # a training changes it
    set_private_umask()
    settings = load()
    logs.configure_logging(settings, "train-node")
    log.info("Waiting for a training at %s.", endpoint)
    while True:
        try:
            join_training(endpoint, partial(take_gpus, settings))
            log.info("The training at %s has ended.", endpoint)
            break
        except Unavailable:
            time.sleep(PAUSE_SECONDS)
        except SpeculoosError as error:
            log.warning("%s", error)
            break
        except Exception:
            log.exception("The training at %s failed on this node.", endpoint)
            break
    time.sleep(PAUSE_SECONDS)
    os.execve(sys.executable, [sys.executable, "-m", "workers.child.node", endpoint], environment)


def take_gpus(settings: Settings, processes: int, job: tuple[str, int]) -> list[str]:
    """Lease one GPU of this machine for each process, for an attempt of a job; it releases them at its end. Returns
    UUIDs; none if the settings choose the CPU."""
    devices = take_devices(JobContext(settings, *job, job_timing()), processes=processes)
    return [lease_name(device) for device in devices if device.type == "cuda"]


if __name__ == "__main__":
    main(sys.argv[1])
