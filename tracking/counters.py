"""Persistent counters, one Preference row each."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from tracking.tables import Preference, now

PREFIX = "count:"
LEASE_LOST, WORKER_GONE = "lease_lost", "worker_gone"
"""Attempts interrupted because their worker's heartbeats stopped, or because its process was gone."""
NAMES = (LEASE_LOST, WORKER_GONE)


def increment_counter(session: Session, name: str) -> None:
    """Increment a counter; the caller commits."""
    row = session.get(Preference, PREFIX + name, with_for_update=True)
    value = {"n": (row.value.get("n", 0) if row else 0) + 1}
    session.merge(Preference(key=PREFIX + name, value=value, updated_at=now()))
    session.flush()


def read_counters(session: Session) -> dict[str, int]:
    """Value of every counter by name, 0 if it was never incremented."""
    rows = session.execute(select(Preference.key, Preference.value).where(Preference.key.startswith(PREFIX)))
    return dict.fromkeys(NAMES, 0) | {key.removeprefix(PREFIX): int(value.get("n", 0)) for key, value in rows}
