"""Submitting a job from a command and following it to its end: progress on standard error, its error as ours."""

import time
from collections.abc import Callable
from datetime import timedelta

from cli.console import say
from cli.launch.services import Services, programs_for
from speculoos.errors import Cancelled, JobFailed
from speculoos.people import current_user
from speculoos.settings import Settings
from tracking.db import reading
from tracking.jobs import get
from tracking.reports import logs
from tracking.states import FINISHED, JobState
from tracking.tables import Job
from workers.jobs.requests import Request
from workers.jobs.submit import submit

POLL_SECONDS, LINE_SECONDS = 0.5, 2.0


def run_request(settings: Settings, request: Request, name: str = "", wait: bool = True) -> Job:
    """Submit what this account asks for, its output called `name`, and follow it; see `run_jobs`."""
    asked = {"name": name, "user": current_user(), "settings": settings}
    (job,) = run_jobs(settings, lambda: [submit(request, **asked)], request.runs_on, wait)
    return job


def run_jobs(settings: Settings, submitted: Callable[[], list[Job]], queue: str, wait: bool) -> list[Job]:
    """Submit jobs and follow them: always when this command has to start the services itself, else if `wait`.

    Returns the rows as they are at the end. Raises what a job failed with.
    """
    with Services(settings, programs_for(queue)) as services:
        jobs = submitted()
        if not (wait or services.ours):
            say("Submitted; `speculoos jobs list` shows it, --wait follows it.")
            return jobs
        return [follow(settings, job.id, services) for job in jobs]


def follow(settings: Settings, job_id: str, services: Services | None = None) -> Job:
    """Until the job ends. Raises JobFailed for FAILED, Cancelled for CANCELLED.

    Ctrl-C stops following: a job of services that are ours is interrupted and goes on at the next start.
    """
    view = _View()
    try:
        while True:
            if services:
                services.keep()
            with reading(settings) as session:
                job = get(session, job_id)
                view.show(job, logs(session, job_id, view.last_log))
            if job.state in FINISHED:
                return _ended(job)
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        where = "It goes on at the next `speculoos up`" if services and services.ours else "It goes on without you"
        raise Cancelled(f"{where}; `speculoos jobs cancel {job_id[:8]}` gives it up.") from None


class _View:
    """Prints what changed since the last look."""

    def __init__(self) -> None:
        self.last_log = 0
        self.line = self.state = ""
        self.said = 0.0

    def show(self, job: Job, lines: list) -> None:
        for line in lines:
            self.last_log = line.id
            say(line.message if line.level == "info" else f"{line.level}: {line.message}")
        words, now = _words(job), time.monotonic()
        if words != self.line and (job.state != self.state or now - self.said >= LINE_SECONDS or job.done == job.total):
            self.line, self.state, self.said = words, job.state, now
            say(words)


def _words(job: Job) -> str:
    if job.state == JobState.INTERRUPTED and job.shards:  # between its last shard and the attempt that collects them
        return f"{job.name}: collecting results"
    if job.state != JobState.RUNNING or not job.unit:
        return f"{job.name}: {job.state.lower()}"
    of = f"/{job.total}" if job.total else ""
    known = job.eta_seconds and "left" not in job.progress_note
    left = f", {timedelta(seconds=int(job.eta_seconds or 0))} left" if known else ""
    return f"{job.name}: {job.done}{of} {job.unit}{left} {job.progress_note}".rstrip()


def _ended(job: Job) -> Job:
    if job.state == JobState.SUCCEEDED:
        return job
    if job.state == JobState.CANCELLED:
        raise Cancelled(f"“{job.name}” was cancelled. {job.error}".strip())
    raise JobFailed(job.error_code, f"“{job.name}” failed: {job.error or 'it left no word'}", job.hint)
