"""The reconciler: `python -m workers.supervise.reconcile`. Restarts jobs that have lost their worker or message.

At start and every few seconds it interrupts jobs whose worker has died, and sends messages for jobs that can start but
whose message was not sent or was lost. Duplicate messages are harmless, since only one claim succeeds.
"""

import logging
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from ops import retention
from speculoos import logs, webhook
from speculoos.errors import Fenced, SpeculoosError
from speculoos.private import set_private_umask
from speculoos.resources import update_reserve
from speculoos.settings import Settings, load
from tracking import db, jobs, leases, processes, reports, workload
from tracking.listing import took_long
from tracking.states import FINISHED, JobState
from tracking.tables import Job, Preference, now
from workers import identity
from workers.celery_app import publish
from workers.timing import JobTiming, job_timing

log = logging.getLogger(__name__)
CLEANUP_SECONDS = 300.0  # interval at which it checks whether the hourly cleanup is due (see ops.retention)
WATCHED = "webhook:watched"
STATE_TEXTS = {JobState.SUCCEEDED: "is done", JobState.FAILED: "has failed"}
WORKER_DIED = "Its worker has died."
LEASE_EXPIRED = "Its worker has not renewed the lease in time."

LeaseState = tuple[int, datetime | None]  # (attempt, lease_until) of a job


class LeaseMonitor:
    """Stores the lease of each running job and for how long it has been unchanged, by the observer's monotonic clock. A
    worker changes its job's `lease_until` with every renewal. The date itself is not compared with the current time:
    clocks of machines differ and can be set (as in the leader election of Kubernetes). Call `expired` frequently. At
    most `longest_step` seconds count between two calls, so that leases do not expire because the observer, or the whole
    machine, was suspended."""

    def __init__(self, lease_seconds: float, longest_step: float, clock: Callable[[], float] = time.monotonic):
        self._lease_seconds, self._longest_step, self._clock = lease_seconds, longest_step, clock
        self._checked_at = clock()
        self._seen: dict[str, tuple[LeaseState, float]] = {}  # {job id: (lease, seconds unchanged)}

    def expired(self, running: Iterable[Job]) -> set[str]:
        """Ids of jobs whose lease has been unchanged for longer than its duration."""
        now = self._clock()
        elapsed, self._checked_at = min(now - self._checked_at, self._longest_step), now
        self._seen = {job.id: self._observe(job, elapsed) for job in running}
        return {job_id for job_id, (_, seconds) in self._seen.items() if seconds > self._lease_seconds}

    def _observe(self, job: Job, elapsed: float) -> tuple[LeaseState, float]:
        lease = job.attempt, job.lease_until
        before, seconds = self._seen.get(job.id, (None, 0.0))
        return lease, (seconds + elapsed if lease == before else 0.0)


def reconcile(
    settings: Settings, timing: JobTiming, monitor: LeaseMonitor | None = None, *, republish_all: bool = False
) -> int:
    """One round; returns the number of messages sent. `republish_all` sends every waiting job's message."""
    with db.writing(settings) as session:
        expired = monitor.expired(jobs.running(session)) if monitor else ()
        lost = interrupt_lost(session, expired)
        jobs.cancel_stranded(session)
        jobs.resume_parents(session)
    for job in lost:  # a child may outlive its worker and still use the device, but cannot write any more
        if identity.end_group(job.child, timing.kill_seconds):
            log.warning("Job %s: ended process %s of attempt %d.", job.id, job.child["pid"], job.attempt)
        if pids := identity.end_attempts(job.id, job.attempt, timing.kill_seconds):
            log.warning("Job %s: processes %s of attempt %d do not end.", job.id, pids, job.attempt)
    with db.reading(settings) as session:
        waiting = jobs.publishable(session)
        to_publish = waiting if republish_all else jobs_without_message(session, waiting, timing)
    return publish(settings, to_publish)


def recover(settings: Settings) -> None:
    """Run one round at the start of a worker or reconciler. Errors are logged; the next round tries again."""
    try:
        reconcile(settings, job_timing(), republish_all=True)
    except SpeculoosError as error:
        log.warning("Recovery at start failed: %s", error)


def interrupt_lost(session: Session, expired: Collection[str] = ()) -> list[Job]:
    """Interrupt jobs whose worker died on this machine, or whose id is in `expired`. Returns the rows as they were."""
    lost = []
    for job in jobs.running(session):
        reason = WORKER_DIED if identity.worker_is_dead(job.owner) else LEASE_EXPIRED if job.id in expired else ""
        if not reason:
            continue
        try:
            state = jobs.interrupt(session, job.id, job.attempt, reason)
        except Fenced:  # it ended or was claimed meanwhile
            continue
        leases.release(session, f"job:{job.id}", job.attempt)
        reports.add_log(session, job.id, job.attempt, reason, "warning")
        workload.increment_counter(session, workload.LEASE_LOST if reason == LEASE_EXPIRED else workload.WORKER_GONE)
        with logs.with_log_context(job=job.id, attempt=job.attempt):
            log.info("%s is now %s: %s", job.name, state, reason)
        lost.append(job)
    return lost


def jobs_without_message(session: Session, waiting: list[Job], timing: JobTiming) -> list[Job]:
    """Waiting jobs that need a message: none was sent yet, or the last one is old and workers are idle."""
    capacity, busy = processes.capacities(session), Counter(job.queue for job in jobs.running(session))
    recent = timedelta(seconds=timing.republish_seconds)

    def needs_message(job: Job) -> bool:
        if job.published_at is None:
            return True
        was_sent = timedelta(0) <= now() - job.published_at < recent  # in the future: the clock was set back
        return not was_sent and busy[job.queue] < capacity.get(job.queue, 0)

    return list(filter(needs_message, waiting))


def message_of(job: Job, pages: str) -> dict[str, Any]:
    """The message about an ended job as JSON; chat servers show `text`. `pages` is the URL of the workbench."""
    seconds = ((job.finished_at or now()) - job.queued_at).total_seconds()
    link = f"{pages}/runs?id={job.id}"
    figures = {"id": job.id, "name": job.name, "state": job.state, "seconds": round(seconds)}
    return {"text": f"“{job.name}” {STATE_TEXTS[JobState(job.state)]}: {link}", "job": figures, "link": link}


def collect_ended_jobs(session: Session) -> list[Job]:
    """Watched long jobs that succeeded or failed since the last call. Then all active jobs are watched."""
    row = session.get(Preference, WATCHED, with_for_update=True)
    watched = list(row.value.get("jobs", [])) if row else []
    active = sorted(session.scalars(select(Job.id).where(Job.state.not_in(FINISHED), Job.parent_id.is_(None))))
    if active != watched or row is None:
        session.merge(Preference(key=WATCHED, value={"jobs": active}, updated_at=now()))
    ended = set(watched) - set(active)
    rows = session.scalars(select(Job).where(Job.id.in_(ended), Job.state.in_(STATE_TEXTS))) if ended else ()
    return [job for job in rows if took_long(job)]


class WebhookNotifier:
    """Sends messages about ended long jobs, one POST each, from its own thread; failed ones are not retried."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._queue: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._last_error, self._watching = "", True
        threading.Thread(target=self._run, name="webhook", daemon=True).start()

    def queue_messages(self) -> None:
        """Queue messages about ended jobs. Without a webhook no job is watched, so no message follows later."""
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


def main() -> int:
    """Reconcile until SIGTERM or SIGINT."""
    set_private_umask()
    settings, intervals, ended = load(), job_timing(), threading.Event()
    settings.home.mkdir(parents=True, exist_ok=True)
    logs.configure_logging(settings, "reconciler")
    monitor = LeaseMonitor(intervals.lease_seconds, longest_step=max(1.0, 3 * intervals.reconcile_seconds))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with processes.heartbeats_during(settings, "reconciler"):
        recover(settings)
        last_cleanup, notifier = time.monotonic() - CLEANUP_SECONDS, WebhookNotifier(settings)
        while not ended.wait(intervals.reconcile_seconds):
            update_reserve(settings)
            try:
                reconcile(settings, intervals, monitor)
                notifier.queue_messages()
            except SpeculoosError as error:
                log.warning("%s", error)
            if time.monotonic() - last_cleanup > CLEANUP_SECONDS:
                last_cleanup = time.monotonic()
                retention.in_background(settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
