"""Alembic's entry point: runs the migrations on the connection passed by tracking.db, or on DATABASE_URL."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import sqlalchemy as sa
from alembic import context
from sqlalchemy.engine import Connection

from speculoos import settings
from tracking import db
from tracking.path_columns import HomePath
from tracking.tables import Table, UtcDateTime
from tracking.values import Json

UPGRADE_LOCK = 8_364_512_077
"""Key of the advisory lock that serializes upgrades on PostgreSQL; SQLite's write lock does the same."""


def render_item(kind: str, item: object, _context: object) -> str | bool:
    """Render custom column types as the plain types they store, so that migrations never import current code."""
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
        transactional_ddl=True,  # on SQLite too, because tracking.db begins transactions: one lock over all migrations
    )
    with unlinked(connection) if sqlite else nullcontext(), context.begin_transaction():
        if not sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
        context.run_migrations()


@contextmanager
def unlinked(connection: Connection) -> Iterator[None]:
    """Disable foreign keys on SQLite, which changes a table by copying and dropping it: a dropped table would delete
    the rows that reference it. The pragma only works outside a transaction, so it runs on the driver's connection."""
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
