"""Notifies the webhook of long jobs that have ended, with one POST per job.

The watched jobs are stored in a database row, so that each end is reported once, also across restarts. A thread sends
the messages; failed ones are not retried, and a failing host is logged once.
"""

import logging
import queue
import threading
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
WORDS = {JobState.SUCCEEDED: "is done", JobState.FAILED: "has failed"}


def message_of(job: Job, pages: str) -> dict[str, Any]:
    """The message about an ended job as JSON; chat servers show `text`. `pages` is the URL of the workbench."""
    seconds = ((job.finished_at or now()) - job.queued_at).total_seconds()
    link = f"{pages}/jobs?id={job.id}"
    figures = {"id": job.id, "name": job.name, "state": job.state, "seconds": round(seconds)}
    return {"text": f"“{job.name}” {WORDS[JobState(job.state)]}: {link}", "job": figures, "link": link}


def collect_ended_jobs(session: Session) -> list[Job]:
    """Watched long jobs that succeeded or failed since the last call. Then all active jobs are watched."""
    row = session.get(Preference, WATCHED, with_for_update=True)
    watched = list(row.value.get("jobs", [])) if row else []
    active = sorted(session.scalars(select(Job.id).where(Job.state.not_in(FINISHED), Job.parent_id.is_(None))))
    if active != watched or row is None:
        session.merge(Preference(key=WATCHED, value={"jobs": active}, updated_at=now()))
    ended = set(watched) - set(active)
    rows = session.scalars(select(Job).where(Job.id.in_(ended), Job.state.in_(WORDS))) if ended else ()
    return [job for job in rows if took_long(job)]


class WebhookNotifier:
    """Sends the messages sequentially from its own thread."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._queue: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._last_error, self._watching = "", True
        threading.Thread(target=self._run, name="webhook", daemon=True).start()

    def look(self) -> None:
        """Queue messages for jobs that have ended; does not block. Without a webhook no job is watched, so that jobs
        which end before one is set are not reported later."""
        enabled = bool(webhook.webhook_url(self.settings))
        jobs: list[Job] = []
        if enabled or self._watching:
            with db.writing(self.settings) as session:
                if enabled:
                    jobs = collect_ended_jobs(session)
                else:
                    session.execute(delete(Preference).where(Preference.key == WATCHED))
        self._watching = enabled
        for job in jobs:
            self._queue.put(job)

    def _run(self) -> None:
        while job := self._queue.get():
            error = ""
            try:
                webhook.post_to_webhook(self.settings, message_of(job, self.settings.url))
            except Exception as problem:  # the thread must survive for later messages
                error = str(problem) if isinstance(problem, SpeculoosError) else type(problem).__name__
            if error not in ("", self._last_error):
                log.warning("The webhook was not notified that %s ended: %s", job.name, error)
            self._last_error = error
