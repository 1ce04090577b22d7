"""Export of an experiment's trainings with all settings and evaluations as CSV. Paths in the home folder are relative
as in the database; secrets are masked."""

import json
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from app.views import job_view
from app.views.trainings_view import settings_of, tokens_of
from app.widgets import spreadsheet
from speculoos.redaction import redact
from tracking import experiments, path_columns, trainings
from tracking.tables import Experiment
from tracking.trainings import KIND, Training

HEAD = (
    *("experiment", "job", "job_id", "state", "draft", "base", "data_set", "method", "steps", "seconds"),
    "tokens_seen",
)
MEASURED = (
    *("suite", "questions", "temperature", "top_p", "tree", "dtype", "source", "machine", "tau", "tau_low", "tau_high"),
    *("speedup", "speedup_low", "speedup_high", "tokens_per_second", "plain_tokens_per_second"),
)
SETTING = "setting."


def as_csv(session: Session, row: Experiment, home: Path, secrets: list[str]) -> str:
    """A line per evaluation of each training; a training without evaluations gets one line without figures."""
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
        "data_set": settings.pop("data set"),
        "method": settings.pop("method"),
        "steps": training.job.done,
        "seconds": job_view.seconds(training.job),
        "tokens_seen": tokens,
    }
    return values | {f"{SETTING}{key}": _cell(value) for key, value in settings.items()}


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | tuple) else value
