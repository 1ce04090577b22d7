"""Texts of jobs: state, progress with its estimate, and what a waiting job waits for."""

from collections.abc import Iterable

from sqlalchemy.orm import Session

from app.i18n import N_, t
from app.widgets.elements import Tone, badge, notice, progress_bar
from app.widgets.formatting import duration, rounded, size
from app.widgets.text import safe, tag
from tracking import listing
from tracking.tables import Job

ACTIVE = ("QUEUED", "RUNNING", "INTERRUPTED")
ENDLESS = ("serve",)
"""Kinds of jobs that run until they are stopped, so that they have neither a bar nor a time left."""
PAUSED = "Paused: "
"""Start of the note of a job that waits for memory or disk space on its worker's machine."""
STATES: dict[str, tuple[str, Tone | str]] = {
    "QUEUED": (N_("Waiting"), "warn"),
    "RUNNING": (N_("Running"), "info"),
    "INTERRUPTED": (N_("Interrupted"), "warn"),
    "SUCCEEDED": (N_("Done"), "good"),
    "FAILED": (N_("Failed"), "bad"),
    "CANCELLED": (N_("Cancelled"), ""),
}
MARKS = {"SUCCEEDED": "✓", "RUNNING": "▸", "FAILED": "✗", "CANCELLED": "–", "INTERRUPTED": "‖"}
"""Signs of states, for narrow cells."""


def state_label(job: Job) -> tuple[str, Tone | str]:
    if paused(job):
        return t("Paused"), "warn"
    if job.cancel_requested and job.state == "RUNNING":
        return t("Stopping…"), "warn"
    label, tone = STATES.get(job.state, (job.state, ""))
    return t(label), tone


def paused(job: Job) -> bool:
    """Whether it was interrupted because its worker's machine lacks memory or disk space; the note says which."""
    return job.state == "INTERRUPTED" and job.progress_note.startswith(PAUSED)


def state_badge(job: Job) -> str:
    return badge(*state_label(job))


def counted(done: int, total: int | None, unit: str) -> str:
    """ "120 of 300 steps", or "1.2 MB of 8.0 MB"."""
    if unit == "bytes":
        return t("{done} of {total}", done=size(done), total=size(total)) if total else size(done)
    text = f"{done:,}" if total is None else t("{done:,} of {total:,}", done=done, total=total)
    return f"{text} {t(unit)}".rstrip()


def shown_done(job: Job) -> int:
    """The progress to show. A new attempt of a generation repeats rows that were not yet in a shard; its count stays at
    the maximum of earlier attempts until it exceeds that, since a falling count would look like lost work."""
    return max(job.done, job.done_before or 0) if job.kind.startswith("generate_") else job.done


def progress_text(job: Job) -> str:
    done = shown_done(job)
    parts = [counted(done, job.total, job.unit)] if job.unit or done else []
    if stopped_early(job):
        parts.append(t("stopped early"))
    if job.state == "RUNNING" and not job.cancel_requested and job.kind not in ENDLESS:
        parts.append(time_left(job))
    if job.state in ("RUNNING", "INTERRUPTED") and job.progress_note:
        parts.append(job.progress_note)
    return " · ".join(parts)


def time_left(job: Job) -> str:
    """`1 min 35 s left`, or why it is unknown. The worst case for an evaluation that may repeat its prompts."""
    if job.total and job.done >= job.total:
        return t("finishing…")
    if job.eta_seconds is None:
        return t("estimating the time left…")
    remaining = duration(job.eta_seconds)
    return t("at most {time} left", time=remaining) if job.kind == "evaluate" else t("{time} left", time=remaining)


def stopped_early(job: Job) -> bool:
    """Whether a training succeeded before its last step, because of its time limit or patience."""
    return job.kind == "train" and job.state == "SUCCEEDED" and bool(job.total) and job.done < job.total


def progress(job: Job) -> str:
    """A progress bar with its text; "" for a job that has not started."""
    if job.state == "QUEUED" and not job.done:
        return ""
    total = job.total if job.total else (1 if job.state == "SUCCEEDED" else None)
    done = min(shown_done(job), total) if total else 0
    if job.state == "SUCCEEDED" and not stopped_early(job):
        done = total
    if total is None and (job.state != "RUNNING" or job.kind in ENDLESS):
        return tag("p", safe(progress_text(job)), class_="sp-lead")
    return progress_bar(done, total, progress_text(job))


def banner(job: Job, waits_for: str = "", results: Iterable[tuple[str, str, str]] = (), tone: Tone = "good") -> str:
    """A notice of the job's state: the error and its hint, what it waits for, or how it ended, with its
    `results` (sentence, URL, link text)."""
    if job.state == "FAILED":
        text = " ".join(filter(None, (job.error or t("The job failed without a message."), job.hint)))
        return notice(text, "bad", *(("/settings/storage", t("Free up space")) if "disk is full" in text else ()))
    if job.state == "QUEUED":
        return notice(waits_for or t("Waiting for a worker."), "warn")
    if paused(job):
        return notice(waits_for or f"{job.progress_note}.", "warn")
    if job.state == "INTERRUPTED":
        return notice(
            t("The worker stopped. The job continues from its last checkpoint as soon as a worker is free."), "warn"
        )
    if job.state == "CANCELLED":
        return notice(job.error or t("Stopped at your request."), "info")
    if job.state == "RUNNING" and job.cancel_requested:
        return notice(t("Stopping: the job saves its state first."), "warn")
    if job.state == "RUNNING":
        return notice(t("Running on the server{note}. You can close this page.", note=estimate_note(job)), "info")
    took = seconds(job)
    sentence = t("Done.") if took is None else t("Done in {time}{note}.", time=duration(took), note=estimate_note(job))
    return notice(sentence, tone, more=results)


def estimate_note(job: Job) -> str:
    """ " (estimated: 2 min)" if estimated."""
    return t(" (estimated: {time})", time=rounded(job.estimated_seconds)) if job.estimated_seconds else ""


def seconds(job: Job) -> float | None:
    """Duration since its start, or since its restart after a retry; None if it has not finished."""
    if not job.started_at or not job.finished_at:
        return None
    return (job.finished_at - job.started_at).total_seconds()


def making(session: Session, job: Job | None) -> str:
    """Progress, state and link of the job that makes a row; "" without one."""
    if job is None:
        return ""
    return progress(job) + banner(job, listing.Queues(session).waits_for(job)) + job_line(job)


def job_line(job: Job) -> str:
    return tag("p", tag("a", t("Open the job: log, cancel, retry"), href=f"/runs?id={job.id}"), class_="sp-lead")
