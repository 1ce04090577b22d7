"""HTML of the jobs table and of the parts of one job's page. Pure functions of rows."""

import json
from collections.abc import Callable, Iterable, Mapping
from textwrap import shorten
from typing import Any

from sqlalchemy.orm import Session

from app.views.checkpoint_rows import method_words
from app.views.job_view import ACTIVE, MARKS, PAUSED, STATES, progress, progress_words, seconds, state_badge
from app.views.leaderboard import address
from app.widgets.bulk import row_checkbox
from app.widgets.elements import badge, detail_head, empty_state, facts, link_button, notice, row_note
from app.widgets.formatting import ago, duration, size
from app.widgets.picker import pick, table
from app.widgets.text import safe, tag
from tracking import listing, shards
from tracking.evaluations import finite_number
from tracking.leaderboard import LeaderboardView
from tracking.states import JobState
from tracking.tables import Experiment, Job, JobLog
from workers.jobs.requests import kind_title

COLUMNS = ["State", "Job", "Progress", "Result", "Time"]
MAX_FAILED = 3
"""Maximum number of failed shards whose errors are shown."""
SQUARES = 1000
"""Maximum number of shards drawn as squares."""


def jobs_table(
    jobs: Iterable[Job],
    waits: Mapping[str, str],
    filtered: bool = False,
    chosen: bool = False,
    as_links: bool = False,
    count: str = "",
) -> str:
    """The table of jobs; `waits`: job id → what the job waits for; `chosen`: with checkboxes; `as_links`: the table is
    not on the page Jobs, so a click opens that page."""
    rows = [_row(job, waits.get(job.id, ""), chosen, as_links) for job in jobs]
    if rows:
        return tag("div", table(COLUMNS, rows, "Jobs", named=("Result",), count=count), class_="sp-jobs")
    if filtered:
        return empty_state("No matches", "No job matches the filter and the search.")
    return empty_state("No jobs yet", "Jobs appear when you add a model, import prompts or train.", "/", "Go to Home")


def waits_of(session: Session, jobs: Iterable[Job]) -> dict[str, str]:
    """Job id → position in its queue and what it waits for, for waiting jobs."""
    queues = listing.Queues(session)
    return {job.id: waits_words(queues, job) for job in jobs if job.state == JobState.QUEUED}


def waits_words(queues: listing.Queues, job: Job) -> str:
    position, reason = queues.position(job), queues.waits_for(job)
    return f"Position {position} in the {job.queue} queue. {reason}" if position and position > 1 else reason


def _row(job: Job, waits_for: str, chosen: bool, as_links: bool) -> list[str]:
    attributes = {"data_pick": None} if as_links else {}
    name = pick("jobs", job.id, safe(job.name), class_="sp-row-name", **attributes)
    kind = row_note(kind_and_user(job))
    # "–" is hidden on narrow screens
    how = progress(job) if job.state != "SUCCEEDED" else ""
    words = progress_words(job) if job.state == "SUCCEEDED" else waits_for
    how = how or (row_note(words) if words else "–")
    if job.state == "FAILED":
        error = safe(shorten(job.error or "", 160, placeholder=" …"))
        how += tag("span", error, class_="sp-row-note sp-why", title=job.error)
    state = badge("Paused", "warn") if waits_for.startswith(PAUSED) else state_badge(job)
    first = row_checkbox(job.id, job.name) + state if chosen else state
    result = safe(shorten(outcome(job) or "–", 160, placeholder=" …"))
    return [first, name + kind, how, result, row_note(time_words(job))]


def kind_and_user(job: Job) -> str:
    """`Train draft · Ada`: the job's kind and its user, if known."""
    return f"{kind_title(job.kind)} · {job.user}" if job.user else kind_title(job.kind)


def time_words(job: Job) -> str:
    if job.state == "QUEUED":
        return f"queued {ago(job.created_at)}"
    if job.state in ACTIVE:
        return f"started {ago(job.started_at)}"
    took = seconds(job)
    return (f"took {duration(took)}, " if took is not None else "") + f"ended {ago(job.finished_at)}"


Words = Callable[[Any], str]
IMPORTED: Mapping[str, Words] = {"rows": "{:,.0f} rows".format, "bad_rows": "{:,.0f} skipped".format}
GENERATED: Mapping[str, Words] = {"rows": "{:,.0f} responses".format, "tokens": "{:,.0f} tokens".format}
RESULTS: Mapping[str, Mapping[str, Words]] = {
    **{
        "import_prompts": IMPORTED,
        "import_answered": IMPORTED,
        "generate_data": GENERATED,
        "generate_shard": GENERATED,
    },
    "train": {"mean_accepted_length": "held-out τ {:.2f}".format, "loss": "loss {:.3f}".format},
    "evaluate": {"mean_accepted_length": "τ {:.2f}".format, "speedup": "{:.2f} ×".format},
    "replay": {"tau": "τ {:.2f}".format, "projected_speedup": "{:.2f} × projected".format},
    **dict.fromkeys(("plan", "tune"), {"verdict": str}),
    "matrix": {"cells": "{:,.0f} cells".format},
    "export": {"format": str, "bytes": size},
    "import_draft": {"method": method_words},
    **dict.fromkeys(("fetch_model", "quantize"), {}),
}
"""Job kind → what its result shows: key → text of the value."""


def outcome(job: Job) -> str:
    """Short result of a finished job: rows, responses, loss and τ, τ and speedup."""
    if job.state != "SUCCEEDED" or not job.result:
        return ""
    found = [(job.result.get(key), words) for key, words in RESULTS.get(job.kind, {}).items()]
    return " · ".join(
        words(value) for value, words in found if value and (isinstance(value, str) or finite_number(value))
    )


def shards_part(session: Session, job: Job) -> str:
    """Shards of a parent job as counts and squares, below its progress; "" for other jobs."""
    if not job.shards:
        return ""
    tally, noun = shards.tally(session, job.id), "Cell" if job.kind == "matrix" else "Shard"
    html = ""
    if job.state != "RUNNING":  # else its progress says this
        html = tag("p", safe(f"{tally.summary(job.kind)}, {tally.done:,} {job.unit}."), class_="sp-lead")
    for shard in shards.failed(session, job.id)[:MAX_FAILED] if tally.count(JobState.FAILED) else ():
        html += notice(f"{noun} {shard.number + 1}: {shard.error}", "bad", f"/runs?id={shard.id}", "Open")
    if job.kind == "matrix":
        board = link_button("Show results on the leaderboard", address(LeaderboardView(matrix=job.id)))
        html += tag("div", board, class_="sp-link-row")
    rows = shards.brief(session, job.id)
    if 0 < len(rows) <= SQUARES:
        legend = f"One square per {noun.lower()}. ✓: done, ▸: running, ✗: failed."
        html += tag("p", safe(legend), class_="sp-hint")
        html += tag("ol", "".join(_square(shard, noun) for shard in rows), class_="sp-shard-grid")
    return tag("section", html, class_="sp-shards", aria_label="Shards")


def _square(shard: Any, noun: str) -> str:
    word, tone = STATES.get(shard.state, (shard.state, ""))
    tone = "" if shard.state == "QUEUED" else tone
    counted = f"{shard.done:,} of {shard.total:,}" if shard.total is not None else f"{shard.done:,}"
    words = f"{noun} {shard.number + 1}: {word.lower()}, {counted}"
    kind = f"sp-shard sp-{tone}" if tone else "sp-shard"
    mark = MARKS.get(shard.state, "·")
    link = tag("a", mark, href=f"/runs?id={shard.id}", title=words, aria_label=words, class_=kind)
    return tag("li", link)


def belongs_to(session: Session, job: Job) -> str:
    """Links to the parent job of a shard and to the experiment; "" without them."""
    html = ""
    if job.parent_id:
        parent = tag("a", safe(session.get_one(Job, job.parent_id).name), href=f"/runs?id={job.parent_id}")
        html = f"{'Cell' if job.kind == 'evaluate' else 'Shard'} {job.number + 1} of {parent}. "
    if row := session.get(Experiment, job.experiment_id or ""):
        html += f"Experiment: {tag('a', safe(row.name), href=f'/runs/experiments?id={row.id}')}."
    return html and tag("p", html, class_="sp-lead")


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
        tokens = record.get("tokens")
        tokens = tokens if isinstance(tokens, list) else [{"text": record.get("text", ""), "origin": ""}]
        answer = (str(record.get("prompt", "")), "".join(str(token.get("text", "")) for token in tokens))
        heads, _ = cards.get(answer, ([], ""))
        tau = record.get("mean_accepted_length")
        heads.append(f"Step {step}" + (f" · τ {tau:.2f}" if isinstance(tau, int | float) else ""))
        cards[answer] = heads, sample_card("; ".join(heads), record, "".join(map(_token, tokens)))
    return "".join(card for _, card in cards.values()) or tag("p", "No samples yet.", class_="sp-lead")


def sample_card(head: str, record: Mapping[str, Any], text: str) -> str:
    """Card of one response; `text` is its HTML."""
    prompt = tag("p", safe(record.get("prompt", "")), class_="sp-sample-prompt")
    answer = tag("div", text, class_="sp-sample")
    return tag("section", tag("h3", safe(head)) + prompt + answer, class_="sp-sample-card")


def _token(token: Mapping[str, Any]) -> str:
    origins = set(token.get("origins") or [token.get("origin")])
    mark = "mixed" if len(origins) > 1 else "draft" if origins == {"draft"} else "plain"
    depth = min(int(token.get("depth") or 1), 4) if mark == "draft" else None
    return tag("span", safe(token.get("text", "")), class_=f"tr-token sp-{mark}", data_depth=depth)
