"""The migration revisions that this code knows, and the check for a database migrated by a newer version."""

from functools import cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from speculoos.errors import Unavailable

FOLDER = Path(__file__).resolve().parent.parent / "migrations" / "versions"


@cache
def known() -> tuple[str, ...]:
    """All revisions, oldest first. The name of a migration file starts with its revision."""
    return tuple(sorted(path.name.partition("_")[0] for path in FOLDER.glob("[0-9]*_*.py")))


def head() -> str:
    return known()[-1]


def current(connection: Connection) -> str:
    """The database's revision, or "" without tables."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return ""
    return connection.scalar(sa.text("SELECT version_num FROM alembic_version")) or ""


def check(rev: str, where: str) -> None:
    """Raises Unavailable if this code does not know `rev`. `where` names the database in the message."""
    if rev and rev not in known():
        raise Unavailable(
            f"{where} was made by a newer Speculoos (revision {rev}; this one knows up to {head()}), so nothing was "
            "changed; update Speculoos again, or restore a backup from before (docs/operations.md, Going back)."
        )
