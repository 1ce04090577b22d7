"""Exclusive use of a device by a measured generation, by the lease row of the device. Does not import torch."""

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
UNKNOWN_HOLDER = "another program"


@dataclass
class DeviceSharing:
    """`names` of the other holders of the device during the measurement."""

    names: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        if name and name not in self.names:
            self.names.append(name)

    @property
    def shared_with(self) -> str:
        return ", ".join(self.names)


def device_name(device: str) -> str:
    """The name of a torch device in leases: `cuda` becomes `cuda:0`."""
    return "cuda:0" if device == "cuda" else device


def job_on(settings: Settings, device: str) -> str:
    """Name of the job that holds the device, or ""."""
    name = machine.device_key(device, settings.home)
    with reading(settings) as session:
        holder = leases.holder(session, name)
        return leases.holder_name(session, name) if holder.startswith("job:") else ""


@contextmanager
def observed_device(settings: Settings, device: str) -> Iterator[DeviceSharing]:
    """Record the job that holds the device at the start and at the end of the block. Acquires no lease."""
    sharing = DeviceSharing()
    sharing.add(job_on(settings, device))
    yield sharing
    sharing.add(job_on(settings, device))


@contextmanager
def exclusive_device(settings: Settings, device: str, run_id: str) -> Iterator[DeviceSharing]:
    """Hold the device's lease as `run:<id>` during the block. If a job has it, the block runs without the lease and the
    yielded Sharing names the job."""
    holder, sharing = f"run:{run_id}", DeviceSharing()
    if not _acquire(settings, device, holder, sharing):
        with observed_device(settings, device) as watching:
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


def _acquire(settings: Settings, device: str, holder: str, sharing: DeviceSharing) -> bool:
    name = machine.device_key(device, settings.home)
    with writing(settings) as session:
        acquired = leases.acquire(session, name, holder, SECONDS)
        if not acquired:
            sharing.add(leases.holder_name(session, name))
        return acquired


def _release(settings: Settings, holder: str) -> None:
    """Release the lease. If the database is unavailable it expires instead, so that the generation does not fail."""
    try:
        with writing(settings) as session:
            leases.release(session, holder)
    except SpeculoosError as error:
        log.warning("The lease of %s was not released and will expire: %s", holder, error)


def _renew(settings: Settings, device: str, holder: str, sharing: DeviceSharing, done: threading.Event) -> None:
    while not done.wait(RENEW_EVERY):
        try:
            with writing(settings) as session:
                leases.renew(session, machine.device_key(device, settings.home), holder, SECONDS)
        except BaseException as error:  # after any error the device may be shared
            log.warning("The lease of %s was not renewed: %s", holder, error)
            sharing.add(_other_holder(settings, device))
            return


def _other_holder(settings: Settings, device: str) -> str:
    try:
        return job_on(settings, device) or UNKNOWN_HOLDER
    except SpeculoosError:
        return UNKNOWN_HOLDER
