"""Heartbeats of the workbench's processes, one Preference row each. `doctor` and the pages show which are alive.

Keys are `process:<name>@<machine>:<pid>`; names are worker-gpu, worker-io, reconciler, inference, web.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from speculoos import machine
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import db
from tracking.tables import Preference, now

log = logging.getLogger(__name__)
BEAT_SECONDS = 5.0
FRESH = timedelta(seconds=20)  # a process without a heartbeat for longer counts as gone
FORGET_AFTER = timedelta(days=1)


def key(name: str) -> str:
    return f"process:{name}@{machine.machine_key()}:{os.getpid()}"


def beat(session: Session, name: str, **details: Any) -> None:
    """Store a heartbeat of this process with `details` such as queue and concurrency."""
    session.merge(Preference(key=key(name), value={"name": name, **details}, updated_at=now()))


@contextmanager
def heartbeats_during(
    settings: Settings, name: str, news: Callable[[], dict[str, Any]] = dict, **details: Any
) -> Iterator[None]:
    """Send heartbeats from a thread during the block, then delete them. Goes on if the database is unavailable.

    `news` returns further details and is called before every heartbeat.
    """
    ended = threading.Event()

    def run() -> None:
        while True:
            try:
                with db.writing(settings) as session:
                    beat(session, name, **details, **news())
            except SpeculoosError as error:
                log.warning("No heartbeat of %s: %s", name, error)
            if ended.wait(BEAT_SECONDS):
                return

    thread = threading.Thread(target=run, name=f"beat-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=10)
        with suppress(SpeculoosError), db.writing(settings) as session:
            delete_heartbeat(session, name)


def delete_heartbeat(session: Session, name: str) -> None:
    """Delete this process's heartbeat, and those more than a day old (or in the future, after a clock change)."""
    recent = Preference.updated_at.between(now() - FORGET_AFTER, now() + FORGET_AFTER)
    old = Preference.key.startswith("process:") & ~recent
    session.execute(delete(Preference).where((Preference.key == key(name)) | old))


def alive(session: Session, name: str = "") -> list[Preference]:
    """Heartbeats of living processes; of all, or those named `name`."""
    fresh = Preference.updated_at.between(now() - FRESH, now() + FRESH)  # later ones: the clock was set back
    return list(session.scalars(select(Preference).where(_named(name), fresh).order_by(Preference.key)))


def last_seen(session: Session, name: str) -> datetime | None:
    """Time of the last heartbeat of a process named `name`; None if there is none."""
    query = select(Preference.updated_at).where(_named(name))
    return session.scalar(query.order_by(Preference.updated_at.desc()).limit(1))


def capacities(session: Session) -> dict[str, int]:
    """Number of jobs that the living workers run at once, by queue (gpu or io)."""
    capacities: dict[str, int] = {}
    for worker in alive(session):
        queue = str(worker.value.get("name", "")).removeprefix("worker-")
        capacities[queue] = capacities.get(queue, 0) + int(worker.value.get("concurrency", 1))
    return capacities


def paused(session: Session, queue: str) -> str:
    """Why all workers of `queue` have paused, in one sentence; "" if one of them has not."""
    notes = [str(p.value.get("paused", "")) for p in alive(session, f"worker-{queue}")]
    return notes[0] if notes and all(notes) else ""


def _named(name: str) -> Any:
    return Preference.key.startswith(f"process:{name}@" if name else "process:", autoescape=True)
