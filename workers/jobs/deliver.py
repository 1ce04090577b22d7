"""Uploads the local inputs of a new job to the store, so that any machine can run the job. Files that are already in
the store are skipped; without a store nothing is uploaded. No torch."""

from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from speculoos.settings import Settings
from tracking import db, stored
from tracking.stored import KINDS, UPLOADS, RowFiles
from tracking.tables import Base, Checkpoint, Dataset, Table
from workers.jobs.request import Request

Named = Base | Dataset | Checkpoint


def deliver(settings: Settings, request: Request, *more: tuple[type[Table], str]) -> None:
    """Upload the inputs of a request and the rows in `more`, as (table, id). Raises Unavailable if the store does not
    respond."""
    if not settings.store:
        return
    with db.reading(settings) as session:
        rows = [row for row in _ready_rows(session, request, more) if stored.stored_entry(session, row.id) is None]
        paths = [path for path in request.paths() if _checkpoint_at(session, path) is None]
    for row in rows:
        _upload(settings, KINDS[type(row)], row.id, RowFiles(settings).path(row))
    for path in map(Path, paths):
        _upload(settings, UPLOADS, stored.path_id(settings, path), path)


def _ready_rows(session: Session, request: Request, more: Iterable[tuple[type[Table], str]]) -> list[Named]:
    """Rows to upload: ready ones that are not part of the installation. The job of a pending row uploads its files."""
    rows = [session.get(table, row_id) for table, row_id in (*request.inputs(), *more)]
    rows += [_checkpoint_at(session, path) for path in request.paths()]
    return [row for row in rows if row and row.state == "ready" and not stored.is_shipped(row)]


def _checkpoint_at(session: Session, path: str) -> Checkpoint | None:
    return session.scalar(select(Checkpoint).where(Checkpoint.path == path).limit(1)) if path else None


def _upload(settings: Settings, kind: str, row_id: str, path: Path) -> None:
    if path.exists():
        entry = RowFiles(settings).upload(kind, row_id, path)
        with db.writing(settings) as session:
            stored.save_stored(session, kind, row_id, entry)
