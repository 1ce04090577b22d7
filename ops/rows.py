"""Rows as lines of JSON, the same for SQLite and PostgreSQL. Tables are read from the database, not from the classes of
this version, so this works at every revision.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from speculoos.errors import BadInput
from tracking.values import storable

BATCH = 500  # rows per read or insert
PART_BYTES = 4 * 2**20


def tables(connection: Connection) -> list[sa.Table]:
    """Every table of ours, each after those it refers to."""
    metadata = sa.MetaData()
    metadata.reflect(connection)
    return [table for table in metadata.sorted_tables if table.name != "alembic_version"]


def read_rows(connection: Connection, table: sa.Table) -> Iterator[dict[str, Any]]:
    """A table's rows as JSON values, in the order of its key."""
    streamed = connection.execution_options(yield_per=BATCH)
    for row in streamed.execute(sa.select(table).order_by(*table.primary_key)):
        yield {column: _plain(value) for column, value in row._mapping.items()}


def parts(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Rows as lines of JSON, in parts of about PART_BYTES."""
    part = bytearray()
    for row in rows:
        part += json.dumps(row, separators=(",", ":")).encode() + b"\n"
        if len(part) >= PART_BYTES:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


def write_rows(connection: Connection, table: sa.Table, rows: Iterable[dict[str, Any]]) -> int:
    """Insert rows into an empty table; returns their number. Columns that the table does not have are left out.

    Links between rows of the table are set at the end, so order does not matter. Raises BadInput for rows that the
    database refuses.
    """
    links = [c.name for c in table.columns if any(key.column.table is table for key in c.foreign_keys)]
    linked: list[dict[str, Any]] = []
    count = 0
    converted = ({c.name: _stored(c, row.get(c.name)) for c in table.columns} for row in rows)
    while batch := list(islice(converted, BATCH)):
        linked += [
            {name: row[name] for name in (*table.primary_key.columns.keys(), *links)}
            for row in batch
            if any(row[name] for name in links)
        ]
        try:
            connection.execute(sa.insert(table), [{**row, **dict.fromkeys(links)} for row in batch])
        except (DBAPIError, sa.exc.StatementError) as error:
            first = str(getattr(error, "orig", error)).strip().splitlines()[0]
            where = f"rows {count + 1} to {count + len(batch)} of the table {table.name}"
            raise BadInput(f"The database rejects {where}: {first}.") from error
        count += len(batch)
    for row in linked:
        key_conditions = [column == row[column.name] for column in table.primary_key]
        connection.execute(sa.update(table).where(*key_conditions).values({name: row[name] for name in links}))
    _set_sequence(connection, table)
    return count


def _set_sequence(connection: Connection, table: sa.Table) -> None:
    """Move PostgreSQL's counter of new rows behind the inserted ones."""
    (key, *more) = table.primary_key
    if connection.dialect.name != "postgresql" or more or not isinstance(key.type, sa.Integer):
        return
    sequence = connection.scalar(sa.select(sa.func.pg_get_serial_sequence(table.name, key.name)))
    if sequence and (last := connection.scalar(sa.select(sa.func.max(key)))):
        connection.execute(sa.select(sa.func.setval(sequence, last)))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value


def _stored(column: sa.Column[Any], value: Any) -> Any:
    if value is not None and isinstance(column.type, sa.DateTime):
        moment = datetime.fromisoformat(value)
        return moment if column.type.timezone else moment.replace(tzinfo=None)
    if value is not None and isinstance(column.type, sa.LargeBinary):
        return b64decode(value)
    return storable(value)
