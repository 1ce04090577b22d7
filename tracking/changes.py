"""Renaming, annotating and deleting listed rows, with the rows that depend on them."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import String, cast, select, update
from sqlalchemy import delete as sql_delete
from sqlalchemy.orm import Session

from speculoos.errors import Conflict
from speculoos.files import total_bytes
from speculoos.settings import Settings
from tracking import stored
from tracking.names import STARTER, UNIQUE, check_free_name, check_name, is_empty_failure
from tracking.queries import trained_on
from tracking.states import FINISHED
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Experiment, Job, Metric, Table

NOTE_LIMIT = 10_000


def rename(session: Session, row: Any, name: str) -> None:
    """Rename a listed row. Raises BadInput or Conflict."""
    name = check_name(name)
    if isinstance(row, Base) and (row.source == STARTER or name == STARTER) and name != row.name:
        raise Conflict(f"The name {STARTER!r} always means the same weights, so it can be neither taken nor changed.")
    if isinstance(row, UNIQUE) and name != row.name:
        check_free_name(session, type(row), name, getattr(row, "base_id", ""))
    row.name = name
    if isinstance(row, Job):
        row.version = Job.version + 1


def set_note(session: Session, row: Any, note: str) -> None:
    """Set the note of a listed row, truncated to NOTE_LIMIT characters."""
    row.note = note.strip()[:NOTE_LIMIT]
    if isinstance(row, Job):
        row.version = Job.version + 1


def dependents(session: Session, row: Any) -> list[str]:
    """Rows that deleting `row` would delete or leave without their origin, one phrase each."""
    phrases = []
    for table, column, phrase in DEPENDENTS[type(row)]:
        if not phrase:  # not worth a warning
            continue
        query = select(table).where(column == row.id)
        if isinstance(row, Job) and table in JOB_OUTPUT_TABLES:  # empty rows are deleted with their job
            query = query.where(~is_empty_failure(table))
        phrases += [phrase.format(name=r.name) for r in session.scalars(query)]
    if isinstance(row, Dataset):  # not the first of several datasets
        named = session.scalars(select(Checkpoint).where(cast(Checkpoint.config, String).contains(row.id)))
        phrases += [f"the draft “{r.name}” trained on it" for r in named if row.id in trained_on(r)[1:]]
    return phrases


def delete(session: Session, settings: Settings, row: Any, *, force: bool = False) -> list[Path | stored.RemoteFiles]:
    """Delete a row, and with `force` the rows that depend on it. Returns the folders and files to remove after the
    commit, on this machine and in the store (see `remove_files`). Raises Conflict while a job uses the row, and without
    `force` if other rows depend on it."""
    must_be_idle(session, row)
    needed_by = dependents(session, row)
    if needed_by and not force:
        more = f" and {len(needed_by) - 5} more" if len(needed_by) > 5 else ""
        raise Conflict(
            f"“{row.name}” is needed by {', '.join(needed_by[:5])}{more}.", "Delete those first, or delete with force."
        )
    return _delete(session, settings, row)


def remove_files(paths: Sequence[Path | stored.RemoteFiles]) -> int:
    """Remove the files returned by `delete`, after its transaction was committed. Returns the freed bytes."""
    freed = 0
    for path in paths:
        if isinstance(path, stored.RemoteFiles):
            freed += path.remove()
            continue
        freed += total_bytes(path)
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return freed


DEPENDENTS: dict[type[Table], list[tuple[type[Table], Any, str]]] = {
    Base: [
        (Checkpoint, Checkpoint.base_id, "the draft “{name}”"),
        (Dataset, Dataset.base_id, "the dataset “{name}” (its responses)"),
        (Evaluation, Evaluation.base_id, "the evaluation “{name}”"),
    ],
    Dataset: [
        (Dataset, Dataset.source_id, "the dataset “{name}” generated from it"),
        (Checkpoint, Checkpoint.dataset_id, "the draft “{name}” trained on it"),
    ],
    Checkpoint: [(Evaluation, Evaluation.checkpoint_id, "the evaluation “{name}”")],
    Job: [
        (Checkpoint, Checkpoint.job_id, "the draft “{name}” (its log and charts)"),
        (Dataset, Dataset.job_id, "the dataset “{name}” (its log)"),
        (Evaluation, Evaluation.job_id, "the evaluation “{name}” (its log)"),
        (Base, Base.job_id, "the model “{name}” (its log)"),
        (Job, Job.after_id, ""),
        (Job, Job.parent_id, ""),
    ],
    Evaluation: [],
    Experiment: [],
}
JOB_OUTPUT_TABLES = (Base, Dataset, Checkpoint)  # tables whose rows are created by jobs and shown in lists
CLEARED = {"source_id", "dataset_id", "after_id", "job_id"}
"""Foreign keys that are set to NULL instead of deleting the dependent row, which stays useful without its origin.
(`Evaluation.matrix_id` is not cleared: a matrix cell never becomes an ordinary evaluation of its checkpoint.)"""


def _delete(session: Session, settings: Settings, row: Any) -> list[Path | stored.RemoteFiles]:
    paths = [*_files(settings, row), *stored.drop_stored(session, settings, row)]
    for table in JOB_OUTPUT_TABLES if isinstance(row, Job) else ():
        for empty in session.scalars(select(table).where(table.job_id == row.id, is_empty_failure(table))).all():
            paths += _delete(session, settings, empty)
    for table, column, _ in DEPENDENTS[type(row)]:
        if column.key in CLEARED or (table, column.key) == (Dataset, "base_id"):
            session.execute(update(table).where(column == row.id).values({column.key: None}))
            continue
        for dependent in session.scalars(select(table).where(column == row.id)).all():
            must_be_idle(session, dependent)
            paths += _delete(session, settings, dependent)
    if isinstance(row, Experiment):
        for table in (Job, Dataset, Checkpoint):
            session.execute(update(table).where(table.experiment_id == row.id).values(experiment_id=None))
    if isinstance(row, Job):
        session.execute(sql_delete(Metric).where(Metric.job_id == row.id))
    session.delete(row)
    session.flush()
    return paths


def must_be_idle(session: Session, row: Any) -> None:
    """Raises Conflict while a job creates or uses the row."""
    if isinstance(row, Base) and row.source == STARTER:
        raise Conflict("The starter model belongs to the installation and cannot be deleted.")
    job = row if isinstance(row, Job) else session.get(Job, getattr(row, "job_id", None) or "")
    if job and job.state not in FINISHED:
        raise Conflict(f"The job “{job.name}” is {job.state.lower()}; cancel it first.")
    if isinstance(row, Job | Experiment):
        return
    for user in session.scalars(select(Job).where(Job.state.not_in(FINISHED))):
        if _mentions(user.request, row.id):
            raise Conflict(f"The job “{user.name}” ({user.state.lower()}) uses “{row.name}”; wait for it or cancel it.")


def _mentions(value: Any, row_id: str) -> bool:
    if isinstance(value, dict):
        return any(_mentions(item, row_id) for item in value.values())
    return any(_mentions(item, row_id) for item in value) if isinstance(value, list) else value == row_id


def _files(settings: Settings, row: Any) -> list[Path]:
    paths = []
    if isinstance(row, Job):
        paths = [settings.home / "logs" / f"{row.id}.log", *settings.trackers_folder.glob(f"*/*{row.id[:12]}*")]
    if kind := stored.KINDS.get(type(row)):
        paths = [settings.home / kind / row.id, *(settings.home / kind).glob(f".{row.id}[.-]*")]
        paths += [settings.home / "exports" / row.id] if isinstance(row, Checkpoint) else []
    return [path for path in paths if path.exists()]
