"""Exclusive use of a device by a measured generation, by the lease row of the device. Does not import torch."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    yielded DeviceSharing names the job."""
    name, holder = machine.device_key(device, settings.home), f"run:{run_id}"
    with writing(settings) as session:
        acquired = leases.acquire(session, name, holder, SECONDS)
        other = "" if acquired else leases.holder_name(session, name)
    if not acquired:
        with observed_device(settings, device) as sharing:
            yield sharing
        sharing.add(other)
        return
    sharing, done = DeviceSharing(), threading.Event()
    renewing = threading.Thread(target=_renew, args=(settings, device, holder, sharing, done), daemon=True)
    renewing.start()
    try:
        yield sharing
    finally:
        done.set()
        renewing.join()
        try:
            with writing(settings) as session:
                leases.release(session, holder)
        except SpeculoosError as error:  # the generation must not fail
            log.warning("The lease of %s was not released and will expire: %s", holder, error)


def _renew(settings: Settings, device: str, holder: str, sharing: DeviceSharing, done: threading.Event) -> None:
    while not done.wait(RENEW_EVERY):
        try:
            with writing(settings) as session:
                leases.renew(session, machine.device_key(device, settings.home), holder, SECONDS)
        except BaseException as error:  # after any error the device may be shared
            log.warning("The lease of %s was not renewed: %s", holder, error)
            job = ""
            with suppress(SpeculoosError):
                job = job_on(settings, device)
            sharing.add(job or UNKNOWN_HOLDER)
            return
