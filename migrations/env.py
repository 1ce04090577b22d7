"""Alembic's entry: runs the changes of `versions/` on the connection given by tracking.db, or on DATABASE_URL."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import sqlalchemy as sa
from alembic import context
from sqlalchemy.engine import Connection

from speculoos import settings
from tracking import db
from tracking.places import HomePath
from tracking.tables import Table, UtcDateTime
from tracking.values import Json

UPGRADE_LOCK = 8_364_512_077
"""Number of the advisory lock that makes PostgreSQL upgrades take turns (SQLite's write lock does it there)."""


def render_item(kind: str, item: object, _context: object) -> str | bool:
    """Our own column types are written as the plain types they store, so that old changes never import new code."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, HomePath):
        return "sa.Text()"
    if kind == "type" and isinstance(item, sa.JSON | Json):
        return "sa.JSON().with_variant(sa.dialects.postgresql.JSONB(), 'postgresql')"
    return False


def run(connection: Connection) -> None:
    sqlite = connection.dialect.name == "sqlite"
    context.configure(
        connection=connection,
        target_metadata=Table.metadata,
        render_as_batch=sqlite,
        compare_type=True,
        render_item=render_item,
        transactional_ddl=True,  # SQLite's too, where tracking.db begins transactions: one lock over all changes
    )
    with unlinked(connection) if sqlite else nullcontext(), context.begin_transaction():
        if not sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
        context.run_migrations()


@contextmanager
def unlinked(connection: Connection) -> Iterator[None]:
    """SQLite changes a table by copying and dropping it, and a dropped table would take the rows that point to it
    along; so foreign keys rest meanwhile. That can only be said outside a transaction, hence on the driver itself."""
    driver = connection.connection.dbapi_connection
    driver.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys=ON")


if (given := context.config.attributes.get("connection")) is not None:
    run(given)
else:
    with db.engine(settings.load()).connect() as made:
        run(made)
