"""HTML of the jobs table and of the parts of one job's page."""

import json
from collections.abc import Callable, Iterable, Mapping
from textwrap import shorten
from typing import Any

from sqlalchemy.orm import Session

from app.i18n import N_, t
from app.views.checkpoint_rows import method_title
from app.views.job_view import ACTIVE, MARKS, PAUSED, STATES, counted, progress, progress_text, seconds, state_badge
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

COLUMNS = [N_("State"), N_("Job"), N_("Progress"), N_("Result"), N_("Time")]
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
        html = table([t(column) for column in COLUMNS], rows, t("Jobs"), named=(t("Result"),), count=count)
        return tag("div", html, class_="sp-jobs")
    if filtered:
        return empty_state(t("No matches"), t("No job matches the filter and the search."))
    return empty_state(
        t("No jobs yet"), t("Jobs appear when you add a model, import prompts or train."), "/", t("Go to Home")
    )


def waits_of(session: Session, jobs: Iterable[Job]) -> dict[str, str]:
    """Job id → position in its queue and what it waits for, for waiting jobs."""
    queues = listing.Queues(session)
    return {job.id: wait_text(queues, job) for job in jobs if job.state == JobState.QUEUED}


def wait_text(queues: listing.Queues, job: Job) -> str:
    position, reason = queues.position(job), queues.waits_for(job)
    if not position or position == 1:
        return reason
    return " ".join([t("Position {n} in the {queue} queue.", n=position, queue=job.queue), reason])


def _row(job: Job, waits_for: str, chosen: bool, as_links: bool) -> list[str]:
    attributes = {"data_pick": None} if as_links else {}
    name = pick("jobs", job.id, safe(job.name), class_="sp-row-name", **attributes)
    kind = row_note(kind_and_user(job))
    # "–" is hidden on narrow screens
    how = progress(job) if job.state != "SUCCEEDED" else ""
    text = progress_text(job) if job.state == "SUCCEEDED" else waits_for
    how = how or (row_note(text) if text else "–")
    if job.state == "FAILED":
        error = safe(shorten(job.error or "", 160, placeholder=" …"))
        how += tag("span", error, class_="sp-row-note sp-why", title=job.error)
    state = badge(t("Paused"), "warn") if waits_for.startswith(PAUSED) else state_badge(job)
    first = row_checkbox(job.id, job.name) + state if chosen else state
    result = safe(shorten(outcome(job) or "–", 160, placeholder=" …"))
    return [first, name + kind, how, result, row_note(time_text(job))]


def kind_and_user(job: Job) -> str:
    """`Train draft · Ada`: the job's kind and its user, if known."""
    return " · ".join(filter(None, (t(kind_title(job.kind)), job.user)))


def time_text(job: Job) -> str:
    if job.state == "QUEUED":
        return t("queued {ago}", ago=ago(job.created_at))
    if job.state in ACTIVE:
        return t("started {ago}", ago=ago(job.started_at))
    took = seconds(job)
    ended = t("ended {ago}", ago=ago(job.finished_at))
    return t("took {time}, {ended}", time=duration(took), ended=ended) if took is not None else ended


IMPORTED = {"rows": N_("{n:,.0f} rows"), "bad_rows": N_("{n:,.0f} skipped")}
GENERATED = {"rows": N_("{n:,.0f} responses"), "tokens": N_("{n:,.0f} tokens")}
RESULTS: Mapping[str, Mapping[str, str | Callable[[Any], str]]] = {
    **{
        "import_prompts": IMPORTED,
        "import_answered": IMPORTED,
        "generate_data": GENERATED,
        "generate_shard": GENERATED,
    },
    "train": {"mean_accepted_length": N_("held-out τ {n:.2f}"), "loss": N_("loss {n:.3f}")},
    "evaluate": {"mean_accepted_length": "τ {n:.2f}", "speedup": "{n:.2f} ×"},
    "replay": {"tau": "τ {n:.2f}", "projected_speedup": N_("{n:.2f} × projected")},
    **dict.fromkeys(("plan", "tune"), {"verdict": str}),
    "matrix": {"cells": N_("{n:,.0f} cells")},
    "export": {"format": str, "bytes": size},
    "prove": {"verdict": str},
    "serve": {"name": str},
    "install_server": {"package": str, "version": str},
    "import_draft": {"method": method_title},
    **dict.fromkeys(("fetch_model", "quantize"), {}),
}
"""Job kind → what its result shows: key → text of the value."""


def outcome(job: Job) -> str:
    """Short result of a finished job: rows, responses, loss and τ, τ and speedup."""
    if job.state != "SUCCEEDED" or not job.result:
        return ""
    values = [(job.result.get(key), formatter) for key, formatter in RESULTS.get(job.kind, {}).items()]
    shown = [
        (value, formatter) for value, formatter in values if value and (isinstance(value, str) or finite_number(value))
    ]
    return " · ".join(
        t(formatter, n=value) if isinstance(formatter, str) else formatter(value) for value, formatter in shown
    )


def shards_part(session: Session, job: Job) -> str:
    """Shards of a parent job as counts and squares, below its progress; "" for other jobs."""
    if not job.shards:
        return ""
    tally, is_matrix = shards.tally(session, job.id), job.kind == "matrix"
    html = ""
    if job.state != "RUNNING":  # else its progress says this
        html = tag("p", safe(f"{tally.summary(job.kind)}, {tally.done:,} {t(job.unit)}."), class_="sp-lead")
    for shard in shards.failed(session, job.id)[:MAX_FAILED] if tally.count(JobState.FAILED) else ():
        message = f"{_name(shard.number, is_matrix)}: {shard.error}"
        html += notice(message, "bad", f"/runs?id={shard.id}", t("Open"))
    if job.kind == "matrix":
        board = link_button(t("Show results on the leaderboard"), address(LeaderboardView(matrix=job.id)))
        html += tag("div", board, class_="sp-link-row")
    rows = shards.brief(session, job.id)
    if 0 < len(rows) <= SQUARES:
        legend = t("One square per cell.") if is_matrix else t("One square per shard.")
        legend += " " + t("✓: done, ▸: running, ✗: failed.")
        html += tag("p", safe(legend), class_="sp-hint")
        html += tag("ol", "".join(_square(shard, is_matrix) for shard in rows), class_="sp-shard-grid")
    return tag("section", html, class_="sp-shards", aria_label=t("Shards"))


def _name(number: int, is_cell: bool) -> str:
    return t("Cell {n}", n=number + 1) if is_cell else t("Shard {n}", n=number + 1)


def _square(shard: Any, is_cell: bool) -> str:
    label, tone = STATES.get(shard.state, (shard.state, ""))
    tone = "" if shard.state == "QUEUED" else tone
    description = f"{_name(shard.number, is_cell)}: {t(label).lower()}, {counted(shard.done, shard.total, '')}"
    kind = f"sp-shard sp-{tone}" if tone else "sp-shard"
    mark = MARKS.get(shard.state, "·")
    link = tag("a", mark, href=f"/runs?id={shard.id}", title=description, aria_label=description, class_=kind)
    return tag("li", link)


def belongs_to(session: Session, job: Job) -> str:
    """Links to the parent job of a shard and to the experiment; "" without them."""
    html = ""
    if job.parent_id:
        parent = tag("a", safe(session.get_one(Job, job.parent_id).name), href=f"/runs?id={job.parent_id}")
        html = t("{shard} of {job}.", shard=_name(job.number, job.kind == "evaluate"), job=parent) + " "
    if row := session.get(Experiment, job.experiment_id or ""):
        html += t("Experiment: {name}.", name=tag("a", safe(row.name), href=f"/runs/experiments?id={row.id}"))
    return html and tag("p", html, class_="sp-lead")


def attempts(times: Mapping[int, float]) -> str:
    rows = [
        (t("attempt {n}", n=number), t("took {time}", time=duration(took))) for number, took in sorted(times.items())
    ]
    return facts(rows) if len(rows) > 1 else ""


def title(job: Job) -> str:
    return detail_head(job.name, state_badge(job) + row_note(kind_and_user(job)))


def log_lines(lines: Iterable[JobLog]) -> str:
    """The log, newest line first, each line with its time and its level unless that is "info"."""
    items = "".join(_log_line(line) for line in reversed(list(lines)))
    if not items:
        return tag("p", t("The log is empty."), class_="sp-lead")
    return tag("ol", items, class_="sp-log", tabindex="0", aria_label=t("Log, newest line first"))


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
        heads.append(t("Step {n}", n=step) + (f" · τ {tau:.2f}" if isinstance(tau, int | float) else ""))
        cards[answer] = heads, sample_card("; ".join(heads), record, "".join(map(_token, tokens)))
    return "".join(card for _, card in cards.values()) or tag("p", t("No samples yet."), class_="sp-lead")


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
