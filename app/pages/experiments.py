"""The Experiments page: named groups of jobs; `?id=` opens one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.i18n import N_, plural, t
from app.views import job_rows, job_view
from app.views.checkpoint_rows import method_title
from app.views.leaderboard import figure_cell
from app.views.manage import build_list, note_line
from app.views.trainings_view import comparison_url, evaluations_by_setting, held_out_of, labels, settings_of, tokens_of
from app.widgets import spreadsheet
from app.widgets.bulk import Action, bulk_bar, compare_button, on_bulk
from app.widgets.charts import ChartStyle, line_chart
from app.widgets.elements import QUIET, block, detail_head, empty_state, link_button, page_header, row_note, section
from app.widgets.formatting import ago, figure
from app.widgets.list_page import Listing
from app.widgets.list_query import ALL_ROWS, ListQuery, empty_list_html, filtered_query
from app.widgets.picker import live, pager, pick, picker, table
from app.widgets.text import safe, tag
from speculoos.redaction import redact
from speculoos.settings import Settings
from tracking import experiments, path_columns, trainings
from tracking.db import writing
from tracking.paging import page
from tracking.tables import Evaluation, Experiment, Job
from tracking.trainings import KIND, MAX_TRAININGS, Training

LEAD = N_("Groups of jobs, with their training runs, results and τ by tokens seen.")
COLUMNS = [N_("Experiment"), N_("Jobs"), N_("Training runs"), N_("Created")]
MOST_TRAININGS = 200
"""Maximum number of trainings shown of one experiment, the newest."""
HEAD = (
    *("experiment", "job", "job_id", "state", "draft", "base", "data_set", "method", "steps", "seconds"),
    "tokens_seen",
)
MEASURED = (
    *("suite", "questions", "temperature", "top_p", "tree", "dtype", "source", "machine", "tau", "tau_low", "tau_high"),
    *("speedup", "speedup_low", "speedup_high", "tokens_per_second", "plain_tokens_per_second"),
)
SETTING = "setting."
BULK = {"remove": (N_("Remove from the experiment"), N_("Remove from the experiment? The jobs are not deleted."))}


def experiments_table(session: Session, list_query: ListQuery = ALL_ROWS, offset: str = "") -> str:
    shown = page(session, filtered_query(experiments.query(), list_query), offset)
    if not shown.rows:
        return empty_list_html(
            list_query,
            "experiment",
            t("An experiment groups jobs: select jobs on Jobs and add them, or name one when you train."),
            "/runs",
            t("Go to Jobs"),
        )
    counted = experiments.counts(session, [row.id for row in shown.rows])
    rows = []
    for row in shown.rows:
        jobs, trained, going = counted.get(row.id, (0, 0, 0))
        name = pick("experiments", row.id, safe(row.name), class_="sp-row-name")
        name += row_note(row.note.splitlines()[0][:120]) if row.note else ""
        busy = t(" · {n} active", n=going) if going else ""
        rows.append([name, safe(f"{jobs}{busy}"), safe(trained), safe(ago(row.created_at))])
    columns = [t(column) for column in COLUMNS]
    count = plural("{range} experiment", "{range} experiments", shown.total, range=shown.range)
    html = table(columns, rows, t("Experiments"), True, columns[1:], count=count)
    return html + pager("experiments", shown, list_query)


SIGNATURE, ROW_SIGNATURE = experiments.signature, experiments.row_signature
EXPERIMENTS = Listing(
    "experiments", Experiment, "experiment", experiments_table, SIGNATURE, row_signature=ROW_SIGNATURE
)


class ExperimentPanel:
    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        self.head = live("experiment-head")
        self.figures = live("experiment-figures")
        section(t("τ by training tokens"))
        self.curves = live("experiment-curves")
        section(t("Jobs"))
        self.message = block(elem_id="experiment-bulk-message")
        self.jobs = picker("experiment-jobs", bulk=True)
        self.live = [self.head, self.figures, self.curves, self.jobs]
        self.outputs = [self.message]

    def wire(self, redraw: Any, inputs: list[Any], outputs: list[Any]) -> None:
        action = Action(t("Removed from the experiment"), lambda job_id: remove(self.settings, job_id))
        on_bulk(self.jobs, {"remove": action}, self.message).then(redraw, inputs, outputs, **QUIET)

    def live_view(self, session: Session, row: Experiment) -> list[Any]:
        return parts(session, row)

    def view(self, session: Session, row: Experiment | None, query: Mapping[str, str]) -> list[Any]:
        return [""]


def build(settings: Settings) -> None:
    page_header(t("Experiments"), t(LEAD))
    listed = build_list(settings, EXPERIMENTS, ExperimentPanel)
    listed.panel.wire(*listed.again)


def remove(settings: Settings, job_id: str) -> None:
    with writing(settings) as session:
        experiments.move_to_experiment(session, job_id, None)


def parts(session: Session, row: Experiment) -> list[str]:
    jobs = experiments.jobs_of(session, row.id)
    rows = trainings.with_rows(session, [job for job in jobs if job.kind == KIND][-MOST_TRAININGS:])
    tokens, held_out = tokens_of(session, rows), held_out_of(session, rows)
    how, measured = next(iter(evaluations_by_setting(rows)), ("", {}))
    return [
        head(row, jobs),
        figures_table(rows, tokens, held_out, how, measured),
        learning_curve(rows, tokens, held_out, measured),
        jobs_table(session, jobs),
    ]


def head(row: Experiment, jobs: Sequence[Job]) -> str:
    trained = [job.id for job in jobs if job.kind == KIND]
    title = detail_head(row.name, row_note(t("created {ago}", ago=ago(row.created_at))))
    links = ""
    if len(trained) > 1:
        links = link_button(t("Compare training runs"), comparison_url(trained[-MAX_TRAININGS:]))
    links += link_button(t("Train another draft"), f"/runs/new?experiment={row.id}")
    links += link_button("CSV", f"/api/experiments/{row.id}.csv", download=True)
    return tag("div", title + note_line(row) + tag("div", links, class_="sp-links"), class_="sp-stack")


def figures_table(
    runs: Sequence[Training],
    tokens: Mapping[str, float],
    held_out: Mapping[str, float],
    how: str,
    measured: Mapping[str, Evaluation],
) -> str:
    """Its trainings, newest last, with data and results; `measured`: job id → evaluation with the settings `how`."""
    if not runs:
        return ""
    columns = [t("Draft"), t("Data"), t("Tokens seen"), t("Held-out τ, greedy chain"), t("Measured τ"), t("Speedup")]
    rows = []
    for name, training in zip(labels(runs), runs, strict=True):
        row, seen = measured.get(training.job.id), tokens.get(training.job.id)
        to = f"/models/drafts?id={training.checkpoint.id}" if training.checkpoint else f"/runs?id={training.job.id}"
        texts = (training.data, f"{seen:,.0f}" if seen else "–", figure(held_out.get(training.job.id)))
        measures = [figure_cell(row, "tau", linked=True), figure_cell(row, "speedup", " ×", linked=True)]
        rows.append([tag("a", safe(name), href=to, class_="sp-row-name"), *map(safe, texts), *measures])
    note = tag("p", safe(t("Measured: {how}.", how=how)), class_="sp-hint sp-below") if how else ""
    return (
        table(
            columns,
            rows,
            t("Training runs"),
            True,
            columns[1:],
            count=plural("{n} training run", "{n} training runs", len(rows)),
        )
        + note
    )


def learning_curve(
    runs: Sequence[Training],
    tokens: Mapping[str, float],
    held_out: Mapping[str, float],
    measured: Mapping[str, Evaluation],
) -> str:
    """Chart of τ over tokens seen, a line per method and base model: τ as measured or, with fewer than two
    measurements, as expected on held-out conversations."""
    taus = {job_id: row.tau for job_id, row in measured.items() if row.tau is not None}
    name, taus_shown = (t("measured"), taus) if len(taus) > 1 else (t("held out, greedy chain"), held_out)
    lines: dict[str, list[tuple[float, float]]] = {}
    for training in runs:
        seen, tau = tokens.get(training.job.id), taus_shown.get(training.job.id)
        if seen and tau is not None:
            method = method_title(str((training.job.request or {}).get("method") or "")) or t("Training runs")
            line = t("{method} for {base}", method=method, base=training.base.name) if training.base else method
            lines.setdefault(line, []).append((seen, tau))
    ordered = {line: sorted(points) for line, points in lines.items()}
    look = ChartStyle(near=True, up="τ", best="max", dots=True)
    chart = line_chart(t("τ by training tokens, {name}", name=name), ordered, across=t("training tokens"), look=look)
    if not chart:
        return tag("p", t("This experiment has no training runs with results yet."), class_="sp-lead")
    return tag("div", chart, class_="sp-charts")


def jobs_table(session: Session, jobs: Sequence[Job]) -> str:
    if not jobs:
        return empty_state(
            t("No jobs yet"), t("Select jobs on Jobs and add them to this experiment."), "/runs", t("Go to Jobs")
        )
    listed = job_rows.jobs_table(jobs[::-1], job_rows.waits_of(session, jobs), chosen=True, as_links=True)
    return bulk_bar(BULK, compare_button()) + listed


def as_csv(session: Session, row: Experiment, home: Path, secrets: list[str]) -> str:
    """The trainings with all settings, a line per evaluation or one line without figures. Paths in the home folder are
    relative as in the database; secrets are masked."""
    jobs = experiments.jobs_of(session, row.id)
    rows = trainings.with_rows(session, [job for job in jobs if job.kind == KIND])
    tokens = tokens_of(session, rows)
    records = []
    for training in rows:
        fields = _fields(row, training, tokens.get(training.job.id), home)
        figures = [{key: getattr(evaluation, key) for key in MEASURED} for evaluation in training.evaluations]
        records += [{**fields, **each} for each in figures] or [fields]
    keys = dict.fromkeys(key for record in records for key in record if key.startswith(SETTING))
    masked = [
        {key: redact(value, secrets) if isinstance(value, str) else value for key, value in record.items()}
        for record in records
    ]
    return spreadsheet.as_csv([*HEAD, *MEASURED, *keys], masked)


def _fields(row: Experiment, training: Training, tokens: float | None, home: Path) -> dict[str, Any]:
    settings = path_columns.map_paths(settings_of(training), lambda text: path_columns.to_stored_path(home, text))
    values = {
        "experiment": row.name,
        "job": training.job.name,
        "job_id": training.job.id,
        "state": training.job.state,
        "draft": training.checkpoint.name if training.checkpoint else "",
        "base": settings.pop("base"),
        "data_set": settings.pop("dataset"),
        "method": settings.pop("method"),
        "steps": training.job.done,
        "seconds": job_view.seconds(training.job),
        "tokens_seen": tokens,
    }
    return values | {f"{SETTING}{key}": _cell(value) for key, value in settings.items()}


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | tuple) else value
