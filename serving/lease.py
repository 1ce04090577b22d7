"""Whether a measured generation has its device to itself, by the device's lease row. No torch."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import leases
from tracking.db import reading, session

log = logging.getLogger(__name__)
SECONDS = 30.0
RENEW_EVERY = 10.0


@dataclass
class Sharing:
    """`names` of those who held the device at some time of the measurement; empty when nobody did."""

    names: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        if name and name not in self.names:
            self.names.append(name)

    @property
    def shared_with(self) -> str:
        return ", ".join(self.names)


def device_name(device: str) -> str:
    """The name leases know a torch device by: `cuda` is `cuda:0`."""
    return "cuda:0" if device == "cuda" else device


def job_on(settings: Settings, device: str) -> str:
    """Name of the job that holds the device, or ""."""
    with reading(settings) as db:
        holder = leases.holder(db, device)
        return leases.holder_name(db, device) if holder.startswith("job:") else ""


@contextmanager
def watched(settings: Settings, device: str) -> Iterator[Sharing]:
    """Note which job held the device at the beginning or the end of the block; takes no lease."""
    sharing = Sharing()
    sharing.add(job_on(settings, device))
    yield sharing
    sharing.add(job_on(settings, device))


@contextmanager
def alone(settings: Settings, device: str, run_id: str) -> Iterator[Sharing]:
    """Hold the device's lease as `run:<id>` during the block. Where a job has it the block runs all the same, and
    the job is named in what is yielded."""
    holder, sharing = f"run:{run_id}", Sharing()
    if not _acquire(settings, device, holder, sharing):
        with watched(settings, device) as watching:
            yield watching
        for name in sharing.names:
            watching.add(name)
        return
    done = threading.Event()
    renewing = threading.Thread(target=_renew, args=(settings, device, holder, sharing, done), daemon=True)
    renewing.start()
    try:
        yield sharing
    finally:
        done.set()
        renewing.join()
        with session(settings) as db:
            leases.release(db, holder)


def _acquire(settings: Settings, device: str, holder: str, sharing: Sharing) -> bool:
    with session(settings) as db:
        taken = leases.acquire(db, device, holder, SECONDS)
        if not taken:
            sharing.add(leases.holder_name(db, device))
        return taken


def _renew(settings: Settings, device: str, holder: str, sharing: Sharing, done: threading.Event) -> None:
    while not done.wait(RENEW_EVERY):
        try:
            with session(settings) as db:
                leases.renew(db, device, holder, SECONDS)
        except SpeculoosError as error:
            log.warning("%s", error)
            sharing.add(job_on(settings, device) or "another program")
            return
