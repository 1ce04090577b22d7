"""HTML of experiments: the list, and one experiment with its figures, curve and jobs. Pure functions of rows."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from sqlalchemy.orm import Session

from app.views import job_rows
from app.views.checkpoint_rows import method_words
from app.views.leaderboard import figure_cell
from app.views.manage import note_line
from app.views.trainings_view import comparison_url, evaluations_by_setting, held_out_of, labels, tokens_of
from app.widgets.bulk import bulk_bar, compare_button
from app.widgets.charts import ChartStyle, line_chart
from app.widgets.elements import detail_head, empty_state, link_button, row_note
from app.widgets.formatting import ago, figure
from app.widgets.list_query import ALL_ROWS, ListQuery, empty_list_html, filtered_query
from app.widgets.picker import pager, pick, table
from app.widgets.text import safe, tag
from tracking import experiments, trainings
from tracking.paging import page
from tracking.tables import Evaluation, Experiment, Job
from tracking.trainings import KIND, MAX_TRAININGS, Training

COLUMNS = ["Experiment", "Jobs", "Trainings", "Created"]
MOST_TRAININGS = 200
"""Maximum number of trainings shown of one experiment, the newest."""
BULK = {"remove": ("Remove from the experiment", "Remove from the experiment? The jobs are not deleted.")}


def experiments_table(session: Session, which: ListQuery = ALL_ROWS, place: str = "") -> str:
    """A page of the experiments that match `which`."""
    shown = page(session, filtered_query(experiments.query(), which), place)
    if not shown.rows:
        return empty_list_html(
            which,
            "experiment",
            "An experiment groups jobs under a name. Create one above, or select jobs on the page Jobs and add them.",
            "/jobs",
            "Go to Jobs",
        )
    counted = experiments.counts(session, [row.id for row in shown.rows])
    rows = [_row(row, *counted.get(row.id, (0, 0, 0))) for row in shown.rows]
    return table(COLUMNS, rows, "Experiments", wide_first=True, named=COLUMNS[1:]) + pager("experiments", shown, which)


def _row(row: Experiment, jobs: int, trained: int, going: int) -> list[str]:
    note = row_note(row.note.splitlines()[0][:120]) if row.note else ""
    busy = f" · {going} active" if going else ""
    name = pick("experiments", row.id, safe(row.name), class_="sp-row-name")
    return [name + note, safe(f"{jobs}{busy}"), safe(trained), safe(ago(row.created_at))]


def parts(session: Session, row: Experiment) -> list[str]:
    """Head, figures, learning curve and jobs of one experiment."""
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
    title = detail_head(row.name, row_note(f"created {ago(row.created_at)}"))
    buttons = [
        (f"/train?experiment={quote(row.id, safe='')}", "Train another", False),
        (f"/api/experiments/{quote(row.id, safe='')}.csv", "CSV", True),
    ]
    if len(trained) > 1:
        words = (
            "Compare its trainings" if len(trained) <= MAX_TRAININGS else f"Compare its last {MAX_TRAININGS} trainings"
        )
        buttons.insert(0, (comparison_url(trained[-MAX_TRAININGS:]), words, False))
    links = "".join(link_button(words, to, download=save) for to, words, save in buttons)
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
    columns = ["Draft", "Data", "Tokens seen", "Expected τ", "Measured τ", "Speedup"]
    rows = []
    for name, training in zip(labels(runs), runs, strict=True):
        row, seen = measured.get(training.job.id), tokens.get(training.job.id)
        rows.append(
            [
                _draft(name, training),
                safe(training.data),
                safe(f"{seen:,.0f}" if seen else "–"),
                safe(figure(held_out.get(training.job.id))),
                figure_cell(row, "tau", linked=True),
                figure_cell(row, "speedup", " ×", linked=True),
            ]
        )
    note = tag("p", safe(f"Measured: {how}."), class_="sp-hint sp-below") if how else ""
    return table(columns, rows, "Trainings", wide_first=True, named=columns[1:]) + note


def learning_curve(
    runs: Sequence[Training],
    tokens: Mapping[str, float],
    held_out: Mapping[str, float],
    measured: Mapping[str, Evaluation],
) -> str:
    """Chart of τ over tokens seen, a line per method and base model: τ as measured or, with fewer than two
    measurements, as expected on held-out conversations."""
    taus = {job_id: row.tau for job_id, row in measured.items() if row.tau is not None}
    name, known = ("measured", taus) if len(taus) > 1 else ("expected, held out", held_out)
    lines: dict[str, list[tuple[float, float]]] = {}
    for training in runs:
        seen, tau = tokens.get(training.job.id), known.get(training.job.id)
        if seen and tau is not None:
            method = method_words(str((training.job.request or {}).get("method") or "")) or "Trainings"
            line = f"{method} for {training.base.name}" if training.base else method
            lines.setdefault(line, []).append((seen, tau))
    ordered = {line: sorted(points) for line, points in lines.items()}
    look = ChartStyle(near=True, up="τ")
    chart = line_chart(f"τ by tokens seen, {name}", ordered, across="tokens seen", look=look)
    if not chart:
        return tag("p", "This experiment has no trainings with results yet.", class_="sp-lead")
    return tag("div", chart, class_="sp-charts")


def jobs_table(session: Session, jobs: Sequence[Job]) -> str:
    """All its jobs, newest first, with checkboxes."""
    if not jobs:
        return empty_state(
            "No jobs yet", "Select jobs on the list of jobs and add them to this experiment.", "/jobs", "Go to Jobs"
        )
    listed = job_rows.jobs_table(jobs[::-1], job_rows.waits_of(session, jobs), chosen=True, elsewhere=True)
    return bulk_bar(BULK, compare_button()) + listed


def link(session: Session, job: Job) -> str:
    row = session.get(Experiment, job.experiment_id) if job.experiment_id else None
    name = tag("a", safe(row.name), href=f"/experiments?id={row.id}") if row else ""
    return tag("p", f"Part of the experiment {name}.", class_="sp-lead") if row else ""


def _draft(name: str, training: Training) -> str:
    to = f"/checkpoints?id={training.checkpoint.id}" if training.checkpoint else f"/jobs?id={training.job.id}"
    return tag("a", safe(name), href=to, class_="sp-row-name")
