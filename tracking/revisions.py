"""Which revisions of the tables this code knows, and a sentence for a database that a newer one has migrated."""

from functools import cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from speculoos.errors import Unavailable

FOLDER = Path(__file__).resolve().parent.parent / "migrations" / "versions"


@cache
def known() -> tuple[str, ...]:
    """Every revision, the oldest first: a change's file begins with its revision's number."""
    return tuple(sorted(path.name.partition("_")[0] for path in FOLDER.glob("[0-9]*_*.py")))


def head() -> str:
    """The newest revision."""
    return known()[-1]


def current(connection: Connection) -> str:
    """The revision of the tables behind a connection, "" when there are none."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return ""
    return connection.scalar(sa.text("SELECT version_num FROM alembic_version")) or ""


def check(rev: str, where: str) -> None:
    """Raises Unavailable when `rev` is none of ours, saying how to go on. `where` names the database."""
    if rev and rev not in known():
        raise Unavailable(
            f"{where} was made by a newer Speculoos (revision {rev}; this one knows up to {head()}), so nothing was "
            "changed; update Speculoos again, or restore a backup from before (docs/operations.md, Going back)."
        )
