"""One evaluation: its figures, how it was measured, what a server gets beside it, the command that measures it."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.views import breakdown_view
from app.views.leaderboard import address, command, ends, model_words, names_of
from app.views.manage import note_line
from app.widgets.elements import badge, detail_head, facts, link_button, notice, row_note, tiles
from app.widgets.formatting import ago, figure, interval, yes_or_no
from app.widgets.picker import table
from app.widgets.review import command_box
from app.widgets.terms import label as labelled
from app.widgets.text import safe, tag
from tracking import reports
from tracking.evaluations import number
from tracking.leaderboard import LeaderboardView, counterparts
from tracking.replays import KEY as REPLAYED
from tracking.replays import is_replay
from tracking.tables import Evaluation, Job

SHOWN_SO_FAR = 100
"""Questions whose results are shown while an evaluation runs."""
SO_FAR = "Each is one short measurement; the report will give their speedup with its interval."
OF_QUESTION = {
    "mean_accepted_length": 2,
    "tokens_per_second": 1,
    "plain_tokens_per_second": 1,
    "end_to_end_speedup": 2,
}
"""Figures of a question, with their digits."""
Names = Mapping[str, str]
SLOWER = "Plain decoding would be faster here: the whole interval of the speedup lies below 1."
TRAINED, GETS = "What you trained", "What your server gets"


def view(session: Session, row: Evaluation) -> str:
    """All of it."""
    names = names_of(session, [row])
    found = so_far(session, row.job_id) if row.state == "pending" and row.job_id else report(session, row)
    return tag("div", _title(row, names) + note_line(row) + found + links(session, row), class_="sp-stack")


def report(session: Session, row: Evaluation, again: bool = True) -> str:
    """What was found and how, as an evaluation's page shows it and, without buttons (`again`), its job's page."""
    if is_replay(row.result):
        parts = replayed(row) + depths(row) + breakdown_view.parts(row, again)
        return parts + reproduce(row, names_of(session, [row]))
    beside = counterparts(session, row)
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
    """The report on the page of the job that measured it, the results of questions until there is one; "" on others'
    pages."""
    measures = job.kind in ("evaluate", "replay")
    row = session.get(Evaluation, job.request.get("evaluation_id") or "") if measures else None
    if row is None or row.state != "ready" or not row.result:
        return so_far(session, job.id) if measures else ""
    return tag("section", report(session, row, again=False), class_="sp-stack", id="job-report", aria_label="Report")


def so_far(session: Session, job_id: str) -> str:
    """What each question gave that an evaluation has finished, the newest first; "" while there is none."""
    kept = {sample.step: sample.record for sample in reports.samples(session, job_id, SHOWN_SO_FAR)}
    if not kept:
        return ""
    columns = ["Question", "τ", "Tokens/s", "Plain tokens/s", "× plain"]
    rows = [_so_far(record) for _, record in sorted(kept.items(), reverse=True)]
    head = tag("h3", "Results so far") + tag("p", SO_FAR, class_="sp-hint")
    return tag("section", head + table(columns, rows, "Results so far", wide_first=True, named=columns[1:]))


def _so_far(record: Mapping[str, Any]) -> list[str]:
    name = safe(str(record.get("question") or "")[:80]) + row_note(str(record.get("category") or "")[:80])
    return [name, *(safe(figure(number(record.get(key)), digits)) for key, digits in OF_QUESTION.items())]


def figures(row: Evaluation) -> str:
    """The figures people ask for first, each with its interval."""
    plain = row.plain_tokens_per_second
    return tiles(
        (
            ("Speed against plain", figure(row.speedup, unit="×"), _between(row, "speedup", " ×")),
            ("Mean accepted length τ", figure(row.tau), _between(row, "tau")),
            ("Tokens per second", figure(row.tokens_per_second, 1), f"plain {plain:.1f}" if plain else ""),
            (
                "Same words as plain",
                yes_or_no((row.result or {}).get("identical_to_plain")),
                "greedy, token for token" if row.temperature == 0 else "sampled: not compared",
            ),
        )
    )


def replayed(row: Evaluation) -> str:
    """The figures of a replay: nothing was timed, so its speed is what steps cost where that is known."""
    result, of = row.result, row.result[REPLAYED]
    between = interval(result, "mean_accepted_length")
    return tiles(
        (
            ("Mean accepted length τ", figure(number(result.get("mean_accepted_length"))), between),
            ("Projected speed", figure(number(result.get("projected_speedup")), unit="×"), "against plain"),
            ("Recorded answers", figure(number(of.get("rows")), 0), str(of.get("file") or "")),
        )
    )


def slower(row: Evaluation) -> str:
    """That plain decoding would be faster, where the whole interval says so."""
    high = row.speedup_high
    return notice(SLOWER, "warn") if high is not None and high < 1 and row.checkpoint_id else ""


def busy(result: Mapping[str, Any] | None) -> str:
    """The warning of a measurement beside other programs."""
    words = (result or {}).get("busy")
    return notice(str(words), "warn") if words else ""


def side_by_side(found: Sequence[Evaluation]) -> str:
    """The same draft on the same questions here and at servers; "" where there is one of the two only."""
    if len(found) < 2 or len({bool(each.source) for each in found}) < 2:
        return ""
    cells = [_beside(each) for each in found]
    columns = ["Where", "τ", "Speedup", "Tokens/s", "When"]
    head = tag("h3", safe(f"{TRAINED}, and {GETS[0].lower()}{GETS[1:]}"))
    return tag("section", head + table(columns, cells, "Side by side", wide_first=True, named=columns[1:]))


def details(row: Evaluation) -> str:
    """How it was measured."""
    result = row.result or {}
    source = result.get("source") if isinstance(result.get("source"), Mapping) else {}
    return facts(
        [
            ("Questions", row.questions),
            ("Prompts", result.get("prompts")),
            ("Most tokens a turn", result.get("max_tokens")),
            ("Temperature", f"{row.temperature:g}"),
            ("Top-p", f"{row.top_p:g}" if row.top_p != 1 else ""),
            ("Seed", result.get("seed") if row.temperature else ""),
            ("Tree", row.tree or ("" if row.source or not row.checkpoint_id else "the checkpoint's own")),
            ("Precision", row.dtype),
            ("Engine", result.get("engine")),
            ("Passes", result.get("passes")),
            ("Endpoint", row.source),
            ("Model there", source.get("model")),
            ("Server", source.get("server")),
            ("Its acceptance comes from", BY.get(str(source.get("by")), "") if row.source else ""),
            ("Machine", row.machine if not row.source else ""),
            ("Left out", len(result.get("skipped") or result.get("failed") or ()) or ""),
            ("Measured", ago(row.measured_at)),
            ("Id", row.id),
        ]
    )


BY = {
    "answers": "what it says with each answer",
    "counters": "its counters before and after each answer",
    "answers, counters": "its answers, and its counters where they say nothing",
    "gauge": "its gauge after the last answer, which others who use it move too",
    "": "nothing: it does not publish any",
}


def categories(row: Evaluation) -> str:
    """Figures by category; "" where there is one category only."""
    found = (row.result or {}).get("per_category") or {}
    if len(found) < 2:
        return ""
    columns = ["Category", "Speedup", "τ", "Tokens/s", "Prompts"]
    rows = [_category(name, values) for name, values in sorted(found.items())]
    return tag("h3", "By category") + table(columns, rows, "By category", wide_first=True, named=columns[1:])


def depths(row: Evaluation) -> str:
    """Acceptance by depth: of the tokens drafted there after accepted ones, how many the base took."""
    found = [value for value in (row.result or {}).get("acceptance_by_depth") or () if isinstance(value, int | float)]
    bars = "".join(_depth(depth, value) for depth, value in enumerate(found, 1))
    return tag("h3", labelled("Acceptance by depth")) + tag("ol", bars, class_="sp-bars sp-depths") if bars else ""


def _depth(depth: int, value: float) -> str:
    fill = tag("span", "", class_="sp-bar-fill", style=f"width: {min(max(value, 0), 1):.0%}")
    name = tag("span", safe(depth), class_="sp-bar-name", title=f"Depth {depth}")
    return tag("li", name + tag("span", fill, class_="sp-bar") + tag("span", f"{value:.0%}", class_="sp-bar-value"))


def reproduce(row: Evaluation, names: Names) -> str:
    """The command that measures it again."""
    return command_box(made) if (made := command(row, names)) else ""


def links(session: Session, row: Evaluation) -> str:
    """Where it comes from; a matrix may be deleted, its cells go on being cells."""
    matrix = session.get(Job, row.matrix_id) if row.matrix_id else None
    known = (
        (f"/jobs?id={row.job_id}", "Its job", row.job_id),
        (f"/jobs?id={row.matrix_id}", "The matrix it is a cell of", matrix),
        (address(LeaderboardView(matrix=row.matrix_id or "")), "The other cells", row.matrix_id),
        (f"/checkpoints?id={row.checkpoint_id}", "The checkpoint", row.checkpoint_id),
    )
    made = "".join(link_button(words, to) for to, words, is_there in known if is_there)
    return tag("div", made, class_="sp-link-row") if made else ""


def _title(row: Evaluation, names: Names) -> str:
    state = {"pending": ("Being measured", "info"), "failed": ("Not finished", "bad")}.get(row.state)
    marks = (badge(*state) if state else "") + badge("replay", "info") * is_replay(row.result)
    return detail_head(model_words(row, names), marks + badge(row.source, "info") * bool(row.source))


def _beside(row: Evaluation) -> list[str]:
    where = f"{GETS}: {row.source}" if row.source else f"{TRAINED}: this engine"
    name = tag("a", safe(where), href=f"/evaluations?id={row.id}", class_="sp-row-name")
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
        _with(figure(number(values.get("speedup")), unit="×"), interval(values, "speedup", " ×")),
        _with(figure(number(values.get("mean_accepted_length"))), interval(values, "mean_accepted_length")),
        safe(figure(number(values.get("tokens_per_second")), 1)),
        safe(values.get("prompts", "–")),
    ]


def _with(words: str, between: str) -> str:
    return safe(words) + (tag("span", safe(between), class_="sp-row-note sp-between") if between else "")


def _between(row: Evaluation, key: str, unit: str = "") -> str:
    return interval({f"{key}_interval": ends(row, key)}, key, unit)
