"""Device leases: who holds a device for work whose figures must not be shared. Devices have the names that
`speculoos.machine.device` gives them, so equal ones of two machines are two.

A holder is named `job:<id>` or `run:<id>`. A job or run that goes on keeps what it holds, whatever the clock says;
other leases that are not renewed run out by themselves.
"""

from datetime import timedelta

from sqlalchemy import ColumnElement, and_, exists, literal, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from speculoos.errors import Fenced
from tracking.states import JobState
from tracking.tables import DeviceLease, Job, Run, now

LONGEST = timedelta(hours=1)
"""Nobody asks for more: a lease that lasts longer was taken before the clock was put back."""


def acquire(session: Session, device: str, holder: str, seconds: float, attempt: int = 0) -> bool:
    """Take a free (or run out) device, or keep one's own; False when another holder has it."""
    _ensure_row(session, device)
    free = or_(DeviceLease.holder.in_(["", holder]), ~_held())
    values = {"holder": holder, "attempt": attempt, "until": now() + timedelta(seconds=seconds)}
    return _update(session, DeviceLease.device == device, free, **values)


def renew(session: Session, device: str, holder: str, seconds: float, attempt: int = 0) -> None:
    """Keep a device one holds. Raises Fenced when another holder has taken it meanwhile."""
    own = (DeviceLease.device == device, DeviceLease.holder == holder, DeviceLease.attempt == attempt)
    if not _update(session, *own, until=now() + timedelta(seconds=seconds)):
        raise Fenced(f"{holder} no longer holds {device}.")


def release(session: Session, holder: str, attempt: int | None = None) -> None:
    """Give back whatever `holder` has (only that attempt's, when given); no error when it has nothing."""
    own = [DeviceLease.holder == holder]
    if attempt is not None:
        own.append(DeviceLease.attempt == attempt)
    _update(session, *own, holder="", until=None, attempt=0)


def holder(session: Session, device: str) -> str:
    """`job:<id>`, `run:<id>`, or "" when the device is free."""
    return session.scalar(select(DeviceLease.holder).where(DeviceLease.device == device, _held())) or ""


def holder_name(session: Session, device: str) -> str:
    """The holder in words for people: a job's name, `a measurement`, or "" when the device is free."""
    name = holder(session, device)
    if name.startswith("job:"):
        return session.scalar(select(Job.name).where(Job.id == name[4:])) or name
    return "a measurement" if name else ""


def _held() -> ColumnElement[bool]:
    """The holder is at work by its own row, or its lease has not run out."""
    job = exists().where(
        literal("job:") + Job.id == DeviceLease.holder,
        Job.state == JobState.RUNNING,
        Job.attempt == DeviceLease.attempt,
    )
    run = exists().where(literal("run:") + Run.id == DeviceLease.holder, Run.state == "RUNNING")
    lasts = DeviceLease.until.between(now(), now() + LONGEST)
    return and_(DeviceLease.until.is_not(None), or_(job, run, lasts))


def _ensure_row(session: Session, device: str) -> None:
    if session.get(DeviceLease, device):
        return
    try:
        with session.begin_nested():
            session.add(DeviceLease(device=device))
    except IntegrityError:
        pass  # another process made it first


def _update(session: Session, *which: object, **values: object) -> bool:
    statement = update(DeviceLease).where(*which).values(**values)
    return session.execute(statement.execution_options(synchronize_session=False)).rowcount > 0
