"""Whether a measured generation has its device to itself, by the lease row of the device of this machine. No torch."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from speculoos import machine
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import leases
from tracking.db import reading, writing

log = logging.getLogger(__name__)
SECONDS = 30.0
RENEW_EVERY = 10.0
OTHER = "another program"


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
    place = machine.device(device, settings.home)
    with reading(settings) as db:
        holder = leases.holder(db, place)
        return leases.holder_name(db, place) if holder.startswith("job:") else ""


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
        _release(settings, holder)


def _acquire(settings: Settings, device: str, holder: str, sharing: Sharing) -> bool:
    place = machine.device(device, settings.home)
    with writing(settings) as db:
        taken = leases.acquire(db, place, holder, SECONDS)
        if not taken:
            sharing.add(leases.holder_name(db, place))
        return taken


def _release(settings: Settings, holder: str) -> None:
    """Give the lease back; where the database is away it runs out by itself, and the answer is not lost for it."""
    try:
        with writing(settings) as db:
            leases.release(db, holder)
    except SpeculoosError as error:
        log.warning("The lease of %s runs out by itself: %s", holder, error)


def _renew(settings: Settings, device: str, holder: str, sharing: Sharing, done: threading.Event) -> None:
    while not done.wait(RENEW_EVERY):
        try:
            with writing(settings) as db:
                leases.renew(db, machine.device(device, settings.home), holder, SECONDS)
        except BaseException as error:  # whatever it is, the measurement may no longer be alone
            log.warning("The lease of %s was not renewed: %s", holder, error)
            sharing.add(_other(settings, device))
            return


def _other(settings: Settings, device: str) -> str:
    try:
        return job_on(settings, device) or OTHER
    except SpeculoosError:
        return OTHER
