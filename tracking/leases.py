"""Device leases: exclusive use of a device for measurements. `speculoos.machine.device_key` names the devices, so that
the same device name on two machines means two devices.

A holder is `job:<id>` or `run:<id>`. A running job or run keeps its lease regardless of the clock; other leases expire
unless renewed.
"""

from datetime import timedelta

from sqlalchemy import ColumnElement, and_, exists, literal, or_, select, update
from sqlalchemy.orm import Session

from speculoos.errors import Fenced
from tracking.reports import UPSERT
from tracking.states import JobState
from tracking.tables import DeviceLease, Job, Run, now

MAX_DURATION = timedelta(hours=1)
"""Maximum duration of a lease. One that expires later was acquired before the clock was set back."""


def acquire(session: Session, device: str, holder: str, seconds: float, attempt: int = 0) -> bool:
    """Acquire a free or expired lease, or keep one's own. False if another holder has it."""
    insert = UPSERT[session.get_bind().dialect.name]
    session.execute(insert(DeviceLease).values(device=device).on_conflict_do_nothing())
    free = or_(DeviceLease.holder.in_(["", holder]), ~_held())
    values = {"holder": holder, "attempt": attempt, "until": now() + timedelta(seconds=seconds)}
    return _update(session, DeviceLease.device == device, free, **values)


def renew(session: Session, device: str, holder: str, seconds: float, attempt: int = 0) -> None:
    """Extend one's lease. Raises Fenced if another holder has acquired it meanwhile."""
    own = (DeviceLease.device == device, DeviceLease.holder == holder, DeviceLease.attempt == attempt)
    if not _update(session, *own, until=now() + timedelta(seconds=seconds)):
        raise Fenced(f"{holder} no longer holds {device}.")


def release(session: Session, holder: str, attempt: int | None = None) -> None:
    """Release all leases of `holder`, or only those of one attempt. No error if there are none."""
    own = [DeviceLease.holder == holder]
    if attempt is not None:
        own.append(DeviceLease.attempt == attempt)
    _update(session, *own, holder="", until=None, attempt=0)


def holder(session: Session, device: str) -> str:
    """`job:<id>`, `run:<id>`, or "" when the device is free."""
    return session.scalar(select(DeviceLease.holder).where(DeviceLease.device == device, _held())) or ""


def holder_name(session: Session, device: str) -> str:
    """The holder for display: a job's name, `a measurement`, or "" when the device is free."""
    name = holder(session, device)
    if name.startswith("job:"):
        return session.scalar(select(Job.name).where(Job.id == name[4:])) or name
    return "a measurement" if name else ""


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


def _update(session: Session, *conditions: object, **values: object) -> bool:
    statement = update(DeviceLease).where(*conditions).values(**values)
    return session.execute(statement.execution_options(synchronize_session=False)).rowcount > 0
