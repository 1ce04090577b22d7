"""The leaderboard as HTML, bar chart and CSV."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from sqlalchemy.orm import Session

from app.i18n import N_, plural, t
from app.widgets import spreadsheet
from app.widgets.elements import empty_state, row_note
from app.widgets.formatting import ago, figure
from app.widgets.intervals import Bar, bar_chart
from app.widgets.picker import pager_links, pick, table
from app.widgets.text import safe, tag
from speculoos.errors import BadInput
from speculoos.suites import suite_title
from tracking import queries
from tracking.evaluations import is_replay
from tracking.leaderboard import LeaderboardView
from tracking.paging import Page
from tracking.tables import Evaluation
from workers.jobs.request import command_for
from workers.jobs.requests import Evaluate, ReplayRequest, from_json

COLUMNS = {
    N_("Model"): "model",
    N_("Questions"): "suite",
    N_("Temperature"): "temperature",
    N_("Tree"): "tree",
    N_("Speedup"): "speedup",
    "τ": "tau",
    N_("Tokens/s"): "speed",
    N_("Measured on"): "machine",
    N_("When"): "made",
}
"""Column head → sort key."""
CSV = (
    *("id", "name", "base", "checkpoint", "suite", "questions", "temperature", "top_p", "tree", "dtype", "source"),
    *("machine", "speedup", "speedup_low", "speedup_high", "tau", "tau_low", "tau_high", "tokens_per_second"),
    *("plain_tokens_per_second", "prompts", "max_tokens", "created_at", "measured_at", "note", "command"),
)
SPEEDUP_BASIS = N_("Local engine: decoding steps, without the prompt. Servers: end to end, as a client measures.")
Names = Mapping[str, str]


def names_of(session: Session, rows: Sequence[Evaluation]) -> dict[str, str]:
    """id → name of their base models, checkpoints and prompt sets."""
    ids = [(row.base_id, row.checkpoint_id, str((row.config or {}).get("dataset_id") or "")) for row in rows]
    return queries.names(session, chain.from_iterable(ids))


def model_label(row: Evaluation, names: Names) -> str:
    """`starter@my-heads` with the current names; for a server's model without a local row, the evaluation's name."""
    base, checkpoint = names.get(row.base_id or "", ""), names.get(row.checkpoint_id or "", "")
    return f"{base}@{checkpoint}" if base and checkpoint else base or row.name


def leaderboard(shown: Page[Evaluation], names: Names, view: LeaderboardView) -> str:
    if not shown.rows:
        return empty_leaderboard(view)
    columns = [t(column) for column in COLUMNS]
    count = plural("{range} evaluation", "{range} evaluations", shown.total, range=shown.range)
    heads = {column: _head(column, key, view) for column, key in zip(columns, COLUMNS.values(), strict=True)}
    rows = [_row(row, names, view) for row in shown.rows]
    file = f"/api/evaluations.csv?{view.query()}".rstrip("?")
    tools = tag("a", "CSV", href=file, class_="sp-small-button", download="")
    if view.filtered:
        tools = tag("a", t("Show all"), href=address(LeaderboardView(sort=view.sort)), class_="sp-small-button") + tools
    listed = table(columns, rows, t("Evaluations"), True, columns[1:], heads, count, tools=tools)
    return listed + pager_links(shown, lambda offset: address(view, **{"from": offset}))


def question_count_text(row: Evaluation) -> str:
    """`24 questions`; "" if unknown."""
    count = (row.result or {}).get("prompts")
    return plural("{n:,} question", "{n:,} questions", count) if isinstance(count, int) and count else ""


def empty_leaderboard(view: LeaderboardView) -> str:
    if view.filtered:
        return empty_state(t("No matches"), t("No evaluation matches the filters."), "/results", t("Show all"))
    return empty_state(
        t("No evaluations yet"),
        t("Evaluate drafts above. Every result has a 95 % interval and the command that reproduces it."),
    )


def chart(rows: Sequence[Evaluation], names: Names, view: LeaderboardView) -> str:
    """Bars of τ if the list is sorted by it, otherwise of the speedup, for the rows with the most common settings."""
    by_tau = ("tau", t("Mean accepted length (τ)"), "")
    key, title, unit = by_tau if view.sort.endswith("tau") else ("speedup", t("Speedup"), " ×")
    alike: dict[str, list[Bar]] = {}
    for row in rows:
        if (value := getattr(row, key)) is not None:
            bar = Bar(model_label(row, names), value, f"{value:.2f}{unit}", *interval_ends(row, key), tree_text(row))
            alike.setdefault(settings_text(row), []).append(bar)
    if not alike:
        return ""
    settings, bars = max(alike.items(), key=lambda item: len(item[1]))
    others = sum(map(len, alike.values())) - len(bars)
    hint = t("Not compared: {n} with other settings. Filter the list to compare them.", n=others) if others else ""
    return bar_chart(f"{title}: {settings}", bars, hint, baseline=bool(unit))


def interval_ends(row: Evaluation, key: str) -> tuple[float | None, float | None]:
    return getattr(row, f"{key}_low"), getattr(row, f"{key}_high")


def figure_cell(row: Evaluation | None, key: str, unit: str = "", linked: bool = False) -> str:
    """The figure `key` with its interval in small print; `linked` to the evaluation."""
    value = getattr(row, key, None)
    if row is None or value is None:
        return "–"
    text, (low, high) = safe(f"{value:.2f}{unit}"), interval_ends(row, key)
    link = {"href": f"/results?id={row.id}"} if linked else {}
    between = "" if low is None or high is None else f"{low:.2f} – {high:.2f}"
    return tag("a" if linked else "b", text, class_="sp-figure", **link) + interval_note(between)


def interval_note(text: str) -> str:
    """An interval below its figure."""
    return tag("span", safe(text), class_="sp-row-note sp-between") if text else ""


def settings_text(row: Evaluation) -> str:
    """What comparable rows share: `GSM8K · 24 questions · T 0 · bfloat16 · on team · vLLM`."""
    top_p = f"top-p {row.top_p:g}" if row.top_p != 1 else ""
    server = t("on {server}", server=row.source) if row.source else ""
    parts = (row.questions, question_count_text(row), f"T {row.temperature:g}", top_p, row.dtype, server, row.machine)
    return " · ".join(filter(None, parts))


def limits_text(row: Evaluation) -> str:
    """`bfloat16 · max 128 tokens`."""
    most = (row.result or {}).get("max_tokens")
    return " · ".join(filter(None, (row.dtype, t("max {n} tokens", n=most) if most else "")))


def tree_text(row: Evaluation, own_label: str = N_("the draft's own tree")) -> str:
    """The tree of an evaluation, `own_label` for the draft's own; "" if there is none or a server chose it."""
    return row.tree or ("" if row.source or not row.checkpoint_id else t(own_label))


def address(view: LeaderboardView, **more: str) -> str:
    return f"/results?{query}" if (query := view.query(**more)) else "/results"


def as_csv(rows: Sequence[Evaluation], names: Names) -> str:
    return spreadsheet.as_csv(CSV, [_record(row, names) for row in rows])


def command(row: Evaluation, names: Names) -> str:
    """The command that repeats the evaluation; "" if its request is not stored."""
    try:
        request = from_json("replay" if is_replay(row.result) else "evaluate", row.config or {})
    except (BadInput, TypeError):
        return ""
    assert isinstance(request, Evaluate | ReplayRequest)
    has_target = request.base_id or (isinstance(request, Evaluate) and request.endpoint)
    return command_for(request, names) if has_target else ""


def _record(row: Evaluation, names: Names) -> dict[str, Any]:
    stored = {key: getattr(row, key) for key in CSV if hasattr(Evaluation, key)}
    result = row.result or {}
    return {
        **stored,
        "base": names.get(row.base_id or "", ""),
        "checkpoint": names.get(row.checkpoint_id or "", ""),
        "suite": suite_title(row.suite) or row.suite,
        "prompts": result.get("prompts"),
        "max_tokens": result.get("max_tokens"),
        "created_at": row.created_at.isoformat(),
        "measured_at": row.measured_at.isoformat(),
        "command": command(row, names),
    }


def _head(column: str, key: str, view: LeaderboardView) -> str:
    orders = {key: (" ↑", t("ascending")), f"-{key}": (" ↓", t("descending"))}
    sign, order = orders.get(view.sort, ("", t("by another column")))
    title = t("Sort by {column}, now {order}", column=column, order=order)
    title += f". {t(SPEEDUP_BASIS)}" if key == "speedup" else ""
    return tag("a", safe(column + sign), href=address(view.sorted_by(key)), data_pick="", title=title)


def _row(row: Evaluation, names: Names, view: LeaderboardView) -> list[str]:
    label, where = (
        safe(model_label(row, names)),
        t("server {name}", name=row.source) + f", {row.machine}" if row.source else row.machine or "–",
    )
    name = pick("evaluations", row.id, label, href=address(view, id=row.id), class_="sp-row-name")
    return [
        name + row_note(row.note),
        safe(row.questions or "–") + tag("div", row_note(question_count_text(row))),
        safe(f"{row.temperature:g}"),
        safe(tree_text(row, N_("the draft's own")) or "–"),
        figure_cell(row, "speedup", " ×") + row_note(t("end to end") if row.source and row.speedup else ""),
        figure_cell(row, "tau"),
        safe(figure(row.tokens_per_second, 1)),
        safe(where) + tag("div", row_note(limits_text(row))),
        safe(ago(row.measured_at)),
    ]
