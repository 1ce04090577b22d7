"""Numbers that only grow and outlive every process, one Preference row each: how often a worker was lost, and so on."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from tracking.tables import Preference, now

PREFIX = "count:"
LEASE_LOST, WORKER_GONE = "lease_lost", "worker_gone"
"""Attempts that were interrupted because their worker fell silent, or was seen to be gone."""
NAMES = (LEASE_LOST, WORKER_GONE)


def add(session: Session, name: str) -> None:
    """Count one more; the caller commits."""
    row = session.get(Preference, PREFIX + name, with_for_update=True)
    value = {"n": (row.value.get("n", 0) if row else 0) + 1}
    session.merge(Preference(key=PREFIX + name, value=value, updated_at=now()))
    session.flush()


def read(session: Session) -> dict[str, int]:
    """Every counter by its name, 0 for those that never counted."""
    rows = session.execute(select(Preference.key, Preference.value).where(Preference.key.startswith(PREFIX)))
    return dict.fromkeys(NAMES, 0) | {key.removeprefix(PREFIX): int(value.get("n", 0)) for key, value in rows}
