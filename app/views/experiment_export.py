"""An experiment taken away: all its rows as JSON, its trainings with every setting and evaluation as CSV. Files of the
home are named as rows name them, and what looks like a secret is masked."""

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
from tracking import downsampling, experiments, lineage, places, trainings
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
    """The experiment, its jobs, its trainings with settings, curves (some 240 points each) and evaluations, lineage."""
    jobs = experiments.jobs_of(session, row.id)
    found = _trainings(session, jobs)
    tokens = tokens_of(session, found)
    said = {
        "format": FORMAT,
        "experiment": {"id": row.id, "name": row.name, "note": row.note, "created_at": row.created_at},
        "jobs": [_job(job, home) for job in jobs],
        "trainings": [_training(session, each, tokens.get(each.job.id), home) for each in found],
        "lineage": _graph(lineage.graph(session, jobs)),
    }
    return json.dumps(_masked(said, secrets), ensure_ascii=False, indent=1, default=str)


def as_csv(session: Session, row: Experiment, home: Path, secrets: list[str]) -> str:
    """A line for each evaluation of each training; one without figures for a training that was not measured."""
    found = _trainings(session, experiments.jobs_of(session, row.id))
    tokens = tokens_of(session, found)
    records = []
    for each in found:
        told = _told(row, each, tokens.get(each.job.id), home)
        records += [{**told, **_figures(e)} for e in each.evaluations] or [told]
    keys = dict.fromkeys(key for record in records for key in record if key.startswith(SETTING))
    masked = [{key: _masked(value, secrets) for key, value in record.items()} for record in records]
    return spreadsheet.as_csv([*HEAD, *MEASURED, *keys], masked)


def _masked(value: Any, secrets: list[str]) -> Any:
    """Every text in it without secrets, before quotes are escaped and cells are joined."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, dict):
        return {_masked(key, secrets): _masked(item, secrets) for key, item in value.items()}
    return [_masked(item, secrets) for item in value] if isinstance(value, list | tuple) else value


def _trainings(session: Session, jobs: Sequence[Job]) -> list[Training]:
    return trainings.whole(session, [job for job in jobs if job.kind == KIND])


def _told(row: Experiment, each: Training, tokens: float | None, home: Path) -> dict[str, Any]:
    settings = _settings(each, home)
    values = {
        "experiment": row.name,
        "job": each.job.name,
        "job_id": each.job.id,
        "state": each.job.state,
        "draft": each.checkpoint.name if each.checkpoint else "",
        "base": settings.pop("base"),
        "data_set": settings.pop("data set"),
        "method": settings.pop("method"),
        "steps": each.job.done,
        "seconds": job_view.seconds(each.job),
        "tokens_seen": tokens,
    }
    return values | {f"{SETTING}{key}": _cell(value) for key, value in settings.items()}


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | tuple) else value


def _job(job: Job, home: Path) -> dict[str, Any]:
    named = ("id", "name", "note", "kind", "state", "user", "created_at", "started_at", "finished_at", "done", "total")
    told = {key: getattr(job, key) for key in (*named, "unit", "error")}
    return {**told, "request": _relative(job.request, home), "result": _relative(job.result, home)}


def _training(session: Session, each: Training, tokens: float | None, home: Path) -> dict[str, Any]:
    draft = each.checkpoint
    return {
        "job_id": each.job.id,
        "draft": {"id": draft.id, "name": draft.name, "sha256": draft.sha256, "figures": draft.figures}
        if draft
        else None,
        "tokens_seen": tokens,
        "settings": _settings(each, home),
        "metrics": downsampling.metrics(session, each.job.id),
        "evaluations": [{"id": row.id, "created_at": row.created_at, **_figures(row)} for row in each.evaluations],
    }


def _settings(each: Training, home: Path) -> dict[str, Any]:
    return _relative(settings_of(each), home)


def _figures(row: Evaluation) -> dict[str, Any]:
    return {key: getattr(row, key) for key in MEASURED}


def _graph(made: Graph) -> dict[str, Any]:
    nodes = [{"key": node.key, "name": node.name, "note": node.note} for node in made.nodes.values()]
    return {"nodes": nodes, "edges": [list(edge) for edge in made.edges]}


def _relative(value: Any, home: Path) -> Any:
    """With places of the home as rows name them."""
    return places.each_path(value or {}, lambda text: places.stored(home, text))
