"""Tells people's own webhook of long jobs that have ended: one POST each, never in a job's way.

Which jobs are watched is a row, so that an end is told once, by the reconciler of whichever start sees it. Messages are
sent by a thread; one that cannot be delivered is not kept, and a host that takes none is named in the log once.
"""

import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from speculoos import webhook
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import db
from tracking.listing import took_long
from tracking.states import FINISHED, JobState
from tracking.tables import Job, Preference, now

log = logging.getLogger(__name__)
WATCHED = "webhook:watched"
WAITING = 100
"""Messages that may wait; more are dropped."""
WORDS = {JobState.SUCCEEDED: "is done", JobState.FAILED: "has failed"}


@dataclass(frozen=True)
class Ended:
    """What is told of a job."""

    id: str
    name: str
    state: str
    seconds: float

    @classmethod
    def of(cls, job: Job) -> "Ended":
        return cls(job.id, job.name, job.state, ((job.finished_at or now()) - job.queued_at).total_seconds())

    def message(self, pages: str) -> dict[str, Any]:
        """As JSON; chat servers show `text`. `pages` is the address of the workbench."""
        link = f"{pages}/jobs?id={self.id}"
        told = {"id": self.id, "name": self.name, "state": self.state, "seconds": round(self.seconds)}
        return {"text": f"“{self.name}” {WORDS[JobState(self.state)]}: {link}", "job": told, "link": link}


def take(session: Session) -> list[Ended]:
    """Watched jobs that have ended by themselves since the last call, the long ones. From now on those are watched that
    are active now."""
    row = session.get(Preference, WATCHED, with_for_update=True)
    watched = list(row.value.get("jobs", [])) if row else []
    active = sorted(session.scalars(select(Job.id).where(Job.state.not_in(FINISHED), Job.parent_id.is_(None))))
    if active != watched or row is None:
        session.merge(Preference(key=WATCHED, value={"jobs": active}, updated_at=now()))
    over = set(watched) - set(active)
    found = session.scalars(select(Job).where(Job.id.in_(over), Job.state.in_(WORDS))) if over else ()
    return [Ended.of(job) for job in found if took_long(job)]


def forget(session: Session) -> list[Ended]:
    """Nobody wants to hear of ends: those until somebody does are not told later."""
    session.execute(delete(Preference).where(Preference.key == WATCHED))
    return []


class Teller:
    """Sends messages one after the other from a thread of its own."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._queue: queue.Queue[Ended] = queue.Queue(WAITING)
        self._failing, self._watching = "", True
        threading.Thread(target=self._run, name="webhook", daemon=True).start()

    def look(self) -> None:
        """Find what has ended and hand it over; returns at once."""
        wanted = bool(webhook.address(self.settings))
        if wanted or self._watching:
            with db.writing(self.settings) as session:
                found = take(session) if wanted else forget(session)
            self._offer(found)
        self._watching = wanted

    def _offer(self, found: Sequence[Ended]) -> None:
        for ended in found:
            try:
                self._queue.put_nowait(ended)
            except queue.Full:
                log.warning("%d messages about ended jobs wait already; the next ones are left out.", WAITING)
                return

    def _run(self) -> None:
        while True:
            self._send(self._queue.get())

    def _send(self, ended: Ended) -> None:
        """One POST. What is wrong is logged when it begins, not at every job."""
        try:
            webhook.send(self.settings, ended.message(self.settings.url))
            self._failing = ""
        except SpeculoosError as error:
            if str(error) != self._failing:
                log.warning("Told nobody that %s ended: %s", ended.name, error)
            self._failing = str(error)
        except Exception as error:  # a thread that ends would take all later messages with it
            log.warning("Told nobody that %s ended: %s.", ended.name, type(error).__name__)
