"""Opens a home for a command: reads the settings, migrates the database, registers the installed starter model."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from ops.migrate import migrate
from ops.starter import ensure_starter
from speculoos.private import restrict_permissions
from speculoos.settings import Settings, load
from tracking.db import writing
from tracking.tables import Base, Checkpoint, Dataset, Table


def open_home(settings: Settings | None = None) -> Settings:
    """Settings of a home that is ready for use. Raises Unavailable for a database that is damaged or newer than this
    code, Conflict for a home in which a restore broke off."""
    settings = settings or load()
    restrict_permissions(settings)
    migrate(settings)
    with writing(settings) as session:
        ensure_starter(session, settings)
    return settings


def names(session: Session) -> dict[str, str]:
    """Name of every base, dataset and checkpoint by its id, for `workers.jobs.request.command_for`."""
    tables = (Base, Dataset, Checkpoint)
    return {row_id: name for table in tables for row_id, name in session.execute(select(table.id, table.name))}


def columns(row: Table, *leave_out: str) -> dict[str, Any]:
    """A row as plain values, for --json."""
    return {c.key: getattr(row, c.key) for c in row.__mapper__.column_attrs if c.key not in leave_out}
