"""HTML of one evaluation: figures, settings, comparison with servers, and the command that repeats it."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.views import breakdown_view
from app.views.leaderboard import address, command, interval_ends, model_words, names_of
from app.views.manage import note_line
from app.widgets.elements import badge, detail_head, facts, link_button, notice, row_note, tiles
from app.widgets.formatting import ago, figure, interval, yes_or_no
from app.widgets.picker import table
from app.widgets.review import command_box
from app.widgets.terms import label as labelled
from app.widgets.text import safe, tag
from tracking import reports
from tracking.evaluations import REPLAYED, finite_number, is_replay
from tracking.leaderboard import LeaderboardView, comparable_evaluations
from tracking.tables import Evaluation, Job

SHOWN_SO_FAR = 100
"""Maximum number of prompts shown while an evaluation runs."""
SO_FAR = "Each row is one short measurement. The report will show the speedup with its 95 % interval."
OF_QUESTION = {
    "mean_accepted_length": 2,
    "tokens_per_second": 1,
    "plain_tokens_per_second": 1,
    "end_to_end_speedup": 2,
}
"""Figures of a prompt → digits."""
Names = Mapping[str, str]
SLOWER = "Plain decoding is faster on this machine: the whole interval of the speedup is below 1."


def view(session: Session, row: Evaluation) -> str:
    """The whole view of an evaluation; while it runs, its results so far."""
    names = names_of(session, [row])
    results = so_far(session, row.job_id) if row.state == "pending" and row.job_id else report(session, row)
    return tag("div", _title(row, names) + note_line(row) + results + links(session, row), class_="sp-stack")


def report(session: Session, row: Evaluation, again: bool = True) -> str:
    """Results and settings, for the evaluation's page and, without buttons (`again` False), its job's page."""
    if is_replay(row.result):
        parts = replayed(row) + depths(row) + breakdown_view.parts(row, again)
        return parts + reproduce(row, names_of(session, [row]))
    beside = comparable_evaluations(session, row)
    names = names_of(session, [row])
    parts = (
        busy(row.result),
        figures(row),
        slower(row),
        side_by_side(beside),
        details(row),
        categories(row),
        depths(row),
        breakdown_view.parts(row, again),
        reproduce(row, names),
    )
    return "".join(parts)


def report_of(session: Session, job: Job) -> str:
    """The report on the page of the job that measured it; the results so far while the job runs; "" for other jobs."""
    measures = job.kind in ("evaluate", "replay")
    row = session.get(Evaluation, job.request.get("evaluation_id") or "") if measures else None
    if row is None or row.state != "ready" or not row.result:
        return so_far(session, job.id) if measures else ""
    return tag("section", report(session, row, again=False), class_="sp-stack", id="job-report", aria_label="Report")


def so_far(session: Session, job_id: str) -> str:
    """Results of each finished prompt, newest first; "" without any."""
    records = {sample.step: sample.record for sample in reports.samples(session, job_id, SHOWN_SO_FAR)}
    if not records:
        return ""
    columns = ["Question", "τ", "Tokens/s", "Plain tokens/s", "× plain"]
    rows = [_so_far(record) for _, record in sorted(records.items(), reverse=True)]
    head = tag("h3", "Results so far") + tag("p", SO_FAR, class_="sp-hint")
    return tag("section", head + table(columns, rows, "Results so far", wide_first=True, named=columns[1:]))


def _so_far(record: Mapping[str, Any]) -> list[str]:
    name = safe(str(record.get("question") or "")[:80]) + row_note(str(record.get("category") or "")[:80])
    return [name, *(safe(figure(finite_number(record.get(key)), digits)) for key, digits in OF_QUESTION.items())]


def figures(row: Evaluation) -> str:
    plain = row.plain_tokens_per_second
    return tiles(
        (
            ("Speedup", figure(row.speedup, unit="×"), _between(row, "speedup", " ×")),
            ("Mean accepted length τ", figure(row.tau), _between(row, "tau")),
            ("Tokens per second", figure(row.tokens_per_second, 1), f"plain {plain:.1f}" if plain else ""),
            (
                "Same output as plain",
                yes_or_no((row.result or {}).get("identical_to_plain")),
                "greedy, token for token" if row.temperature == 0 else "sampled: not compared",
            ),
        )
    )


def replayed(row: Evaluation) -> str:
    """Tiles of a replay. It measures no time: the speed is projected from known step costs."""
    result, source = row.result, row.result[REPLAYED]
    between = interval(result, "mean_accepted_length")
    return tiles(
        (
            ("Mean accepted length τ", figure(finite_number(result.get("mean_accepted_length"))), between),
            ("Projected speed", figure(finite_number(result.get("projected_speedup")), unit="×"), "vs. plain"),
            ("Recorded responses", figure(finite_number(source.get("rows")), 0), str(source.get("file") or "")),
        )
    )


def slower(row: Evaluation) -> str:
    """A warning that plain decoding is faster, if the whole interval of the speedup is below 1."""
    high = row.speedup_high
    return notice(SLOWER, "warn") if high is not None and high < 1 and row.checkpoint_id else ""


def busy(result: Mapping[str, Any] | None) -> str:
    words = (result or {}).get("busy")
    return notice(str(words), "warn") if words else ""


def side_by_side(rows: Sequence[Evaluation]) -> str:
    """The same draft on the same prompts on the local engine and on servers; "" without both."""
    if len(rows) < 2 or len({bool(row.source) for row in rows}) < 2:
        return ""
    cells = [_beside(row) for row in rows]
    columns = ["Where", "τ", "Speedup", "Tokens/s", "When"]
    head = tag("h3", "Local engine and servers")
    return tag("section", head + table(columns, cells, "Side by side", wide_first=True, named=columns[1:]))


def details(row: Evaluation) -> str:
    result = row.result or {}
    source = result.get("source") if isinstance(result.get("source"), Mapping) else {}
    return facts(
        [
            ("Questions", row.questions),
            ("Prompts", result.get("prompts")),
            ("Max tokens per turn", result.get("max_tokens")),
            ("Temperature", f"{row.temperature:g}"),
            ("Top-p", f"{row.top_p:g}" if row.top_p != 1 else ""),
            ("Seed", result.get("seed") if row.temperature else ""),
            ("Tree", row.tree or ("" if row.source or not row.checkpoint_id else "the checkpoint's own")),
            ("Precision", row.dtype),
            ("Engine", result.get("engine")),
            ("Passes", result.get("passes")),
            ("Endpoint", row.source),
            ("Model on the server", source.get("model")),
            ("Server", source.get("server")),
            ("Acceptance measured from", BY.get(str(source.get("by")), "") if row.source else ""),
            ("Machine", row.machine if not row.source else ""),
            ("Skipped", len(result.get("skipped") or result.get("failed") or ()) or ""),
            ("Measured", ago(row.measured_at)),
            ("ID", row.id),
        ]
    )


BY = {
    "answers": "statistics in each response",
    "counters": "the server's counters before and after each response",
    "answers, counters": "statistics in the responses, otherwise the server's counters",
    "gauge": "the server's gauge after the last response, which includes requests of other clients",
    "": "not available: the server publishes no statistics",
}


def categories(row: Evaluation) -> str:
    """Figures by category; "" with fewer than two categories."""
    results = (row.result or {}).get("per_category") or {}
    if len(results) < 2:
        return ""
    columns = ["Category", "Speedup", "τ", "Tokens/s", "Prompts"]
    rows = [_category(name, values) for name, values in sorted(results.items())]
    return tag("h3", "By category") + table(columns, rows, "By category", wide_first=True, named=columns[1:])


def depths(row: Evaluation) -> str:
    """Acceptance by depth: acceptance rate of the tokens drafted at a depth whose predecessors were accepted."""
    rates = [value for value in (row.result or {}).get("acceptance_by_depth") or () if isinstance(value, int | float)]
    bars = "".join(_depth(depth, value) for depth, value in enumerate(rates, 1))
    return tag("h3", labelled("Acceptance by depth")) + tag("ol", bars, class_="sp-bars sp-depths") if bars else ""


def _depth(depth: int, value: float) -> str:
    fill = tag("span", "", class_="sp-bar-fill", style=f"width: {min(max(value, 0), 1):.0%}")
    name = tag("span", safe(depth), class_="sp-bar-name", title=f"Depth {depth}")
    return tag("li", name + tag("span", fill, class_="sp-bar") + tag("span", f"{value:.0%}", class_="sp-bar-value"))


def reproduce(row: Evaluation, names: Names) -> str:
    return command_box(line) if (line := command(row, names)) else ""


def links(session: Session, row: Evaluation) -> str:
    """Links to its job, matrix and checkpoint. The job of a matrix may be deleted while its cells remain."""
    matrix = session.get(Job, row.matrix_id) if row.matrix_id else None
    candidates = (
        (f"/jobs?id={row.job_id}", "Job", row.job_id),
        (f"/jobs?id={row.matrix_id}", "Matrix", matrix),
        (address(LeaderboardView(matrix=row.matrix_id or "")), "Other cells of the matrix", row.matrix_id),
        (f"/checkpoints?id={row.checkpoint_id}", "Checkpoint", row.checkpoint_id),
    )
    buttons = "".join(link_button(words, to) for to, words, exists in candidates if exists)
    return tag("div", buttons, class_="sp-link-row") if buttons else ""


def _title(row: Evaluation, names: Names) -> str:
    state = {"pending": ("Running", "info"), "failed": ("Not finished", "bad")}.get(row.state)
    marks = (badge(*state) if state else "") + badge("replay", "info") * is_replay(row.result)
    return detail_head(model_words(row, names), marks + badge(row.source, "info") * bool(row.source))


def _beside(row: Evaluation) -> list[str]:
    text = f"Server {row.source}" if row.source else "Local engine"
    name = tag("a", safe(text), href=f"/evaluations?id={row.id}", class_="sp-row-name")
    return [
        name + row_note(row.machine or ""),
        _with(figure(row.tau), _between(row, "tau")),
        _with(figure(row.speedup, unit="×"), _between(row, "speedup", " ×")),
        safe(figure(row.tokens_per_second, 1)),
        safe(ago(row.measured_at)),
    ]


def _category(name: str, values: Mapping[str, Any]) -> list[str]:
    return [
        safe(name),
        _with(figure(finite_number(values.get("speedup")), unit="×"), interval(values, "speedup", " ×")),
        _with(figure(finite_number(values.get("mean_accepted_length"))), interval(values, "mean_accepted_length")),
        safe(figure(finite_number(values.get("tokens_per_second")), 1)),
        safe(values.get("prompts", "–")),
    ]


def _with(words: str, between: str) -> str:
    return safe(words) + (tag("span", safe(between), class_="sp-row-note sp-between") if between else "")


def _between(row: Evaluation, key: str, unit: str = "") -> str:
    return interval({f"{key}_interval": interval_ends(row, key)}, key, unit)
