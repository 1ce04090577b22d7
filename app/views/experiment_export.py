"""Export of an experiment: all rows as JSON, or its trainings with all settings and evaluations as CSV. Paths in the
home folder are relative as in the database; secrets are masked."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from app.views import job_view
from app.views.experiment_rows import tokens_of
from app.views.trainings_tables import settings_of
from app.widgets import spreadsheet
from speculoos.redaction import redact
from tracking import experiments, lineage, path_columns, reports, trainings
from tracking.lineage import Graph
from tracking.tables import Evaluation, Experiment, Job
from tracking.trainings import KIND, Training

FORMAT = "speculoos experiment 1"
HEAD = (
    "experiment",
    "job",
    "job_id",
    "state",
    "draft",
    "base",
    "data_set",
    "method",
    "steps",
    "seconds",
    "tokens_seen",
)
MEASURED = (
    *("suite", "questions", "temperature", "top_p", "tree", "dtype", "source", "machine", "tau", "tau_low", "tau_high"),
    *("speedup", "speedup_low", "speedup_high", "tokens_per_second", "plain_tokens_per_second"),
)
SETTING = "setting."


def as_json(session: Session, row: Experiment, home: Path, secrets: list[str]) -> str:
    """The experiment, its jobs, its trainings with settings, curves (about 240 points each) and evaluations, and the
    lineage."""
    jobs = experiments.jobs_of(session, row.id)
    rows = _trainings(session, jobs)
    tokens = tokens_of(session, rows)
    document = {
        "format": FORMAT,
        "experiment": {"id": row.id, "name": row.name, "note": row.note, "created_at": row.created_at},
        "jobs": [_job(job, home) for job in jobs],
        "trainings": [_training(session, training, tokens.get(training.job.id), home) for training in rows],
        "lineage": _graph(lineage.graph(session, jobs)),
    }
    return json.dumps(_masked(document, secrets), ensure_ascii=False, indent=1, default=str)


def as_csv(session: Session, row: Experiment, home: Path, secrets: list[str]) -> str:
    """A line per evaluation of each training; a training without evaluations gets one line without figures."""
    rows = _trainings(session, experiments.jobs_of(session, row.id))
    tokens = tokens_of(session, rows)
    records = []
    for training in rows:
        fields = _fields(row, training, tokens.get(training.job.id), home)
        records += [{**fields, **_figures(e)} for e in training.evaluations] or [fields]
    keys = dict.fromkeys(key for record in records for key in record if key.startswith(SETTING))
    masked = [{key: _masked(value, secrets) for key, value in record.items()} for record in records]
    return spreadsheet.as_csv([*HEAD, *MEASURED, *keys], masked)


def _masked(value: Any, secrets: list[str]) -> Any:
    """`value` with secrets masked in every text, before quotes are escaped and cells are joined."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, dict):
        return {_masked(key, secrets): _masked(item, secrets) for key, item in value.items()}
    return [_masked(item, secrets) for item in value] if isinstance(value, list | tuple) else value


def _trainings(session: Session, jobs: Sequence[Job]) -> list[Training]:
    return trainings.with_rows(session, [job for job in jobs if job.kind == KIND])


def _fields(row: Experiment, training: Training, tokens: float | None, home: Path) -> dict[str, Any]:
    settings = _settings(training, home)
    values = {
        "experiment": row.name,
        "job": training.job.name,
        "job_id": training.job.id,
        "state": training.job.state,
        "draft": training.checkpoint.name if training.checkpoint else "",
        "base": settings.pop("base"),
        "data_set": settings.pop("data set"),
        "method": settings.pop("method"),
        "steps": training.job.done,
        "seconds": job_view.seconds(training.job),
        "tokens_seen": tokens,
    }
    return values | {f"{SETTING}{key}": _cell(value) for key, value in settings.items()}


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | tuple) else value


def _job(job: Job, home: Path) -> dict[str, Any]:
    names = ("id", "name", "note", "kind", "state", "user", "created_at", "started_at", "finished_at", "done", "total")
    fields = {key: getattr(job, key) for key in (*names, "unit", "error")}
    return {**fields, "request": _relative(job.request, home), "result": _relative(job.result, home)}


def _training(session: Session, training: Training, tokens: float | None, home: Path) -> dict[str, Any]:
    draft = training.checkpoint
    return {
        "job_id": training.job.id,
        "draft": {"id": draft.id, "name": draft.name, "sha256": draft.sha256, "figures": draft.figures}
        if draft
        else None,
        "tokens_seen": tokens,
        "settings": _settings(training, home),
        "metrics": reports.sampled_metrics(session, training.job.id),
        "evaluations": [{"id": row.id, "created_at": row.created_at, **_figures(row)} for row in training.evaluations],
    }


def _settings(training: Training, home: Path) -> dict[str, Any]:
    return _relative(settings_of(training), home)


def _figures(row: Evaluation) -> dict[str, Any]:
    return {key: getattr(row, key) for key in MEASURED}


def _graph(graph: Graph) -> dict[str, Any]:
    nodes = [{"key": node.key, "name": node.name, "note": node.note} for node in graph.nodes.values()]
    return {"nodes": nodes, "edges": [list(edge) for edge in graph.edges]}


def _relative(value: Any, home: Path) -> Any:
    """`value` with paths inside the home folder relative to it."""
    return path_columns.map_paths(value or {}, lambda text: path_columns.to_stored_path(home, text))
