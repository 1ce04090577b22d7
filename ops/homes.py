"""Opens a home for a command: reads the settings, migrates the database, registers the installed starter model."""

from typing import Any

from ops.migrate import migrate
from ops.starter import ensure_starter
from speculoos.private import restrict_permissions
from speculoos.settings import Settings, load
from tracking.db import writing
from tracking.tables import Table


def open_home(settings: Settings | None = None) -> Settings:
    """Settings of a home that is ready for use. Raises Unavailable for a database that is damaged or newer than this
    code, Conflict for a home in which a restore broke off."""
    settings = settings or load()
    restrict_permissions(settings)
    migrate(settings)
    with writing(settings) as session:
        ensure_starter(session, settings)
    return settings


def columns(row: Table, *leave_out: str) -> dict[str, Any]:
    """A row as plain values, for --json."""
    return {c.key: getattr(row, c.key) for c in row.__mapper__.column_attrs if c.key not in leave_out}
