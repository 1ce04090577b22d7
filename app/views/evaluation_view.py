"""HTML of one evaluation: figures, settings, comparison with servers, breakdown by depth, length, position and kind of
token, prompts with the lowest τ, and the command that repeats it."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy.orm import Session

from app.i18n import N_, plural, t
from app.views.leaderboard import (
    address,
    command,
    figure_cell,
    interval_ends,
    interval_note,
    model_label,
    names_of,
    tree_text,
)
from app.views.load_view import loads_view
from app.views.manage import note_line
from app.views.proof_view import proof_view
from app.widgets.elements import badge, detail_head, facts, fold, link_button, notice, row_note, tiles
from app.widgets.formatting import ago, figure, interval, yes_or_no
from app.widgets.intervals import Bar, bar_chart
from app.widgets.picker import table
from app.widgets.review import command_box
from app.widgets.text import safe, tag
from tracking import evaluations, reports
from tracking.evaluations import REPLAYED, finite_number, is_replay
from tracking.leaderboard import LeaderboardView, comparable_evaluations
from tracking.tables import Evaluation, Job

SHOWN_SO_FAR = 100
"""Maximum number of prompts shown while an evaluation runs."""
SO_FAR = N_("Each row is one short measurement. The report will show the speedup with its 95 % interval.")
OF_QUESTION = {"mean_accepted_length": 2, "tokens_per_second": 1, "plain_tokens_per_second": 1, "end_to_end_speedup": 2}
"""Figures of a prompt → digits."""
SLOWER = N_("Plain decoding is faster on this machine: the whole interval of the speedup is below 1.")
WORST = N_("Worst prompts")
SHOWN = 12
"""Maximum number of prompts in the table of the worst."""
DEPTHS = 8
"""Maximum number of depths in the table of categories."""
LONGEST = 120
"""Maximum number of characters of a prompt in it."""
HOW = N_("“Show its steps” runs the prompt again in the Playground and shows p and q of every candidate.")
ANSWERED_HERE = N_(
    "“Show its steps” runs the prompt on the local engine in the Playground. The response may differ from the "
    "evaluated one."
)
OF_SERVERS = N_("By position and by kind of token: unknown, because servers do not report which tokens were drafted.")
BY = {
    "answers": N_("statistics in each response"),
    "counters": N_("the server's counters before and after each response"),
    "answers, counters": N_("statistics in the responses, otherwise the server's counters"),
    "": N_("not available: the server publishes no statistics"),
}
"""Source of a server's acceptance → text."""


def view(session: Session, row: Evaluation) -> str:
    """The whole view of an evaluation; while it runs, its results so far."""
    state = {"pending": (t("Running"), "info"), "failed": (t("Not finished"), "bad")}.get(row.state)
    marks = (badge(*state) if state else "") + badge(t("replay"), "info") * is_replay(row.result)
    marks += badge(row.source, "info") * bool(row.source)
    title = detail_head(model_label(row, names_of(session, [row])), marks)
    results = so_far(session, row.job_id) if row.state == "pending" and row.job_id else report(session, row)
    return tag("div", title + note_line(row) + results + links(session, row), class_="sp-stack")


def report(session: Session, row: Evaluation, again: bool = True) -> str:
    """Results and settings, for the evaluation's page and, without buttons (`again` False), its job's page."""
    if is_replay(row.result):
        html = replayed(row)
    else:
        slower = row.speedup_high is not None and row.speedup_high < 1 and row.checkpoint_id
        warning = " ".join(filter(None, (evaluations.warnings(row.result), t(SLOWER) if slower else "")))
        html = (notice(warning, "warn") if warning else "") + figures(row)
    html += proof_view(row.result or {}) + loads_view(row.result or {}) + breakdown(row, again)
    if not is_replay(row.result):
        html += fold(t("By category"), categories(row))
        html += fold(t("Local engine and servers"), side_by_side(comparable_evaluations(session, row)))
        html += fold(t("Settings and machine"), details(row))
    line = command(row, names_of(session, [row]))
    return html + fold(t("Equivalent command"), command_box(line, "") if line else "")


def report_of(session: Session, job: Job) -> str:
    """The report on the page of the job that measured it; the results so far while the job runs; "" for other jobs."""
    measures = job.kind in ("evaluate", "replay", "prove")
    row = session.get(Evaluation, job.request.get("evaluation_id") or "") if measures else None
    if row is None or row.state != "ready" or not row.result:
        return so_far(session, job.id) if measures else ""
    return tag("section", report(session, row, again=False), class_="sp-stack", id="job-report", aria_label=t("Report"))


def so_far(session: Session, job_id: str) -> str:
    """Results of each finished prompt, newest first; "" without any."""
    records = {sample.step: sample.record for sample in reports.samples(session, job_id, SHOWN_SO_FAR)}
    if not records:
        return ""
    columns = [t("Question"), "τ", t("Tokens/s"), t("Baseline tokens/s"), t("Speedup")]
    rows = []
    for _, record in sorted(records.items(), reverse=True):
        name = safe(str(record.get("question") or "")[:80]) + row_note(str(record.get("category") or "")[:80])
        numbers = (figure(finite_number(record.get(key)), digits) for key, digits in OF_QUESTION.items())
        rows.append([name, *map(safe, numbers)])
    head = tag("h3", t("Results so far")) + tag("p", safe(t(SO_FAR)), class_="sp-hint")
    return tag("section", head + table(columns, rows, t("Results so far"), wide_first=True, named=columns[1:]))


def figures(row: Evaluation) -> str:
    plain = row.plain_tokens_per_second
    baseline = t("baseline {speed}", speed=f"{plain:.1f}") if plain else ""
    compared = t("sampled: not compared") if row.temperature else t("greedy, every token")
    between = {f"{key}_interval": interval_ends(row, key) for key in ("speedup", "tau")}
    same = yes_or_no((row.result or {}).get("identical_to_plain"))
    measured = (
        (t("Speedup"), figure(row.speedup, unit="×"), interval(between, "speedup", " ×")),
        (t("Mean accepted length (τ)"), figure(row.tau), interval(between, "tau")),
        (t("Tokens per second"), figure(row.tokens_per_second, 1), baseline),
        (t("Same output as the baseline"), same, compared),
    )
    return tiles(measured)


def replayed(row: Evaluation) -> str:
    """Tiles of a replay. It measures no time: the speed is projected from known step costs."""
    result, source = row.result, row.result[REPLAYED]
    between = interval(result, "mean_accepted_length")
    return tiles(
        (
            (t("Mean accepted length (τ)"), figure(finite_number(result.get("mean_accepted_length"))), between),
            (t("Projected speed"), figure(finite_number(result.get("projected_speedup")), unit="×"), t("vs. baseline")),
            (t("Recorded responses"), figure(finite_number(source.get("rows")), 0), str(source.get("file") or "")),
        )
    )


def side_by_side(rows: Sequence[Evaluation]) -> str:
    """The same draft on the same prompts on the local engine and on servers; "" without both."""
    if len(rows) < 2 or len({bool(row.source) for row in rows}) < 2:
        return ""
    columns = [t("Where"), "τ", t("Speedup"), t("Tokens/s"), t("When")]
    cells = []
    for row in rows:
        text = t("Server {name}", name=row.source) if row.source else t("Local engine")
        name = tag("a", safe(text), href=f"/results?id={row.id}", class_="sp-row-name") + row_note(row.machine or "")
        measured = [figure_cell(row, "tau"), figure_cell(row, "speedup", " ×")]
        cells.append([name, *measured, safe(figure(row.tokens_per_second, 1)), safe(ago(row.measured_at))])
    return table(columns, cells, t("Side by side"), wide_first=True, named=columns[1:])


def details(row: Evaluation) -> str:
    result = row.result or {}
    source = result.get("source") if isinstance(result.get("source"), Mapping) else {}
    return facts(
        [
            (t("Questions"), row.questions),
            (t("Prompts"), result.get("prompts")),
            (t("Max tokens per turn"), result.get("max_tokens")),
            (t("Temperature"), f"{row.temperature:g}"),
            (t("Top-p"), f"{row.top_p:g}" if row.top_p != 1 else ""),
            (t("Seed"), result.get("seed") if row.temperature else ""),
            (t("Tree"), tree_text(row, N_("the draft's own"))),
            (t("Precision"), row.dtype),
            (t("Engine"), result.get("engine")),
            (t("Passes"), result.get("passes")),
            (t("Endpoint"), row.source),
            (t("Model on the server"), source.get("model")),
            (t("Server"), source.get("server")),
            (t("Acceptance measured from"), t(BY.get(str(source.get("by")), "")) if row.source else ""),
            (t("Machine"), row.machine if not row.source else ""),
            (t("Skipped"), len(result.get("skipped") or result.get("failed") or ()) or ""),
            (t("Measured"), ago(row.measured_at)),
            ("ID", row.id),
        ]
    )


def categories(row: Evaluation) -> str:
    """Figures by category; "" with fewer than two categories."""
    results = (row.result or {}).get("per_category") or {}
    if len(results) < 2:
        return ""
    columns = [t("Category"), t("Speedup"), "τ", t("Acceptance by depth"), t("Tokens/s"), t("Prompts")]
    rows = []
    for name, values in sorted(results.items()):
        cells = [
            safe(figure(finite_number(values.get(key)), unit=unit)) + interval_note(interval(values, key, unit))
            for key, unit in (("speedup", "×"), ("mean_accepted_length", ""))
        ]
        speed = figure(finite_number(values.get("tokens_per_second")), 1)
        by_depth = " · ".join(f"{rate:.0%}" for rate in (values.get("acceptance_by_depth") or ())[:DEPTHS])
        rows.append([safe(name), *cells, safe(by_depth or "–"), safe(speed), safe(values.get("prompts", "–"))])
    return table(columns, rows, t("By category"), wide_first=True, named=columns[1:])


def links(session: Session, row: Evaluation) -> str:
    """Links to its job, matrix and checkpoint. The job of a matrix may be deleted while its cells remain."""
    matrix = session.get(Job, row.matrix_id) if row.matrix_id else None
    candidates = (
        (f"/runs?id={row.job_id}", t("Job"), row.job_id),
        (f"/runs?id={row.matrix_id}", t("Matrix"), matrix),
        (address(LeaderboardView(matrix=row.matrix_id or "")), t("Other cells of the matrix"), row.matrix_id),
        (f"/models/drafts?id={row.checkpoint_id}", t("Draft"), row.checkpoint_id),
    )
    buttons = "".join(link_button(label, to) for to, label, exists in candidates if exists)
    return tag("div", buttons, class_="sp-link-row") if buttons else ""


def breakdown(row: Evaluation, again: bool = True) -> str:
    """A chart, further charts and the worst prompts folded, and what servers do not tell; "" without drafting. `again`:
    prompts have a button that the evaluation's page handles."""
    result = row.result or {}
    drawn = [part(result) for part in (depths, lengths, by_position, by_class)]
    first, *others = [*filter(None, drawn)] or [""]
    more = tag("div", "".join(others), class_="sp-charts") if others else ""
    why = tag("p", safe(t(OF_SERVERS)), class_="sp-hint") if row.source and result.get("mean_accepted_length") else ""
    return first + fold(t("By length, position and kind of token"), more) + fold(t(WORST), worst(row, again)) + why


def depths(result: Mapping[str, Any]) -> str:
    """Acceptance rate of the tokens drafted at a depth whose predecessors were accepted."""
    rates = [rate for rate in result.get("acceptance_by_depth") or () if isinstance(rate, int | float)]
    rows = [Bar(t("Depth {n}", n=depth), rate, f"{rate:.0%}") for depth, rate in enumerate(rates, 1)]
    return bar_chart(t("Acceptance by depth"), rows)


def lengths(result: Mapping[str, Any]) -> str:
    counts = [count for count in result.get("lengths") or () if isinstance(count, int)]
    total = sum(counts)
    shares = [count / total for count in counts] if total else []
    rows = [Bar(plural("{n:,} token", "{n:,} tokens", n), share, f"{share:.0%}") for n, share in enumerate(shares, 1)]
    return bar_chart(t("Tokens per step"), rows, t("{n:,} steps; τ is their mean.", n=total))


def by_position(result: Mapping[str, Any]) -> str:
    spans = result.get("by_position") or []
    ends, rows = [*(later["from"] for _, later in pairwise(spans)), None], []
    for span, end in zip(spans, ends, strict=False):
        label = f"{span['from']} – {end - 1}" if end else t("from {n}", n=span["from"])
        rows.append(Bar(label, span["tau"], f"{span['tau']:.2f}"))
    return bar_chart(t("τ by position in the response"), rows, t("Number of response tokens before the step."))


def by_class(result: Mapping[str, Any]) -> str:
    rows = []
    for each in result.get("by_class") or ():
        share = each["drafted"] / each["tokens"] if each["tokens"] else 0.0
        rows.append(Bar(f"{t(each['class'])} ({each['tokens']:,})", share, f"{share:.0%}"))
    hint = t("Share of the generated tokens of a kind that came from accepted draft tokens.")
    return bar_chart(t("Drafted, by kind of token"), rows, hint)


def worst(row: Evaluation, again: bool) -> str:
    prompts = (row.result or {}).get("per_prompt") or []
    if not prompts:
        return ""
    columns = [t("Prompt"), "τ", t("Tokens"), t("Steps"), ""]
    has_buttons = again and row.base_id is not None
    rows = [_prompt(number, prompt, has_buttons) for number, prompt in enumerate(prompts[:SHOWN])]
    how = ANSWERED_HERE if row.source or is_replay(row.result) else HOW
    hint = tag("p", safe(t(how)), class_="sp-hint") if any(cells[-1] for cells in rows) else ""
    return hint + table(columns, rows, t(WORST), wide_first=True, named=columns[1:4])


def _prompt(number: int, prompt: Mapping[str, Any], has_button: bool) -> list[str]:
    messages = prompt.get("messages") or ()
    text = str(messages[-1].get("content", "")) if messages else ""
    turn = t("turn {n}", n=prompt["turn"] + 1) if prompt.get("turn") else ""
    named = " · ".join(filter(None, [str(prompt.get("id") or ""), str(prompt.get("category") or ""), turn]))
    shown = f"{text[:LONGEST].strip()}…" if len(text) > LONGEST else text
    name = tag("div", safe(shown or named)) + row_note(named if shown else "")
    acts = {"type": "button", "data_make": number, "aria_label": t("Show its steps: prompt {n}", n=number + 1)}
    button = tag("button", t("Show its steps"), class_="sp-small-button sp-one-line", **acts)
    numbers = [f"{prompt.get('tau', 0):.2f}", f"{prompt.get('tokens', 0):,}", f"{prompt.get('steps', 0):,}"]
    return [name, *map(safe, numbers), button if messages and has_button else ""]
