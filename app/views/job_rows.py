"""HTML of the jobs table and of the parts of one job's page. Pure functions of rows."""

import json
from collections.abc import Iterable, Mapping
from textwrap import shorten
from typing import Any

from app.views.job_view import ACTIVE, PAUSED, progress, progress_words, seconds, state_badge
from app.views.outcomes import outcome
from app.widgets.bulk import row_checkbox
from app.widgets.elements import badge, detail_head, empty_state, facts, row_note
from app.widgets.formatting import ago, duration
from app.widgets.picker import pick, table
from app.widgets.text import safe, tag
from tracking import listing
from tracking.tables import Job, JobLog
from workers.jobs.requests import kind_title

COLUMNS = ["State", "Job", "Progress", "Result", "Time"]


def jobs_table(
    jobs: Iterable[Job],
    waits: Mapping[str, str],
    filtered: bool = False,
    chosen: bool = False,
    elsewhere: bool = False,
) -> str:
    """The table of jobs; `waits`: job id → what the job waits for; `chosen`: with checkboxes; `elsewhere`: the table is
    not on the page Jobs, so a click opens that page."""
    rows = [_row(job, waits.get(job.id, ""), chosen, elsewhere) for job in jobs]
    if rows:
        return tag("div", table(COLUMNS, rows, "Jobs", named=("Result",)), class_="sp-jobs")
    if filtered:
        return empty_state("None of these", "No job matches the filter and the search. Change them, or choose “All”.")
    return empty_state(
        "No jobs yet", "Jobs appear when you add a model, import prompts or train.", "/", "Go to Quickstart"
    )


def waits_words(queues: listing.Queues, job: Job) -> str:
    """Position of a waiting job in its queue, and what it waits for."""
    position, reason = queues.place(job), queues.waits_for(job)
    return f"Position {position} in the {job.queue} queue. {reason}" if position and position > 1 else reason


def _row(job: Job, waits_for: str, chosen: bool, elsewhere: bool) -> list[str]:
    attributes = {"data_pick": None} if elsewhere else {}
    name = pick("jobs", job.id, safe(job.name), class_="sp-row-name", **attributes)
    kind = row_note(kind_and_user(job))
    how = _how(job, waits_for)
    if job.state == "FAILED":
        how += tag(
            "span", safe(shorten(job.error or "", 160, placeholder=" …")), class_="sp-row-note sp-why", title=job.error
        )
    state = badge("Paused", "warn") if waits_for.startswith(PAUSED) else state_badge(job)
    first = row_checkbox(job.id, job.name) + state if chosen else state
    result = safe(shorten(outcome(job) or "–", 160, placeholder=" …"))
    return [first, name + kind, how, result, row_note(time_words(job))]


def _how(job: Job, waits_for: str) -> str:
    """A progress bar; for a finished job its final counts."""
    if job.state == "SUCCEEDED":
        return _note(progress_words(job))
    return progress(job) or _note(waits_for)


def _note(words: str) -> str:
    """A cell's text; "–", which cards on narrow screens hide, if it is empty."""
    return row_note(words) if words else "–"


def kind_and_user(job: Job) -> str:
    """`Train draft · Ada`: the job's kind and its user, if known."""
    return f"{kind_title(job.kind)} · {job.user}" if job.user else kind_title(job.kind)


def time_words(job: Job) -> str:
    """When a job was queued or started, or its duration and end."""
    if job.state == "QUEUED":
        return f"queued {ago(job.created_at)}"
    if job.state in ACTIVE:
        return f"started {ago(job.started_at)}"
    took = seconds(job)
    return (f"took {duration(took)}, " if took is not None else "") + f"ended {ago(job.finished_at)}"


def attempts(times: Mapping[int, float]) -> str:
    rows = [(f"attempt {number}", f"took {duration(took)}") for number, took in sorted(times.items())]
    return facts(rows) if len(rows) > 1 else ""


def title(job: Job) -> str:
    return detail_head(job.name, state_badge(job) + row_note(kind_and_user(job)))


def log_lines(lines: Iterable[JobLog]) -> str:
    """The log, newest line first, each line with its time and its level unless that is "info"."""
    items = "".join(_log_line(line) for line in reversed(list(lines)))
    if not items:
        return tag("p", "The log is empty.", class_="sp-lead")
    return tag("ol", items, class_="sp-log", tabindex="0", aria_label="Log, newest line first")


def _log_line(line: JobLog) -> str:
    level = "" if line.level == "info" else tag("b", safe(line.level))
    time = tag("time", line.at.strftime("%H:%M:%S"), datetime=line.at.isoformat())
    return tag("li", time + level + tag("span", safe(line.message)), class_=f"sp-log-{safe(line.level)}")


def config(job: Job, names: Mapping[str, str]) -> str:
    """The job's request, ids replaced by names."""
    plain = {k: v for k, v in job.request.items() if v not in ("", None, {}, [])}
    settings = plain.pop("settings", {})
    rows = [(key.removesuffix("_id").replace("_", " "), _value(value, names)) for key, value in plain.items()]
    rows += [(key, _value(value, names)) for key, value in settings.items()]
    rows += [("attempt", job.attempt), ("queue", job.queue), ("id", job.id)]
    return facts(rows)


def _value(value: Any, names: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return ", ".join(names.get(each, each) for each in value)
    return json.dumps(value, ensure_ascii=False)


def samples(records: Iterable[tuple[int, dict[str, Any]]]) -> str:
    """Samples of a training: prompt and response with accepted draft tokens marked. The base model's greedy response is
    the same at every step, so it is shown once, with the last step's marks and τ at each step."""
    cards: dict[tuple[str, str], tuple[list[str], str]] = {}
    for step, record in records:
        answer = (str(record.get("prompt", "")), _answer(record))
        heads, _ = cards.get(answer, ([], ""))
        heads.append(_step(step, record))
        cards[answer] = heads, sample_card("; ".join(heads), record, _drafted(record))
    return "".join(card for _, card in cards.values()) or tag("p", "No samples yet.", class_="sp-lead")


def _step(step: int, record: Mapping[str, Any]) -> str:
    tau = record.get("mean_accepted_length")
    return f"Step {step}" + (f" · τ {tau:.2f}" if isinstance(tau, int | float) else "")


def _answer(record: Mapping[str, Any]) -> str:
    tokens = record.get("tokens")
    return "".join(str(t.get("text", "")) for t in tokens) if isinstance(tokens, list) else str(record.get("text", ""))


def _drafted(record: Mapping[str, Any]) -> str:
    tokens = record.get("tokens")
    return "".join(_token(t) for t in tokens) if isinstance(tokens, list) else safe(record.get("text", ""))


def sample_card(head: str, record: Mapping[str, Any], text: str) -> str:
    """Card of one response; `text` is its HTML."""
    prompt = tag("p", safe(record.get("prompt", "")), class_="sp-sample-prompt")
    answer = tag("div", text, class_="sp-sample")
    return tag("section", tag("h3", safe(head)) + prompt + answer, class_="sp-sample-card")


def _token(token: Mapping[str, Any]) -> str:
    origin = token.get("origin", "plain")
    mark = origin if origin in ("draft", "target", "plain") else "plain"
    return tag("span", safe(token.get("text", "")), class_=f"sp-token-{mark}")
