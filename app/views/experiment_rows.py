"""Experiments as people see them: the list, and one with its figures, jobs and lineage. Pure functions over rows."""

from collections.abc import Sequence
from urllib.parse import quote

from sqlalchemy.orm import Session

from app.views import job_rows, learning_curve, lineage_view
from app.views.manage import note_line
from app.views.metrics_view import AXES
from app.views.trainings_tables import measured_cell, measured_ways
from app.views.trainings_view import TrainingsView, labels
from app.widgets.asked import narrowed, nothing
from app.widgets.bulk import bar, comparing
from app.widgets.elements import detail_head, empty_state, link_button, row_note
from app.widgets.formatting import ago, figure
from app.widgets.picker import pager, pick, table
from app.widgets.text import safe, tag
from tracking import experiments, lineage, listing, trainings
from tracking.evaluations import number
from tracking.paging import page
from tracking.states import JobState
from tracking.tables import Experiment, Job
from tracking.trainings import KIND, MOST, Training

COLUMNS = ["Experiment", "Jobs", "Trainings", "Made"]
MOST_TRAININGS = 200
"""Trainings of one experiment that are drawn, the newest."""
BULK = {"remove": ("Remove from the experiment", "The jobs stay; remove them?")}


def experiments_table(session: Session, which: str = "", place: str = "") -> str:
    """A page of the list, for what was asked (app/widgets/asked.py)."""
    shown = page(session, narrowed(experiments.query(), which), place)
    if not shown.rows:
        return nothing(
            which,
            "experiment",
            "An experiment is a name for jobs that belong together. Make one above, or tick jobs and add them to one.",
            "/jobs",
            "Go to Jobs",
        )
    counted = experiments.counts(session, [row.id for row in shown.rows])
    rows = [_row(row, *counted.get(row.id, (0, 0, 0))) for row in shown.rows]
    return table(COLUMNS, rows, "Experiments", wide_first=True, named=COLUMNS[1:]) + pager("experiments", shown, which)


def _row(row: Experiment, jobs: int, trained: int, going: int) -> list[str]:
    note = row_note(row.note.splitlines()[0][:120]) if row.note else ""
    busy = f" · {going} going on" if going else ""
    name = pick("experiments", row.id, safe(row.name), class_="sp-row-name")
    return [name + note, safe(f"{jobs}{busy}"), safe(trained), safe(ago(row.created_at))]


def parts(session: Session, row: Experiment) -> list[str]:
    """Head, figures, learning curves, lineage and jobs of one experiment."""
    jobs = experiments.jobs_of(session, row.id)
    found = trainings.whole(session, [job for job in jobs if job.kind == KIND][-MOST_TRAININGS:])
    tokens = tokens_of(session, found)
    held_out = trainings.best_values(session, [each.job.id for each in found], "eval/tau")
    return [
        head(row, jobs),
        figures_table(found, tokens, held_out),
        learning_curve.learning_curves(found, tokens, held_out),
        lineage_view.picture(lineage.graph(session, jobs)),
        jobs_table(session, jobs),
    ]


def tokens_of(session: Session, found: Sequence[Training]) -> dict[str, float]:
    """job → tokens that it has seen: what its draft says, else its last point."""
    seen = trainings.best_values(session, [each.job.id for each in found], AXES["tokens"])
    for each in found:
        told = number((each.checkpoint.figures or {}).get("tokens")) if each.checkpoint else None
        if told:  # of earlier versions it lacks the steps since their last log line
            seen[each.job.id] = max(told, seen.get(each.job.id, 0))
    return seen


def head(row: Experiment, jobs: Sequence[Job]) -> str:
    """Name, note, and what can be done with all of it."""
    trained = [job.id for job in jobs if job.kind == KIND]
    title = detail_head(row.name, row_note(f"made {ago(row.created_at)}"))
    files = f"/api/experiments/{quote(row.id, safe='')}"
    ways = [(f"/train?experiment={quote(row.id, safe='')}", "Train another", False)]
    ways += [(f"{files}.json", "JSON", True), (f"{files}.csv", "CSV", True)]
    if len(trained) > 1:
        words = "Compare its trainings" if len(trained) <= MOST else f"Compare its last {MOST} trainings"
        ways.insert(0, (TrainingsView(tuple(trained[-MOST:])).address, words, False))
    links = "".join(link_button(words, to, download=save) for to, words, save in ways)
    return tag("div", title + note_line(row) + tag("div", links, class_="sp-links"), class_="sp-stack")


def figures_table(found: Sequence[Training], tokens: dict[str, float], held_out: dict[str, float]) -> str:
    """Its trainings, newest last: what each learned from and came to."""
    if not found:
        return ""
    how, measured = next(iter(measured_ways(found)), ("", {}))
    columns = ["Draft", "Data", "Tokens seen", "Expected τ", "τ measured", "Speedup"]
    rows = []
    for name, each in zip(labels(found), found, strict=True):
        row, seen = measured.get(each.job.id), tokens.get(each.job.id)
        rows.append(
            [
                _draft(name, each),
                safe(each.data),
                safe(f"{seen:,.0f}" if seen else "–"),
                safe(figure(held_out.get(each.job.id))),
                measured_cell(row, "tau"),
                measured_cell(row, "speedup", " ×"),
            ]
        )
    said = tag("p", safe(f"Measured: {how}."), class_="sp-hint sp-below") if how else ""
    return table(columns, rows, "Trainings", wide_first=True, named=columns[1:]) + said


def jobs_table(session: Session, jobs: Sequence[Job]) -> str:
    """All its jobs, newest first, with boxes."""
    if not jobs:
        return empty_state(
            "No job in it yet", "On the list of jobs tick some and add them to this experiment.", "/jobs", "Go to Jobs"
        )
    queues = listing.Queues(session)
    waits = {job.id: job_rows.waits_words(queues, job) for job in jobs if job.state == JobState.QUEUED}
    return bar(BULK, comparing()) + job_rows.jobs_table(jobs[::-1], waits, chosen=True, elsewhere=True)


def link(session: Session, job: Job) -> str:
    """The way from a job to its experiment."""
    row = session.get(Experiment, job.experiment_id) if job.experiment_id else None
    name = tag("a", safe(row.name), href=f"/experiments?id={row.id}") if row else ""
    return tag("p", f"In the experiment {name}.", class_="sp-lead") if row else ""


def _draft(name: str, training: Training) -> str:
    to = f"/checkpoints?id={training.checkpoint.id}" if training.checkpoint else f"/jobs?id={training.job.id}"
    return tag("a", safe(name), href=to, class_="sp-row-name")
