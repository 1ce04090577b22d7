"""Jobs as people see them: state in words, progress with its estimate, what a waiting job waits for. Pure functions."""

from app.widgets.elements import Tone, badge, notice, progress_bar
from app.widgets.formatting import duration, rounded, size
from app.widgets.review import worst_case
from app.widgets.text import safe, tag
from tracking.tables import Job
from workers.jobs.evaluate import longest_seconds

ACTIVE = ("QUEUED", "RUNNING", "INTERRUPTED")
PAUSED = "Paused: "
"""How the reason begins of a job that waits for room on its worker's machine."""
STATES: dict[str, tuple[str, Tone | str]] = {
    "QUEUED": ("Waiting", "warn"),
    "RUNNING": ("Running", "info"),
    "INTERRUPTED": ("Interrupted", "warn"),
    "SUCCEEDED": ("Done", "good"),
    "FAILED": ("Failed", "bad"),
    "CANCELLED": ("Cancelled", ""),
}
MARKS = {"SUCCEEDED": "✓", "RUNNING": "▸", "FAILED": "✗", "CANCELLED": "–", "INTERRUPTED": "‖"}
"""Signs of a state where there is no room for its name."""


def state_words(job: Job) -> tuple[str, Tone | str]:
    """The state's name on the pages, and its tone."""
    if paused(job):
        return "Paused", "warn"
    if job.cancel_requested and job.state == "RUNNING":
        return "Stopping…", "warn"
    return STATES.get(job.state, (job.state, ""))


def paused(job: Job) -> bool:
    """Interrupted for want of room on its worker's machine; the note says of what."""
    return job.state == "INTERRUPTED" and job.progress_note.startswith(PAUSED)


def state_badge(job: Job) -> str:
    """The state in a coloured box, with the word in it."""
    return badge(*state_words(job))


def counted(done: int, total: int | None, unit: str) -> str:
    """ "120 of 300 steps", or "1.2 MB of 8.0 MB"."""
    if unit == "bytes":
        return size(done) + (f" of {size(total)}" if total else "")
    return f"{done:,}" + (f" of {total:,}" if total is not None else "") + (f" {unit}" if unit else "")


def reached(job: Job) -> int:
    """How far it is. Answers that were not in a shard when an attempt was killed are made again, and a count that fell
    back would read as lost work: of rows it stays at the highest that attempts before reached, until this one passes
    it."""
    return max(job.done, job.done_before or 0) if job.kind.startswith("generate_") else job.done


def progress_words(job: Job) -> str:
    """One line: how far, how long still, what it is doing."""
    done = reached(job)
    parts = [counted(done, job.total, job.unit)] if job.unit or done else []
    if job.state == "RUNNING" and not job.cancel_requested:
        parts.append(time_left(job))
    if job.state in ("RUNNING", "INTERRUPTED") and job.progress_note:
        parts.append(job.progress_note)
    return " · ".join(parts)


def time_left(job: Job) -> str:
    """`1 min 35 s left`, or why that is not known. Of an evaluation that may repeat its questions, the worst case."""
    if job.total and job.done >= job.total:
        return "finishing…"
    if job.eta_seconds is None:
        return "measuring the time left…"
    return f"{'at most ' if longest_seconds(job) else ''}{duration(job.eta_seconds)} left"


def progress(job: Job) -> str:
    """A bar and its words; nothing for a job that has not begun."""
    if job.state == "QUEUED" and not job.done:
        return ""
    total = job.total if job.total else (1 if job.state == "SUCCEEDED" else None)
    done = min(reached(job), total) if total else 0
    if job.state == "SUCCEEDED":
        done = total
    if total is None and job.state != "RUNNING":
        return tag("p", safe(progress_words(job)), class_="sp-lead")
    return progress_bar(done, total, progress_words(job))


def banner(job: Job, waits_for: str = "") -> str:
    """One strip that says how the job is: the error with what to do, or what it waits for."""
    if job.state == "FAILED":
        return notice(" ".join(filter(None, (job.error or "The job failed without a message.", job.hint))), "bad")
    if job.state == "QUEUED":
        return notice(waits_for or "Waiting for a worker.", "warn")
    if paused(job):
        return notice(waits_for or f"{job.progress_note}.", "warn")
    if job.state == "INTERRUPTED":
        return notice("Its worker went away; it goes on from its last checkpoint as soon as a worker is free.", "warn")
    if job.state == "CANCELLED":
        return notice(job.error or "Stopped at your request.", "info")
    if job.state == "RUNNING" and job.cancel_requested:
        return notice("Stopping: the job saves what it has first.", "warn")
    if job.state == "RUNNING":
        return notice(f"Running on the server: you may close this page, it goes on{guessed(job)}.", "info")
    return notice(f"Done in {duration(seconds(job))}{guessed(job)}." if seconds(job) is not None else "Done.", "good")


def guessed(job: Job) -> str:
    """ " (estimated: 2 min)", where it was; the worst case of an evaluation too while it runs."""
    if not job.estimated_seconds:
        return ""
    longest = worst_case(longest_seconds(job)) if job.state == "RUNNING" else ""
    return f" (estimated: {', '.join(filter(None, (rounded(job.estimated_seconds), longest)))})"


def seconds(job: Job) -> float | None:
    """How long it took since it was first begun, or begun again after a retry."""
    if not job.started_at or not job.finished_at:
        return None
    return (job.finished_at - job.started_at).total_seconds()


def job_line(job: Job) -> str:
    """The way from what a job makes to its page."""
    return tag("p", tag("a", "Its job: log, cancel, retry", href=f"/jobs?id={job.id}"), class_="sp-lead")
