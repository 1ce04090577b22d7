"""Device leases: who holds `cpu` or `cuda:0` for work whose figures must not be shared.

A holder is named `job:<id>` or `run:<id>`. A lease that is not renewed runs out by itself.
"""

from datetime import timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from speculoos.errors import Fenced
from tracking.tables import DeviceLease, Job, now


def acquire(session: Session, device: str, holder: str, seconds: float, attempt: int = 0) -> bool:
    """Take a free (or run out) device, or keep one's own; False when another holder has it."""
    _ensure_row(session, device)
    time = now()
    free = or_(DeviceLease.holder.in_(["", holder]), DeviceLease.until < time, DeviceLease.until.is_(None))
    values = {"holder": holder, "attempt": attempt, "until": time + timedelta(seconds=seconds)}
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
    row = session.get(DeviceLease, device, populate_existing=True)
    return row.holder if row and row.until and row.until > now() else ""


def holder_name(session: Session, device: str) -> str:
    """The holder in words for people: a job's name, `a measurement`, or "" when the device is free."""
    found = holder(session, device)
    if found.startswith("job:"):
        return session.scalar(select(Job.name).where(Job.id == found[4:])) or found
    return "a measurement" if found else ""


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
