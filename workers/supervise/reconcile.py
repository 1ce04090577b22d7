"""The reconciler: `python -m workers.supervise.reconcile`. Finds rows that nobody works on and sets them going again.

At start and every few seconds it interrupts jobs whose worker is gone, and sends the ids of jobs that may start but
whose message was never sent or got lost. Messages sent twice are harmless, since only one claim succeeds.
"""

import logging
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection
from datetime import timedelta

from sqlalchemy.orm import Session

from ops import retention
from speculoos import logs
from speculoos.errors import Fenced, SpeculoosError
from speculoos.private import keep_private
from speculoos.room import keep_reserve
from speculoos.settings import Settings, load
from tracking import counters, db, jobs, leases, processes, reports
from tracking.tables import Job, now
from workers import identity
from workers.jobs.publish import publish
from workers.supervise.ended import Teller
from workers.supervise.silence import Silence
from workers.timing import JobTiming, timing

log = logging.getLogger(__name__)
TIDY_SECONDS = 300.0
"""How often it asks whether the hourly tidying is due (see ops.retention)."""
GONE = "Its worker was ended from outside."
SILENT = "Its worker has not been heard of for as long as its lease lasts."


def reconcile(
    settings: Settings, timing: JobTiming, silence: Silence | None = None, *, everything: bool = False
) -> int:
    """One round; returns how many messages were sent. `silence` knows who has not been heard of; without it only jobs
    of workers that are certainly gone are interrupted. `everything` sends also what may still be on its way."""
    with db.writing(settings) as session:
        silent = silence.of(jobs.running(session)) if silence else ()
        lost = interrupt_lost(session, silent)
        jobs.cancel_stranded(session)
        jobs.collect(session)
    end_fenced(lost, timing)
    with db.reading(settings) as session:
        waiting = jobs.publishable(session)
        chosen = waiting if everything else due(session, waiting, timing)
    return publish(settings, chosen)


def recover(settings: Settings) -> None:
    """What a worker or reconciler does once at its start; a broker or database that is away is for the next round."""
    try:
        reconcile(settings, timing(), everything=True)
    except SpeculoosError as error:
        log.warning("Nothing recovered yet: %s", error)


def interrupt_lost(session: Session, silent: Collection[str] = ()) -> list[Job]:
    """Jobs whose worker died on this machine, or is among the `silent`, become INTERRUPTED (see jobs.interrupt).
    Returns them as they were, with the attempt that is over."""
    lost = []
    for job in jobs.running(session):
        reason = GONE if identity.owner_is_dead(job.owner) else SILENT if job.id in silent else ""
        if reason and _interrupt(session, job, reason):
            lost.append(job)
    return lost


def end_fenced(lost: Collection[Job], timing: JobTiming) -> None:
    """End what still works on this host for attempts that are over: a worker that fell silent left a child that may
    hold the device. It could not write any more."""
    for job in lost:
        if identity.end_group(job.child, timing.kill_seconds):
            log.warning("Job %s: ended process %s of attempt %d.", job.id, job.child["pid"], job.attempt)
        if left := identity.end_attempts(job.id, job.attempt, timing.kill_seconds):
            log.warning("Job %s: processes %s of attempt %d do not end.", job.id, left, job.attempt)


def due(session: Session, waiting: list[Job], timing: JobTiming) -> list[Job]:
    """The waiting jobs that need a (new) message: none was sent, or workers idle although one was."""
    capacity, busy = processes.capacities(session), Counter(job.queue for job in jobs.running(session))
    return [
        job
        for job in waiting
        if job.published_at is None or (not _lately(job, timing) and busy[job.queue] < capacity.get(job.queue, 0))
    ]


def _lately(job: Job, timing: JobTiming) -> bool:
    """Its message was sent a moment ago (and not in the future: that was before the clock was put back)."""
    return timedelta(0) <= now() - job.published_at < timedelta(seconds=timing.republish_seconds)


def main() -> int:
    """Reconcile until told to end."""
    keep_private()
    settings, pace, ended = load(), timing(), threading.Event()
    settings.home.mkdir(parents=True, exist_ok=True)
    logs.configure(settings, "reconciler")
    silence = Silence(pace.lease_seconds, longest_step=max(1.0, 3 * pace.reconcile_seconds))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with processes.beating(settings, "reconciler"):
        recover(settings)
        tidied, teller = time.monotonic() - TIDY_SECONDS, Teller(settings)
        while not ended.wait(pace.reconcile_seconds):
            keep_reserve(settings)
            try:
                reconcile(settings, pace, silence)
                teller.look()
            except SpeculoosError as error:
                log.warning("%s", error)
            if time.monotonic() - tidied > TIDY_SECONDS:
                tidied = time.monotonic()
                retention.in_background(settings)
    return 0


def _interrupt(session: Session, job: Job, reason: str) -> bool:
    try:
        state = jobs.interrupt(session, job.id, job.attempt, reason)
    except Fenced:
        return False  # it ended, or was taken, between our reading and our writing
    leases.release(session, f"job:{job.id}", job.attempt)
    reports.add_log(session, job.id, job.attempt, reason, "warning")
    counters.add(session, counters.LEASE_LOST if reason == SILENT else counters.WORKER_GONE)
    with logs.about(job=job.id, attempt=job.attempt):
        log.info("%s is now %s: %s", job.name, state, reason)
    return True


if __name__ == "__main__":
    sys.exit(main())
