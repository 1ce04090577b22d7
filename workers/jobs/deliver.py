"""Delivers the inputs of a new job that only this machine has to the store, so that any machine can take the job.
Files in the store are not sent again; without a store nothing moves. No torch."""

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
    """Put the inputs of a request into the store, and the rows named by `more`. Raises Unavailable for a store that
    does not answer."""
    if not settings.store:
        return
    with db.reading(settings) as session:
        rows = [row for row in _rows(session, request, more) if stored.stored_entry(session, row.id) is None]
        paths = [path for path in request.paths() if _draft(session, path) is None]
    for row in rows:
        _put(settings, KINDS[type(row)], row.id, RowFiles(settings).path(row))
    for path in map(Path, paths):
        _put(settings, UPLOADS, stored.path_id(settings, path), path)


def _rows(session: Session, request: Request, more: Iterable[tuple[type[Table], str]]) -> list[Named]:
    """Those that are ready and travel; what is still being made is delivered by its job."""
    found = [session.get(table, row_id) for table, row_id in (*request.inputs(), *more)]
    found += [_draft(session, path) for path in request.paths()]
    return [row for row in found if row and row.state == "ready" and not stored.is_shipped(row)]


def _draft(session: Session, path: str) -> Checkpoint | None:
    return session.scalar(select(Checkpoint).where(Checkpoint.path == path).limit(1)) if path else None


def _put(settings: Settings, kind: str, row_id: str, path: Path) -> None:
    if path.exists():
        kept = RowFiles(settings).deliver(kind, row_id, path)
        with db.writing(settings) as session:
            stored.save_stored(session, kind, row_id, kept)
