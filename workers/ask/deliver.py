"""What a job reads and only this machine has goes to the store when the job is asked for, so that any machine may take
it. What lies there already is not sent again; without a store nothing moves. No torch here."""

from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from speculoos.settings import Settings
from tracking import db, stored
from tracking.stored import KINDS, UPLOADS, Files
from tracking.tables import Base, Checkpoint, Dataset, Table
from workers.ask.outputs import input_ids
from workers.ask.requests import FetchModel, ImportAnswered, ImportDraft, ImportPrompts, Request, Train

Named = Base | Dataset | Checkpoint
ELSEWHERE = ("hub", "starter")
"""Sources whose location is no path."""


def deliver(settings: Settings, request: Request, *more: tuple[type[Table], str]) -> None:
    """Put the inputs of a request into the store, and the rows named by `more`. Raises Unavailable for a store that
    does not answer."""
    if not settings.store:
        return
    with db.reading(settings) as session:
        rows = [row for row in _rows(session, request, more) if stored.of(session, row.id) is None]
        paths = [path for path in paths_of(request) if _draft(session, path) is None]
    for row in rows:
        _put(settings, KINDS[type(row)], row.id, Files(settings).path(row))
    for path in map(Path, paths):
        _put(settings, UPLOADS, stored.path_id(settings, path), path)


def paths_of(request: Request) -> list[str]:
    """Files and folders that a request names itself, without a row."""
    if isinstance(request, ImportPrompts | ImportAnswered):
        return [request.path] if request.path else []  # a suite of the hub has none
    if isinstance(request, ImportDraft | FetchModel):
        return [request.location] if request.source not in ELSEWHERE else []
    if isinstance(request, Train) and (path := request.settings.get("draft_path")):
        return [str(path)]
    return []


def _rows(session: Session, request: Request, more: Iterable[tuple[type[Table], str]]) -> list[Named]:
    """Those that are ready and travel; what is still being made is delivered by its job."""
    found = [session.get(table, row_id) for table, row_id in (*input_ids(request), *more)]
    found += [_draft(session, path) for path in paths_of(request)]
    return [row for row in found if row and row.state == "ready" and not stored.is_shipped(row)]


def _draft(session: Session, path: str) -> Checkpoint | None:
    return session.scalar(select(Checkpoint).where(Checkpoint.path == path).limit(1)) if path else None


def _put(settings: Settings, kind: str, row_id: str, path: Path) -> None:
    if path.exists():
        kept = Files(settings).deliver(kind, row_id, path)
        with db.writing(settings) as session:
            stored.keep(session, kind, row_id, kept)
