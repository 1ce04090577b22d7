"""The reconciler: `python -m workers.reconcile`. Finds rows that nobody works on and sets them going again.

At start and every few seconds it interrupts jobs whose worker is gone, and sends the ids of jobs that may start but
whose message was never sent or got lost. Messages sent twice are harmless, since only one claim succeeds.
"""

import logging
import signal
import sys
import threading
from datetime import timedelta

from sqlalchemy.orm import Session

from speculoos import logs
from speculoos.errors import Fenced, SpeculoosError
from speculoos.room import keep_reserve
from speculoos.settings import Settings, load
from tracking import db, jobs, processes, reports
from tracking.tables import Job, now
from workers.identity import owner_is_dead
from workers.publish import publish
from workers.timing import Timing, timing

log = logging.getLogger(__name__)
GONE = "Its worker was ended from outside."
SILENT = "Its worker has not been heard of for as long as its lease lasts."


def reconcile(settings: Settings, timing: Timing, *, everything: bool = False) -> int:
    """One round; returns how many messages were sent. `everything` also sends those that may still be on their way."""
    with db.session(settings) as session:
        interrupt_lost(session)
        jobs.cancel_stranded(session)
    with db.reading(settings) as session:
        due = [job for job in jobs.publishable(session) if everything or is_due(session, job, timing)]
    return publish(settings, due)


def recover(settings: Settings) -> None:
    """What a worker or reconciler does once at its start; a broker or database that is away is for the next round."""
    try:
        reconcile(settings, timing(), everything=True)
    except SpeculoosError as error:
        log.warning("Nothing recovered yet: %s", error)


def interrupt_lost(session: Session) -> None:
    """Jobs whose worker died on this host, or let its lease run out, become INTERRUPTED (see jobs.interrupt)."""
    silent = {job.id for job in jobs.expired(session)}
    for job in jobs.running(session):
        reason = GONE if owner_is_dead(job.owner) else SILENT if job.id in silent else ""
        if reason:
            _interrupt(session, job, reason)


def is_due(session: Session, job: Job, timing: Timing) -> bool:
    """Whether a waiting job needs a (new) message: none was sent, or workers idle although one was."""
    if job.published_at is None:
        return True
    if job.published_at > now() - timedelta(seconds=timing.republish_seconds):
        return False
    return len(jobs.running(session, job.queue)) < processes.capacity(session, job.queue)


def main() -> int:
    """Reconcile until told to end."""
    settings, pace, ended = load(), timing(), threading.Event()
    logs.configure(settings, "reconciler")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with processes.beating(settings, "reconciler"):
        recover(settings)
        while not ended.wait(pace.reconcile_seconds):
            keep_reserve(settings)
            try:
                reconcile(settings, pace)
            except SpeculoosError as error:
                log.warning("%s", error)
    return 0


def _interrupt(session: Session, job: Job, reason: str) -> None:
    try:
        state = jobs.interrupt(session, job.id, job.attempt, reason)
    except Fenced:
        return  # it ended, or was taken, between our reading and our writing
    reports.add_log(session, job.id, job.attempt, reason, "warning")
    with logs.about(job=job.id, attempt=job.attempt):
        log.info("%s is now %s: %s", job.name, state, reason)


if __name__ == "__main__":
    sys.exit(main())
