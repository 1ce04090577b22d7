"""Heartbeats of the workbench's processes, one Preference row each: how `doctor` and the pages know who is alive.

Keys are `process:<name>@<machine>:<pid>`; names are worker-gpu, worker-io, reconciler, inference, web.
"""

import logging
import os
import threading
import time
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
FRESH = timedelta(seconds=20)
"""A process that has been silent for longer counts as gone."""
FORGET = timedelta(days=1)
STEP, LOOK_SECONDS = 1.0, 1.0
"""A wall clock that moves this much against the monotonic one was stepped; how often that is looked for. Seconds."""


def key(name: str) -> str:
    return f"process:{name}@{machine.host()}:{os.getpid()}"


def beat(session: Session, name: str, **details: Any) -> None:
    """Say that this process lives; `details` (such as queue and concurrency) are kept with it."""
    session.merge(Preference(key=key(name), value={"name": name, **details}, updated_at=now()))


@contextmanager
def beating(settings: Settings, name: str, news: Callable[[], dict[str, Any]] = dict, **details: Any) -> Iterator[None]:
    """Beat from a thread for as long as the block lasts, then leave. A database that is away stops nothing.

    `news` is asked for further details before every beat.
    """
    ended = threading.Event()

    def beats() -> None:
        while True:
            try:
                with db.writing(settings) as session:
                    beat(session, name, **details, **news())
            except SpeculoosError as error:
                log.warning("No heartbeat of %s: %s", name, error)
            if _pause(ended):
                return

    thread = threading.Thread(target=beats, name=f"beat-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=10)
        with suppress(SpeculoosError), db.writing(settings) as session:
            leave(session, name)


def _pause(ended: threading.Event) -> bool:
    """Until the next beat is due, or the clock was stepped: the last beat would be misread. True at the end."""
    due, ahead = time.monotonic() + BEAT_SECONDS, time.time() - time.monotonic()
    while time.monotonic() < due and abs(time.time() - time.monotonic() - ahead) < STEP:
        if ended.wait(min(LOOK_SECONDS, BEAT_SECONDS)):
            return True
    return ended.is_set()


def leave(session: Session, name: str) -> None:
    """Say that this process ends, and forget those silent for a day (or heard of in a future that was put back)."""
    lately = Preference.updated_at.between(now() - FORGET, now() + FORGET)
    old = Preference.key.startswith("process:") & ~lately
    session.execute(delete(Preference).where((Preference.key == key(name)) | old))


def alive(session: Session, name: str = "") -> list[Preference]:
    """Processes heard of lately; all, or those called `name`."""
    fresh = Preference.updated_at.between(now() - FRESH, now() + FRESH)  # later still: the clock was put back since
    return list(session.scalars(select(Preference).where(_called(name), fresh).order_by(Preference.key)))


def last_seen(session: Session, name: str) -> datetime | None:
    """When a process called `name` was last heard of; None if never."""
    query = select(Preference.updated_at).where(_called(name))
    return session.scalar(query.order_by(Preference.updated_at.desc()).limit(1))


def capacities(session: Session) -> dict[str, int]:
    """How many jobs of each queue (gpu or io) the living workers run at once."""
    capacities: dict[str, int] = {}
    for worker in alive(session):
        queue = str(worker.value.get("name", "")).removeprefix("worker-")
        capacities[queue] = capacities.get(queue, 0) + int(worker.value.get("concurrency", 1))
    return capacities


def paused(session: Session, queue: str) -> str:
    """Why the workers of `queue` start nothing, in one sentence; "" when one of them has room."""
    notes = [str(p.value.get("paused", "")) for p in alive(session, f"worker-{queue}")]
    return notes[0] if notes and all(notes) else ""


def _called(name: str) -> Any:
    return Preference.key.startswith(f"process:{name}@" if name else "process:", autoescape=True)
