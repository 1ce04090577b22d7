"""Submits jobs from a command and follows them: progress on standard error; a failed job raises its error."""

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

POLL_SECONDS, LINE_SECONDS = 0.2, 2.0


def run_request(settings: Settings, request: Request, name: str = "", wait: bool = True) -> Job:
    """Submit `request` for the current user, with output name `name`, and follow it; see `run_jobs`."""
    user = current_user()
    (job,) = run_jobs(
        settings, lambda: [submit(request, name=name, user=user, settings=settings)], request.runs_on, wait
    )
    return job


def run_jobs(settings: Settings, submit_jobs: Callable[[], list[Job]], queue: str, wait: bool) -> list[Job]:
    """Submit jobs and follow them with `wait`, or if this command has to start the services itself.

    Returns their last rows. Raises JobFailed or Cancelled like `follow`.
    """
    with Services(settings, programs_for(queue)) as services:
        jobs = submit_jobs()
        if not (wait or services.is_owner):
            say("Submitted; `speculoos jobs list` shows it, --wait follows it.")
            return jobs
        return [follow(settings, job.id, services) for job in jobs]


def follow(settings: Settings, job_id: str, services: Services | None = None) -> Job:
    """Print progress until the job ends. Raises JobFailed for FAILED, Cancelled for CANCELLED.

    Ctrl-C stops following. A job of services that this command started is interrupted and resumes at the next start.
    """
    printer = _ProgressPrinter()
    try:
        while True:
            if services:
                services.ensure_running()
            with reading(settings) as session:
                job = get(session, job_id)
                printer.show(job, logs(session, job_id, printer.last_log))
            if job.state == JobState.CANCELLED:
                raise Cancelled(f"“{job.name}” was cancelled. {job.error}".strip())
            if job.state == JobState.FAILED:
                reason = job.error or "no reason was recorded"
                raise JobFailed(job.error_code, f"“{job.name}” failed: {reason}", job.hint)
            if job.state in FINISHED:
                return job
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        interrupted = services and services.is_owner
        state = "The job resumes at the next `speculoos up`" if interrupted else "The job continues in the background"
        raise Cancelled(f"{state}; `speculoos jobs cancel {job_id[:8]}` cancels it.") from None


class _ProgressPrinter:
    """Prints new log lines and changed progress."""

    def __init__(self) -> None:
        self.last_log = 0
        self.line = self.state = ""
        self.printed_at = 0.0

    def show(self, job: Job, lines: list) -> None:
        for row in lines:
            self.last_log = row.id
            say(row.message if row.level == "info" else f"{row.level}: {row.message}")
        line, now = _progress_line(job), time.monotonic()
        due = job.state != self.state or now - self.printed_at >= LINE_SECONDS or job.done == job.total
        if line != self.line and due:
            self.line, self.state, self.printed_at = line, job.state, now
            say(line)


def _progress_line(job: Job) -> str:
    if job.state == JobState.INTERRUPTED and job.shards:  # all shards ended; the next attempt merges them
        return f"{job.name}: collecting results"
    if job.state != JobState.RUNNING or not job.unit:
        return f"{job.name}: {job.state.lower()}"
    total = f"/{job.total}" if job.total else ""
    has_eta = job.eta_seconds and "left" not in job.progress_note
    left = f", {timedelta(seconds=int(job.eta_seconds or 0))} left" if has_eta else ""
    return f"{job.name}: {job.done}{total} {job.unit}{left} {job.progress_note}".rstrip()
