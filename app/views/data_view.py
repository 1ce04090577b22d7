"""HTML of datasets: the list, the facts, rows left out of an import, and rows with their loss mask."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.i18n import N_, plural, t
from app.views.job_view import banner, job_line
from app.widgets.charts import line_chart
from app.widgets.elements import badge, detail_head, empty_state, facts, notice, row_note
from app.widgets.formatting import ago, duration
from app.widgets.picker import pick, table
from app.widgets.text import safe, tag
from speculoos.suites import suite_title as title_of_suite
from tracking.tables import Base, Dataset, Job

KINDS = {"prompts": N_("Prompts"), "conversations": N_("Conversations")}
STATES = {"pending": (N_("In progress"), "info"), "failed": (N_("Failed"), "bad"), "ready": (N_("Ready"), "good")}
SHOWN_SPANS = 20
"""Maximum number of ranges of skipped lines of one reason."""
NO_ROW = N_("No row could be used: {reason} Expected are lines such as `{example}`.")
EXAMPLE = '{"prompt": "…"}'
COLUMNS = [N_("Dataset"), N_("Kind"), N_("Rows"), N_("State"), N_("Created")]


def data_table(datasets: Iterable[Dataset], filtered: bool, count: str) -> str:
    rows = []
    for data in datasets:
        name = pick("data", data.id, safe(data.name), class_="sp-row-name") + row_note(data.note)
        number = f"{data.rows:,}" if data.rows else "–"
        number += " " + t("({n:,} skipped)", n=data.bad_rows) if data.rows and data.bad_rows else ""
        kind, created = safe(t(KINDS.get(data.kind, data.kind))), row_note(ago(data.created_at))
        rows.append([name, kind, safe(number), state_badge(data), created])
    if rows:
        return table([t(column) for column in COLUMNS], rows, t("Datasets"), True, (t("Rows"),), count=count)
    if filtered:
        return empty_state(t("No matches"), t("No dataset matches the filter and the search."))
    return empty_state(
        t("No datasets yet"), t("Import prompts or add the sample ones, then generate responses to train a draft on.")
    )


def state_badge(row: Base | Dataset) -> str:
    label, tone = STATES.get(row.state, (row.state, ""))
    return badge(t(label), tone)


def title(data: Dataset) -> str:
    return detail_head(data.name, state_badge(data) + row_note(t(KINDS.get(data.kind, data.kind))))


def state(data: Dataset, job: Job | None, progress: str) -> str:
    """`progress` of the job that makes the dataset, or notices about its rows."""
    if data.state != "ready":
        first = next(iter(reasons(data)), "")
        sentence = t(NO_ROW, reason=first, example=EXAMPLE) if first else t("This dataset was not finished.")
        return progress or notice(sentence, "bad", "/data", t("Import again"))
    complete = (data.report or {}).get("complete", True)
    html = ("" if complete else notice(t(CUT_SHORT), "info")) + _truncation_warning(data)
    if job is None or job.state not in (("FAILED", "CANCELLED") if complete else ("FAILED",)):
        return html
    return html + notice(t(AS_BEFORE), "warn") + banner(job) + job_line(job)


def _truncation_warning(data: Dataset) -> str:
    """Warning if the token limit truncated so many responses that a draft rarely sees the end of one."""
    count, total = cut_answers(data.report or {})
    if not total or count / total < MANY_CUT:
        return ""
    share = {"n": f"{count:,}", "total": f"{total:,}", "share": f"{count / total:.0%}"}
    limit = (data.config or {}).get("max_tokens")
    cut = t(CUT_AT, limit=f"{limit:,}", **share) if isinstance(limit, int) else t(CUT, **share)
    return notice(f"{cut} " + t("Raise “Max tokens per response” and generate again."), "warn")


CUT = N_("{n} of {total} responses ({share}) were truncated; a draft cannot learn their end.")
CUT_AT = N_("{n} of {total} responses ({share}) were truncated at {limit} tokens; a draft cannot learn their end.")
AS_BEFORE = N_("The last job added no rows; the existing rows did not change.")
MANY_CUT = 0.25
"""Fraction of truncated responses from which a warning is displayed."""
CUT_SHORT = N_("Stopped before all responses were generated; the finished rows can be used.")


def details(data: Dataset, names: Mapping[str, str]) -> str:
    report, config = data.report or {}, data.config or {}
    speed, tokens = report.get("tokens_per_second"), report.get("answer_tokens", report.get("tokens"))
    temperature = ", ".join(map(str, config.get("temperatures") or ())) or config.get("temperature")
    return facts(
        [
            (t("Suite"), title_of_suite(config.get("suite") or "")),
            (t("Rows"), f"{data.rows:,}" if data.rows else ""),
            (t("Skipped rows"), f"{data.bad_rows:,}" if data.bad_rows else ""),
            (t("Turns"), _by_kind(report.get("turns"))),
            (t("Response tokens"), f"{tokens:,}" if isinstance(tokens, int) else ""),
            (t("Mean row length"), _mean(report, data.rows)),
            (t("Truncated responses"), _cut(report)),
            (t("Skip reasons"), _by_kind(report.get("left_out"))),
            (t("Labels"), _by_kind(report.get("labels"))),
            (t("Duration"), duration(report["seconds"]) if report.get("seconds") else ""),
            (t("Speed"), t("{speed} tokens/s", speed=f"{speed:.0f}") if speed else ""),
            (t("Response model"), config.get("endpoint") or names.get(data.base_id or "", "")),
            (t("Prompts from"), names.get(data.source_id or "", "") or config.get("original_name", "")),
            (t("Hub revision"), (report.get("hub") or {}).get("revision", "")[:12]),
            (t("System prompt"), config.get("system_prompt")),
            (t("Temperature"), temperature if data.kind == "conversations" else ""),
            (t("Max tokens"), config.get("max_tokens")),
            (t("Created"), ago(data.created_at)),
            ("Id", data.id),
        ]
    )


def _by_kind(counts: Any) -> str:
    """`{"exact": 90, "cut": 4}` → "exact: 90, cut: 4"."""
    return ", ".join(f"{kind}: {count:,}" for kind, count in counts.items()) if isinstance(counts, dict) else ""


def cut_answers(report: Mapping[str, Any]) -> tuple[int, int]:
    """(number of responses truncated by a limit, number of responses); 0 if unknown."""
    count, total, finish = report.get("cut_answers"), report.get("rows"), report.get("finish")
    if isinstance(finish, dict):
        count, total = finish.get("length", 0), sum(finish.values())
    return count if isinstance(count, int) else 0, total if isinstance(total, int) else 0


def _cut(report: Mapping[str, Any]) -> str:
    count, total = cut_answers(report)
    share = f" ({count / total:.0%})" if total else ""
    return t("{n}; their end is not trained on", n=f"{count:,}{share}") if count else ""


def _mean(report: Mapping[str, Any], rows: int) -> str:
    tokens, characters = report.get("answer_tokens", report.get("tokens")), report.get("characters")
    if isinstance(tokens, int) and tokens and rows:
        return t("{n} response tokens", n=f"{tokens / rows:,.0f}")
    return t("{n} characters", n=f"{characters / rows:,.0f}") if isinstance(characters, int) and rows else ""


def distributions(data: Dataset) -> str:
    """Charts: lengths of the rows, and coverage of the responses by draft vocabulary size."""
    report = data.report or {}
    tokens, coverage = _pairs(report.get("lengths")), _pairs(report.get("coverage"))
    characters = _pairs(report.get("lengths_in_characters") if data.kind == "prompts" else None)
    charts = line_chart(t("Conversation length"), {t("rows"): tokens}, unit=t("conversations"), across=t("tokens"))
    charts += line_chart(t("Prompt length"), {t("rows"): characters}, unit=t("prompts"), across=t("characters"))
    vocabulary = {"percent": True, "across": t("draft vocabulary size")}
    charts += line_chart(t("Draft vocabulary coverage"), {t("covered"): coverage}, **vocabulary)
    return tag("div", charts, class_="sp-charts") if charts else ""


def _pairs(points: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in points] if points and len(points) > 1 else []


def bad_rows(data: Dataset) -> str:
    """Lines that an import skipped, by reason; "" without any."""
    rows = [[safe(line_ranges(lines)), safe(reason)] for reason, lines in reasons(data).items()]
    if not rows:
        return ""
    head = notice(plural("{n:,} row could not be used.", "{n:,} rows could not be used.", data.bad_rows), "warn")
    columns = [t("Lines"), t("Reason")]
    return tag("div", head + table(columns, rows, t("Skipped rows"), named=columns[:1]), class_="sp-stack")


def reasons(data: Dataset) -> dict[str, list[Any]]:
    """Reason → lines of the first rows that an import skipped."""
    lines_by_reason: dict[str, list[Any]] = {}
    for row in (data.report or {}).get("bad") or []:
        if isinstance(row, dict):
            lines_by_reason.setdefault(str(row.get("reason", "")), []).append(row.get("line", "?"))
    return lines_by_reason


def line_ranges(lines: Sequence[Any]) -> str:
    """`[1, 2, 3, 7]` → "1–3, 7"."""
    spans: list[list[Any]] = []
    for line in lines:
        if spans and isinstance(line, int) and spans[-1][1] == line - 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    ranges = [f"{first}–{last}" if first != last else str(first) for first, last in spans[:SHOWN_SPANS]]
    return ", ".join(ranges) + (", …" if len(spans) > SHOWN_SPANS else "")


def legend() -> str:
    """What the colors of a row mean."""
    marked = tag("span", safe(t("text that is trained on")), class_="sp-in-loss")
    return tag("p", marked + tag("span", safe(t("grey text is only context"))), class_="sp-mask-legend")


def preview(rows: list[dict[str, Any]], masks: Mapping[str, Mapping[str, Any]], search: str = "") -> str:
    """HTML of rows, with their loss mask if `masks` (by row id) has it. `search`: the search text."""
    if rows:
        masked = [masks.get(str(row.get("id", ""))) for row in rows]
        rendered = (_masked(mask) if mask else plain_row(row) for row, mask in zip(rows, masked, strict=True))
        return (legend() if any(masked) else "") + "".join(rendered)
    message = t("No further row matches.") if search.strip() else t("No rows yet.")
    return tag("p", message, class_="sp-lead")


def _masked(row: Mapping[str, Any]) -> str:
    pieces = "".join(
        tag("span", safe(piece.get("text", "")), class_="sp-in-loss" if piece.get("in_loss") else None)
        for piece in row.get("pieces") or []
        if isinstance(piece, dict)
    )
    trained, total = row.get("loss_tokens", 0), row.get("tokens", 0)
    summary = t("{trained} of {total} tokens are trained on", trained=trained, total=total)
    problem = notice(t("Not trained on: {reason}", reason=row["problem"]), "warn") if row.get("problem") else ""
    head = tag("h3", tag("span", safe(row.get("id", ""))) + tag("span", safe(summary)))
    about = {"tabindex": "0", "role": "group", "aria_label": t("Text of {name}", name=row.get("id", ""))}
    return tag("section", head + problem + tag("div", pieces, class_="sp-chat-text", **about), class_="sp-chat")


def plain_row(row: Mapping[str, Any]) -> str:
    turns = "".join(_turn(m) for m in row["messages"] if isinstance(m, dict))
    head = tag("h3", tag("span", safe(row.get("id", ""))) + tag("span", safe(row.get("category", ""))))
    return tag("section", head + turns, class_="sp-chat")


def _turn(message: Mapping[str, Any]) -> str:
    role = str(message.get("role", ""))
    text = tag("b", safe(role)) + tag("p", safe(message.get("content", "")))
    return tag("div", text, class_="sp-message sp-message-answer" if role == "assistant" else "sp-message")
