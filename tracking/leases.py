"""Device leases: exclusive use of a device for measurements. `models.base.lease_name` names a device of this machine,
`speculoos.machine.device_key` makes it the key of its lease, so that `cpu` on two machines is two devices.

A holder is `job:<id>` or `run:<id>`. A running job or run keeps its lease regardless of the clock; other leases expire
unless renewed.

A job that waits reserves the devices it could use, unless an older job (by its position in the queue) has done so:
later jobs and runs do not take them. So a job for several GPUs gets them although jobs for one GPU keep arriving.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

from sqlalchemy import ColumnElement, and_, exists, literal, or_, select, update
from sqlalchemy.orm import Session

from speculoos import machine
from speculoos.errors import Fenced, SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading, writing
from tracking.reports import UPSERT
from tracking.states import JobState
from tracking.tables import DeviceLease, Job, Run, now

log = logging.getLogger(__name__)
SECONDS, RENEW_EVERY = 30.0, 10.0
UNKNOWN_HOLDER = "another program"
MAX_DURATION = timedelta(hours=1)
"""Maximum duration of a lease. One that expires later was acquired before the clock was set back."""


def acquire(session: Session, device: str, holder: str, seconds: float, attempt: int = 0) -> bool:
    """Acquire a free or expired lease, or keep one's own. False if another holder has it or an older job waits for
    it."""
    _insert_missing(session, [device])
    values = {"holder": holder, "attempt": attempt, "until": now() + timedelta(seconds=seconds)}
    return _update(session, DeviceLease.device == device, _available(session, holder), **values)


def acquire_some(
    session: Session, devices: Sequence[str], count: int, holder: str, seconds: float, attempt: int = 0
) -> list[str]:
    """Acquire the leases of the first `count` available ones of `devices`, all or none; returns these devices. If there
    are not enough, reserves `devices` for the job `holder` and returns []."""
    _insert_missing(session, devices)
    wanted = DeviceLease.device.in_(devices)
    _lock(session, wanted)
    available = set(session.scalars(select(DeviceLease.device).where(wanted, _available(session, holder))))
    chosen = [device for device in devices if device in available][:count]
    if len(chosen) < count:
        _update(session, wanted, ~_reserved(session, holder), reserved_for=holder)
        return []
    values = {"holder": holder, "attempt": attempt, "until": now() + timedelta(seconds=seconds)}
    _update(session, DeviceLease.device.in_(chosen), **values)
    _update(session, DeviceLease.reserved_for == holder, reserved_for="")
    return chosen


def renew(session: Session, device: str, holder: str, seconds: float, attempt: int = 0) -> None:
    """Extend one's lease. Raises Fenced if another holder has acquired it meanwhile."""
    conditions = (DeviceLease.device == device, DeviceLease.holder == holder, DeviceLease.attempt == attempt)
    if not _update(session, *conditions, until=now() + timedelta(seconds=seconds)):
        raise Fenced(f"{holder} no longer holds {device}.")


def reserve_memory(session: Session, device: str, holder: str, nbytes: int, attempt: int = 0) -> None:
    """Store the bytes of a GPU that the inference server must not use while `holder` has its lease."""
    conditions = (DeviceLease.device == device, DeviceLease.holder == holder, DeviceLease.attempt == attempt)
    _update(session, *conditions, memory=nbytes)


def release(session: Session, holder: str, attempt: int | None = None) -> None:
    """Release all reservations and leases of `holder`, or only the leases of one attempt. No error if there are
    none."""
    _lock(session, or_(DeviceLease.holder == holder, DeviceLease.reserved_for == holder))
    _update(session, DeviceLease.reserved_for == holder, reserved_for="")
    conditions = [DeviceLease.holder == holder]
    if attempt is not None:
        conditions.append(DeviceLease.attempt == attempt)
    _update(session, *conditions, holder="", until=None, attempt=0, memory=0)


def holder(session: Session, device: str) -> str:
    """`job:<id>`, `run:<id>`, or "" when the device is free."""
    return session.scalar(select(DeviceLease.holder).where(DeviceLease.device == device, _held())) or ""


def holder_name(session: Session, device: str) -> str:
    """The holder for display: a job's name, `a measurement`, or "" when the device is free."""
    name = holder(session, device)
    if name.startswith("job:"):
        return session.scalar(select(Job.name).where(Job.id == name[4:])) or name
    return "a measurement" if name else ""


def older_waiting(session: Session, devices: Sequence[str], holder: str) -> list[str]:
    """Names of the jobs older than `holder` for which some of the devices are reserved."""
    reserved = select(DeviceLease.reserved_for).where(DeviceLease.device.in_(devices), _reserved(session, holder))
    ids = [first.removeprefix("job:") for first in session.scalars(reserved)]
    return list(session.scalars(select(Job.name).where(Job.id.in_(ids)).order_by(Job.queued_at)))


def _available(session: Session, holder: str) -> ColumnElement[bool]:
    """`holder` may acquire the lease, or has it."""
    return or_(DeviceLease.holder == holder, and_(~_held(), ~_reserved(session, holder)))


def _reserved(session: Session, holder: str) -> ColumnElement[bool]:
    """The device is reserved for a job that is older than `holder`; for any job if `holder` is not a job."""
    reserved = [literal("job:") + Job.id == DeviceLease.reserved_for, Job.state == JobState.RUNNING]
    if own_job := session.get(Job, holder.removeprefix("job:")):
        same_time = and_(Job.queued_at == own_job.queued_at, Job.id < own_job.id)
        reserved.append(or_(Job.queued_at < own_job.queued_at, same_time))
    return exists().where(*reserved)


def _held() -> ColumnElement[bool]:
    """The holder's own row is RUNNING, or the lease has not expired."""
    job = exists().where(
        literal("job:") + Job.id == DeviceLease.holder,
        Job.state == JobState.RUNNING,
        Job.attempt == DeviceLease.attempt,
    )
    run = exists().where(literal("run:") + Run.id == DeviceLease.holder, Run.state == "RUNNING")
    valid = DeviceLease.until.between(now(), now() + MAX_DURATION)
    return and_(DeviceLease.until.is_not(None), or_(job, run, valid))


def _insert_missing(session: Session, devices: Sequence[str]) -> None:
    insert = UPSERT[session.get_bind().dialect.name]
    for device in sorted(devices):
        session.execute(insert(DeviceLease).values(device=device).on_conflict_do_nothing())


def _lock(session: Session, condition: ColumnElement[bool]) -> None:
    """Lock rows in a fixed order, so that transactions never wait for each other in a circle."""
    session.execute(select(DeviceLease.device).where(condition).order_by(DeviceLease.device).with_for_update()).all()


def _update(session: Session, *conditions: object, **values: object) -> bool:
    statement = update(DeviceLease).where(*conditions).values(**values)
    return session.execute(statement.execution_options(synchronize_session=False)).rowcount > 0


class DeviceSharing:
    """The other holders of a device during a measurement."""

    shared_with = ""

    def add(self, name: str) -> None:
        if name and name not in self.shared_with.split(", "):
            self.shared_with = ", ".join(filter(None, (self.shared_with, name)))


def job_on(settings: Settings, device: str) -> str:
    """Name of the job that holds the device, or ""."""
    name = machine.device_key(device, settings.home)
    with reading(settings) as session:
        return holder_name(session, name) if holder(session, name).startswith("job:") else ""


def reserved_memory(settings: Settings, device: str) -> tuple[str, int]:
    """Name of the job that holds the device, and the bytes that it has reserved; ("", 0) without a job."""
    if not (job := job_on(settings, device)):
        return "", 0
    with reading(settings) as session:
        return job, session.get_one(DeviceLease, machine.device_key(device, settings.home)).memory


@contextmanager
def observed_device(settings: Settings, device: str) -> Iterator[DeviceSharing]:
    """Record the job that holds the device at the start and at the end of the block. Acquires no lease."""
    sharing = DeviceSharing()
    sharing.add(job_on(settings, device))
    yield sharing
    sharing.add(job_on(settings, device))


@contextmanager
def exclusive_device(settings: Settings, device: str, run_id: str) -> Iterator[DeviceSharing]:
    """Hold the device's lease as `run:<id>`; if a job has it, the block runs without it and the job is named."""
    device_key, run_holder = machine.device_key(device, settings.home), f"run:{run_id}"
    with writing(settings) as session:
        acquired = acquire(session, device_key, run_holder, SECONDS)
        other_holder = "" if acquired else holder_name(session, device_key)
    if not acquired:
        with observed_device(settings, device) as sharing:
            yield sharing
        sharing.add(other_holder)
        return
    sharing, done = DeviceSharing(), threading.Event()
    renewing = threading.Thread(target=_renew, args=(settings, device, run_holder, sharing, done), daemon=True)
    renewing.start()
    try:
        yield sharing
    finally:
        done.set()
        renewing.join()
        try:
            with writing(settings) as session:
                release(session, run_holder)
        except SpeculoosError as error:  # the generation must not fail
            log.warning("The lease of %s was not released and will expire: %s", run_holder, error)


def _renew(settings: Settings, device: str, holder: str, sharing: DeviceSharing, done: threading.Event) -> None:
    while not done.wait(RENEW_EVERY):
        try:
            with writing(settings) as session:
                renew(session, machine.device_key(device, settings.home), holder, SECONDS)
        except BaseException as error:  # after any error the device may be shared
            log.warning("The lease of %s was not renewed: %s", holder, error)
            job = ""
            with suppress(SpeculoosError):
                job = job_on(settings, device)
            sharing.add(job or UNKNOWN_HOLDER)
            return
