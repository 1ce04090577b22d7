"""HTML of checkpoints: the list, metrics and lineage."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.i18n import N_, plural, t
from app.links import chat_link, compare_link, serve_link
from app.paths import PAGES
from app.views import export_rows
from app.views.leaderboard import question_count_text
from app.widgets.bulk import bulk_bar, row_checkbox
from app.widgets.elements import badge, detail_head, facts, link_button, notice, row_note, tiles
from app.widgets.formatting import ago, figure, interval, size, yes_or_no
from app.widgets.list_page import signature_of
from app.widgets.list_query import ALL_ROWS, ListQuery, empty_list_html, filtered_query
from app.widgets.picker import pager, pick, table
from app.widgets.text import safe, tag
from models.methods import METHODS
from speculoos.suites import BUILT_IN_SUITE_NAME
from tracking import evaluations, queries
from tracking.evaluations import REPLAYED, THIS_INSTALLATION, finite_number, is_replay
from tracking.paging import page
from tracking.states import JobState
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job
from workers.jobs.matrix import setting_words

SOURCE_LABELS = {"hub": N_("hub:"), "folder": N_("local folder:"), "upload": N_("uploaded files:")}
"""Source of an imported draft → its label."""
DRAFT_COLUMNS = [N_("Draft"), N_("Method"), "τ", N_("Speedup"), N_("Exports"), N_("Size"), N_("Created")]
COLUMNS = [N_("Name"), N_("Base"), N_("Method"), N_("Data"), "τ", N_("Speedup"), N_("Size"), N_("Created")]


def method_title(method: str) -> str:
    """`eagle3` → "EAGLE-3"."""
    return t(METHODS[method].title) if method in METHODS else method


def checkpoints_table(session: Session, list_query: ListQuery = ALL_ROWS, offset: str = "") -> str:
    """A page of the checkpoints that match `list_query`, newest first by default."""
    shown = page(session, filtered_query(queries.listed(Checkpoint), list_query), offset)
    if not shown.rows:
        how_to_add = t("A draft proposes tokens for one base model. Train one, or import a published one above.")
        return empty_list_html(list_query, "draft", how_to_add, "/runs/new", t("Train a draft"))
    ids = [row_id for c in shown.rows for row_id in (c.base_id, c.dataset_id)]
    names, measured = queries.names(session, ids), last_measured(session, [c.id for c in shown.rows])
    cells = [row_cells(c, names, figures_of(c, measured.get(c.id))) for c in shown.rows]
    columns = [t(column) for column in COLUMNS]
    count = plural("{range} draft", "{range} drafts", shown.total, range=shown.range)
    listed = table(columns, cells, t("Drafts"), named=columns[1:], count=count)
    bar = bulk_bar({"delete": (t("Delete"), t("Delete permanently, with everything that depends on them?"))})
    return bar + tag("div", listed, class_="sp-checkpoints") + pager("checkpoints", shown, list_query)


def last_measured(session: Session, checkpoint_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Checkpoint id → result of its last evaluation on the built-in questions, otherwise on others. The key QUESTIONS
    describes the questions. Only evaluations at default settings count: greedy, with the checkpoint's own tree, on the
    local engine. Replays do not count: they measure no speed."""
    defaults = {"temperature": 0, "tree": "", "source": "", "matrix_id": None}
    query = select(Evaluation).filter_by(**defaults).where(Evaluation.checkpoint_id.in_(checkpoint_ids))
    rows = session.scalars(query.order_by(Evaluation.suite == BUILT_IN_SUITE_NAME, Evaluation.created_at))
    measured = [row for row in rows if row.result and not is_replay(row.result)]
    questions = (", ".join(filter(None, (row.questions, question_count_text(row)))) for row in measured)
    return {row.checkpoint_id: {**row.result, QUESTIONS: text} for row, text in zip(measured, questions, strict=True)}


def signature(session: Session) -> str:
    """A text that changes when a checkpoint, an evaluation or the number of finished tunings changes."""
    counted = select(Evaluation.state, func.count(), func.max(Evaluation.created_at)).group_by(Evaluation.state)
    measured = sorted(map(str, session.execute(counted)))
    tunings = select(func.count()).select_from(Job).where(Job.kind == "tune", Job.state == JobState.SUCCEEDED)
    measured.append(str(session.scalar(tunings)))
    return f"{signature_of(Checkpoint)(session)}.{hash(tuple(measured))}"


def drafts_of(session: Session, base_ids: Collection[str], most: int) -> dict[str, str]:
    """base model id → table of its newest `most` drafts with figures and exports."""
    drafts: dict[str, list[Checkpoint]] = {}
    for row in session.scalars(queries.listed(Checkpoint, Checkpoint.base_id.in_(base_ids))):
        drafts.setdefault(row.base_id, []).append(row)
    shown = [row.id for rows in drafts.values() for row in rows[:most]]
    measured, exports = last_measured(session, shown), export_rows.exported(session)
    html, columns = {}, [t(column) for column in DRAFT_COLUMNS]
    for base_id, rows in drafts.items():
        cells = [_draft_cells(row, figures_of(row, measured.get(row.id)), exports) for row in rows[:most]]
        html[base_id] = table(columns, cells, t("Drafts"), named=columns[1:])
        if len(rows) > most:
            link_text = plural("All {n} draft", "All {n} drafts", len(rows))
            link = _link(f"{PAGES['checkpoints']}?of={base_id}", link_text)
            html[base_id] += tag("p", link, class_="sp-hint sp-below")
    return html


def _draft_cells(row: Checkpoint, figures: Mapping[str, Any], exports: Mapping[str, list[str]]) -> list[str]:
    name, _base, method, _data, tau, speedup, size_, created = row_cells(row, {}, figures, chosen=False)
    formats = "".join(badge(name, "good") for name in exports.get(row.id, ()))
    return [name, method, tau, speedup, formats or "–", size_, created]


def row_cells(
    checkpoint: Checkpoint, names: Mapping[str, str], figures: Mapping[str, Any], chosen: bool = True
) -> list[str]:
    """Cells of COLUMNS; `chosen`: in the list of drafts, with a checkbox."""
    attributes = {} if chosen else {"data_pick": None}
    name = row_checkbox(checkpoint.id, checkpoint.name) if chosen else ""
    name += pick("checkpoints", checkpoint.id, safe(checkpoint.name), class_="sp-row-name", **attributes)
    more, speedup = (checkpoint.config or {}).get("more_dataset_ids"), finite_number(figures.get("speedup"))
    data = names.get(checkpoint.dataset_id or "", checkpoint.config.get("data") or "–")
    basis = _small(t(tau_source(figures)), figures.get(QUESTIONS))
    source = _small(t(REFERENCE) if figures.get(REFERENCE) else "")
    return [
        name + state_mark(checkpoint),
        safe(names.get(checkpoint.base_id, "–")),
        safe(method_title(checkpoint.method)),
        safe(data + (f" + {len(more)}" if more else "")),
        safe(figure(finite_number(figures.get("mean_accepted_length")))) + basis,
        safe(f"{speedup:.2f}×") + source if speedup is not None else "–",
        safe(size(checkpoint.size_bytes)) if checkpoint.size_bytes else "–",
        safe(ago(checkpoint.created_at)),
    ]


def tau_source(figures: Mapping[str, Any]) -> str:
    """Whether τ came with the checkpoint's files (REFERENCE), was "measured" by a local evaluation or "estimated" on
    held-out conversations in training; "" without τ."""
    if finite_number(figures.get("mean_accepted_length")) is None:
        return ""
    if figures.get(REFERENCE):
        return REFERENCE
    return N_("measured") if "tokens_per_second" in figures or "acceptance_by_depth" in figures else ESTIMATED


def state_mark(checkpoint: Checkpoint) -> str:
    states = {"pending": (t("being created"), "info"), "failed": (t("not finished"), "bad")}
    imported = [(t("imported"), "")] if is_imported(checkpoint) else []
    marks = [*imported, *(mark for state, mark in states.items() if state == checkpoint.state)]
    return "".join(" " + badge(*mark) for mark in marks)


def is_imported(checkpoint: Checkpoint) -> bool:
    return str(checkpoint.config.get("source")) in SOURCE_LABELS


ESTIMATED = N_("estimated")
QUESTIONS = "questions"
"""Key of the questions of a measurement."""
REFERENCE = N_("reference")
"""Key that marks figures from a checkpoint's files, and the label beside them."""
OF_A_MEASUREMENT = ("mean_accepted_length", "acceptance_by_depth", "speedup", "tokens_per_second", "measured_on")
OF_A_MEASUREMENT += ("plain_tokens_per_second", "identical_to_plain", "prompts", "measured_tokens", "ties")


def figures_of(checkpoint: Checkpoint, measured: Mapping[str, Any] | None) -> dict[str, Any]:
    """Figures to show: those of the last local evaluation (`measured`) replace the checkpoint's own; own figures of an
    imported checkpoint's files are marked with REFERENCE."""
    own_figures = checkpoint.figures or {}
    if measured:
        unmeasured = {
            key: value for key, value in own_figures.items() if key.removesuffix("_interval") not in OF_A_MEASUREMENT
        }
        return unmeasured | dict(measured)
    return {**own_figures, REFERENCE: True} if is_reference(checkpoint) else dict(own_figures)


def is_reference(checkpoint: Checkpoint) -> bool:
    """Whether the row's own figures were measured by the publisher of the draft."""
    measured_on = (checkpoint.figures or {}).get("measured_on")
    return measured_on != THIS_INSTALLATION and (bool(measured_on) or is_imported(checkpoint))


def head(session: Session, checkpoint: Checkpoint) -> str:
    base = session.get(Base, checkpoint.base_id)
    name = detail_head(checkpoint.name, state_mark(checkpoint))
    parts = name, warnings(checkpoint, base), figure_tiles(session, checkpoint), lineage(session, checkpoint, base)
    return tag("div", "".join(parts), class_="sp-stack")


CHANGED = N_("The weights of {name} have changed since this was trained; fewer tokens will be accepted.")
PLAIN_IS_FASTER = N_("Tuning found no tree with which this draft is faster than plain decoding on this machine.")


def plain_is_faster(checkpoint: Checkpoint) -> bool:
    tuned = (checkpoint.figures or {}).get("tuned")
    return isinstance(tuned, Mapping) and bool(tuned.get("plain_is_faster"))


def warnings(checkpoint: Checkpoint, base: Base | None) -> str:
    """A notice: the checkpoint is not ready, was trained on other weights, or plain decoding is faster."""
    if checkpoint.state == "pending":
        link = f"/runs?id={checkpoint.job_id}" if checkpoint.job_id else ""
        return notice(t("The job is still running."), "info", link, t("Open the job") if link else "")
    if checkpoint.state == "failed":
        return notice(t("Not finished. Retry its job, or delete this draft."), "bad")
    if base and checkpoint.base_sha256 and checkpoint.base_sha256 != base.weights_sha256:
        return notice(t(CHANGED, name=base.name), "warn")
    return notice(t(PLAIN_IS_FASTER), "warn") if plain_is_faster(checkpoint) else ""


def figure_tiles(session: Session, checkpoint: Checkpoint) -> str:
    """The main figures, with a notice if their measurement was disturbed or cut short."""
    figures = figures_of(checkpoint, last_measured(session, [checkpoint.id]).get(checkpoint.id))
    keys = ("mean_accepted_length", "speedup", "tokens_per_second", "plain_tokens_per_second")
    tau, speedup, speed, plain = (finite_number(figures.get(key)) for key in keys)
    if speedup is None and speed and plain:
        speedup = speed / plain
    compared = t(REFERENCE_NOTE) if figures.get(REFERENCE) else interval(figures, "speedup", "×") or t("vs. baseline")
    items = (
        (t("Mean accepted length (τ)"), figure(tau), tau_note(figures, tau)),
        (t("Speedup"), f"{speedup:.2f}×" if speedup else "–", compared),
        (t("Tokens per second"), figure(speed, 1), t("baseline {speed}", speed=figure(plain, 1)) if plain else ""),
        (t("Size"), size(checkpoint.size_bytes) if checkpoint.size_bytes else "–", method_title(checkpoint.method)),
    )
    warning = evaluations.warnings(figures)
    return tiles(item for item in items if item[1] != "–") + (notice(warning, "warn") if warning else "")


REFERENCE_NOTE = N_("reference: measured elsewhere")


def tau_note(figures: Mapping[str, Any], tau: float | None) -> str:
    """Interval of τ, or how it was determined."""
    if not tau:
        return t("not measured yet")
    if tau_source(figures) == ESTIMATED:
        return t("estimated on held-out conversations")
    if figures.get(REFERENCE):
        return t(REFERENCE_NOTE)
    parts = (interval(figures, "mean_accepted_length"), figures.get(QUESTIONS))
    return " · ".join(filter(None, parts)) or t("tokens per verification")


def sets_of(session: Session, checkpoint: Checkpoint) -> list[Dataset]:
    """The datasets it was trained on that still exist."""
    return [data for row_id in queries.trained_on(checkpoint) if (data := session.get(Dataset, row_id))]


def lineage(session: Session, checkpoint: Checkpoint, base: Base | None) -> str:
    """Origin of the checkpoint: base model, data and job as links, hashes and note."""
    sets, job = sets_of(session, checkpoint), session.get(Job, checkpoint.job_id or "")
    unknown = safe(checkpoint.config.get("data") or "") or ("" if is_imported(checkpoint) else t("not recorded"))
    items = [
        (t("Base model"), _link(f"/models?id={base.id}", base.name) if base else "–"),
        (t("Base weights"), _code(checkpoint.base_sha256[:16] + "…") if checkpoint.base_sha256 else ""),
        (t("Source"), safe(_origin(checkpoint))),
        (t("Data"), ", ".join(_link(f"/data?id={d.id}", d.name) for d in sets) or unknown),
        (t("Job"), _link(f"/runs?id={job.id}", job.name) if job else t("not recorded")),
        (t("Steps"), f"{checkpoint.step:,}" if checkpoint.step else ""),
        ("sha256", _code(checkpoint.sha256) if checkpoint.sha256 else ""),
        (t("Created"), safe(ago(checkpoint.created_at))),
        (t("Note"), safe(checkpoint.note)),
    ]
    return tag("dl", "".join(tag("dt", safe(k)) + tag("dd", v) for k, v in items if v), class_="sp-facts")


def _origin(checkpoint: Checkpoint) -> str:
    """Source, format, license and notices of an imported draft; "" for others."""
    imported = checkpoint.config.get("imported") or {}
    if not imported:
        return ""
    source = t(SOURCE_LABELS.get(str(checkpoint.config.get("source")), ""))
    license_name, notices = imported.get("licence") or t("not stated"), " ".join(imported.get("notices") or ())
    license_text = t("license {name}", name=license_name)
    return f"{source} {imported.get('origin')} · {imported.get('title')} · {license_text}. {notices}".strip()


def actions(session: Session, checkpoint: Checkpoint) -> str:
    if checkpoint.state != "ready":
        return ""
    base = session.get_one(Base, checkpoint.base_id)
    file = f"/api/checkpoints/{checkpoint.id}/download"
    links = (
        link_button(t("Download zip"), file, main=True, id="checkpoint-download"),
        link_button(t("Try in the Playground"), chat_link(base.name, checkpoint.name)),
        link_button(t("Compare with the baseline"), compare_link(base.name, checkpoint.name)),
        link_button(t("Serve"), serve_link(base.id, checkpoint.id)),
        link_button(t("Plan"), f"/models?{urlencode({'id': base.id, 'checkpoint': checkpoint.id})}"),
    )
    hint = tag("span", t("model.safetensors, config.json, model card and SHA256SUMS"), class_="sp-hint")
    return tag("div", "".join(links) + hint, class_="sp-links")


def settings_table(checkpoint: Checkpoint) -> str:
    flat = list(flatten(checkpoint.config))
    return facts(flat) if flat else tag("p", t("No settings were recorded."), class_="sp-hint")


def evaluations_table(session: Session, checkpoint: Checkpoint) -> str:
    rows = [_evaluation(e) for e in queries.evaluations(session, checkpoint.id) if e.result]
    columns = [t("Evaluation"), "τ", t("Speedup"), t("Same output"), t("When")]
    if rows:
        return table(columns, rows, t("Evaluations"), named=columns[1:])
    return tag("p", t("Not evaluated yet."), class_="sp-hint")


def flatten(data: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings as (dotted name, value)."""
    pairs: list[tuple[str, Any]] = []
    for key, value in data.items():
        pairs += flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return pairs


def _evaluation(evaluation: Evaluation) -> list[str]:
    """Cells of an evaluation. Those of a replay: τ on recorded outputs and the projected speedup."""
    result, name = evaluation.result, evaluation.questions or evaluation.name
    tau = finite_number(result.get("mean_accepted_length"))
    speedup, beside = finite_number(result.get("speedup")), interval(result, "speedup", "×")
    if is_replay(result):
        speedup, beside = finite_number(result.get("projected_speedup")), t("projected")
        source = result[REPLAYED]
        how = t("replay of {rows} responses from {file}", rows=source.get("rows"), file=source.get("file"))
    else:
        at = [t("on {server}", server=evaluation.source)] if evaluation.source else []
        how = " · ".join([*setting_words(evaluation.config or {}), *at])
    return [
        _link(f"/results?id={evaluation.id}", name) + _small(how),
        safe(figure(tau)) + _small(interval(result, "mean_accepted_length")),
        safe(f"{speedup:.2f}×") + _small(beside) if speedup else "–",
        yes_or_no(result.get("identical_to_plain")),
        safe(ago(evaluation.measured_at)),
    ]


def _small(text: str, title: str | None = None) -> str:
    return tag("div", row_note(text), title=title) if text else ""


def _link(to: str, text: str) -> str:
    return tag("a", safe(text), href=to)


def _code(text: str) -> str:
    return tag("code", safe(text))
