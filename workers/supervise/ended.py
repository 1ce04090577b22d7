"""Notifies the webhook of long jobs that have ended, with one POST per job.

The watched jobs are stored in a database row, so that each end is reported once, also across restarts. A thread sends
the messages; failed ones are not retried, and a failing host is logged once.
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
"""Maximum number of queued messages; more are dropped."""
WORDS = {JobState.SUCCEEDED: "is done", JobState.FAILED: "has failed"}


@dataclass(frozen=True)
class EndedJob:
    """An ended job, as reported to the webhook."""

    id: str
    name: str
    state: str
    seconds: float

    @classmethod
    def of(cls, job: Job) -> "EndedJob":
        return cls(job.id, job.name, job.state, ((job.finished_at or now()) - job.queued_at).total_seconds())

    def message(self, pages: str) -> dict[str, Any]:
        """The message as JSON; chat servers show `text`. `pages` is the URL of the workbench."""
        link = f"{pages}/jobs?id={self.id}"
        job = {"id": self.id, "name": self.name, "state": self.state, "seconds": round(self.seconds)}
        return {"text": f"“{self.name}” {WORDS[JobState(self.state)]}: {link}", "job": job, "link": link}


def collect_ended_jobs(session: Session) -> list[EndedJob]:
    """Watched long jobs that succeeded or failed since the last call. Then all active jobs are watched."""
    row = session.get(Preference, WATCHED, with_for_update=True)
    watched = list(row.value.get("jobs", [])) if row else []
    active = sorted(session.scalars(select(Job.id).where(Job.state.not_in(FINISHED), Job.parent_id.is_(None))))
    if active != watched or row is None:
        session.merge(Preference(key=WATCHED, value={"jobs": active}, updated_at=now()))
    ended = set(watched) - set(active)
    rows = session.scalars(select(Job).where(Job.id.in_(ended), Job.state.in_(WORDS))) if ended else ()
    return [EndedJob.of(job) for job in rows if took_long(job)]


def stop_watching(session: Session) -> list[EndedJob]:
    """Stop watching, because no webhook is set: jobs that end before one is set are not reported later."""
    session.execute(delete(Preference).where(Preference.key == WATCHED))
    return []


class WebhookNotifier:
    """Sends the messages sequentially from its own thread."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._queue: queue.Queue[EndedJob] = queue.Queue(WAITING)
        self._last_error, self._watching = "", True
        threading.Thread(target=self._run, name="webhook", daemon=True).start()

    def look(self) -> None:
        """Queue messages for jobs that have ended; does not block."""
        enabled = bool(webhook.webhook_url(self.settings))
        if enabled or self._watching:
            with db.writing(self.settings) as session:
                jobs = collect_ended_jobs(session) if enabled else stop_watching(session)
            self._enqueue(jobs)
        self._watching = enabled

    def _enqueue(self, jobs: Sequence[EndedJob]) -> None:
        for job in jobs:
            try:
                self._queue.put_nowait(job)
            except queue.Full:
                log.warning("%d messages about ended jobs are queued already; further ones are dropped.", WAITING)
                return

    def _run(self) -> None:
        while True:
            self._send(self._queue.get())

    def _send(self, job: EndedJob) -> None:
        """Send one message. A repeated error is logged only once."""
        try:
            webhook.post_to_webhook(self.settings, job.message(self.settings.url))
            self._last_error = ""
        except SpeculoosError as error:
            if str(error) != self._last_error:
                log.warning("The webhook was not notified that %s ended: %s", job.name, error)
            self._last_error = str(error)
        except Exception as error:  # the thread must survive for later messages
            log.warning("The webhook was not notified that %s ended: %s.", job.name, type(error).__name__)
