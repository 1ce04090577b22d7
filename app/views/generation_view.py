"""HTML of a running generation: rows, tokens, speeds, skipped rows with reasons and the first responses.
Text of models and users is escaped."""

from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

from sqlalchemy.orm import Session

from app.i18n import N_, t
from app.views.job_rows import sample_card
from app.views.job_view import shown_done
from app.widgets.elements import row_note, tiles
from app.widgets.formatting import duration
from app.widgets.picker import table
from app.widgets.text import safe, tag
from tracking import reports
from tracking.reports import ANSWERS, REJECTED_ROWS, GenerationProgress
from tracking.states import JobState
from tracking.tables import Job

KINDS = ("generate_data", "generate_shard")
SKIP_REASONS = {
    "failed": N_("The model or its server returned an error"),
    "empty": N_("The response is empty"),
    "cut": N_("The response was truncated"),
    "duplicate": N_("Duplicate"),
}
FIRST = 6
"""Number of responses and of skipped rows that are shown."""


def part(session: Session, job: Job) -> str:
    """Details below a generation's progress; "" for other jobs and before the first rows."""
    if job.kind not in KINDS or job.state == JobState.QUEUED:
        return ""
    now = reports.generation_progress(session, job.id)
    if not now.rows and not now.left_out:
        return ""
    shown = tiles(figures(job, now)) + speeds(now)
    if now.left_out:
        shown += skipped_rows_table(now.left_out, reports.generation_samples(session, job.id, REJECTED_ROWS, 4 * FIRST))
    return tag("section", shown, class_="sp-stack", aria_label=t("This generation"))


def figures(job: Job, now: GenerationProgress) -> list[tuple[str, object, str]]:
    """(name, value, note) of rows and tokens; while it runs also of speed and time left."""
    of = t("of {n:,}", n=job.total) if job.total else ""
    counted = [(t("Rows"), f"{max(shown_done(job), now.rows):,}", of), (t("Tokens"), f"{now.tokens:,}", t("generated"))]
    if job.state != JobState.RUNNING:
        return counted
    eta = duration(job.eta_seconds) if job.eta_seconds is not None else "–"
    return [*counted, (t("Speed"), f"{now.speed:,.0f}", t("tokens per second")), (t("Time left"), eta, "")]


def speeds(now: GenerationProgress) -> str:
    """Table of tokens per second of each worker and server; "" with fewer than two."""
    kinds = {t("worker"): now.workers, t("server"): now.servers}
    rows = [[safe(n), kind, f"{speed:,.0f}"] for kind, by_name in kinds.items() for n, speed in sorted(by_name.items())]
    columns = [t("Name"), t("Kind"), t("Tokens per second")]
    return table(columns, rows, t("Speeds"), wide_first=True, named=columns[2:]) if len(rows) > 1 else ""


def skipped_rows_table(counts: Mapping[str, int], examples: Sequence[Mapping[str, Any]]) -> str:
    by_kind = {str(each.get("kind")): each for each in reversed(examples)}
    rows = [
        [safe(t(SKIP_REASONS.get(kind, kind))), f"{counts[kind]:,}", _example(by_kind.get(kind))]
        for kind in sorted(counts)
    ]
    return table([t("Reason"), t("Rows"), t("Example")], rows, t("Skipped rows"), wide_first=True, named=(t("Rows"),))


def first_answers(session: Session, job: Job) -> str:
    html = ""
    for record in reports.generation_samples(session, job.id, ANSWERS, FIRST) if job.kind in KINDS else ():
        ended = t("truncated at the limit") if record.get("finish") == "length" else t("complete")
        html += sample_card(f"{record.get('id', '')} · {ended}", record, safe(record.get("text", "")))
    return html


def _example(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "–"
    reason = f"{record.get('id', '')}: {record.get('reason', '')}"
    text = shorten(str(record.get("text") or record.get("prompt") or ""), 120, placeholder=" …")
    return safe(reason) + " " + row_note(text)
