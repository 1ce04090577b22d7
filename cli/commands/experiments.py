"""`speculoos experiments`: named groups of jobs with the evaluations of their drafts."""

from typing import Annotated, Any

import typer

from cli.console import Json, finish, listed, table
from ops.homes import columns, open_home
from tracking import experiments, queries, trainings
from tracking.db import reading

app = listed("Experiments: named groups of jobs.")
FIGURES = ("suite", "questions", "temperature", "tree", "dtype", "tau", "speedup", "tokens_per_second")


@app.command("list")
def list_experiments(as_json: Json = False) -> None:
    """List the experiments, newest first, with the number of jobs."""
    with reading(open_home()) as session:
        rows = list(session.scalars(experiments.query()))
        counts = experiments.counts(session, [row.id for row in rows])
        entries = []
        for row in rows:
            jobs, trained, active = counts.get(row.id, (0, 0, 0))
            entries.append({**columns(row), "jobs": jobs, "trainings": trained, "not_ended": active})
    cells = [(each["name"], each["jobs"], each["trainings"], each["not_ended"], each["note"]) for each in entries]
    finish(entries, as_json, table(cells, ("name", "jobs", "trainings", "not ended", "note")))


@app.command()
def show(reference: Annotated[str, typer.Argument(help="Name or id of an experiment.")], as_json: Json = False) -> None:
    """Show the jobs of an experiment in order, and the newest evaluation of each draft."""
    with reading(open_home()) as session:
        row = queries.find_experiment(session, reference)
        jobs = experiments.jobs_of(session, row.id)
        rows = trainings.with_rows(session, [job for job in jobs if job.kind == trainings.KIND])
        by_job = {training.job.id: training for training in rows}
        entries = [_job(job, by_job.get(job.id)) for job in jobs]
        result = {**columns(row), "jobs": entries}
    heads = ("id", "kind", "state", "name", "τ", "speedup", "measured on")
    text = "\n".join(filter(None, [result["name"], result["note"], table([_cells(each) for each in entries], heads)]))
    finish(result, as_json, text)


def _job(job: Any, training: Any) -> dict[str, Any]:
    """The job as JSON; for a training with base, data, draft and its evaluations, newest first."""
    entry = {key: getattr(job, key) for key in ("id", "kind", "state", "name", "created_at", "finished_at", "error")}
    if training is None:
        return entry
    measured = [{"id": each.id, **{key: getattr(each, key) for key in FIGURES}} for each in training.evaluations]
    return {
        **entry,
        "draft": training.name,
        "base": training.base.name if training.base else "",
        "data": training.data,
        "settings": job.request.get("settings", {}),
        "evaluations": measured,
    }


def _cells(entry: dict[str, Any]) -> tuple[Any, ...]:
    newest = (entry.get("evaluations") or [{}])[0]
    tau, speedup = newest.get("tau"), newest.get("speedup")
    figures = (f"{tau:.2f}" if tau else "", f"{speedup:.2f} ×" if speedup else "", newest.get("suite"))
    return (entry["id"][:8], entry["kind"], entry["state"].lower(), entry["name"], *figures)
