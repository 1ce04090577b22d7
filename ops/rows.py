"""Rows in a neutral form: each table as lines of JSON, the same from SQLite and PostgreSQL, and put into either.

Tables are read as the database has them, not as today's classes do: so this works at every revision.
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

AT_ONCE = 500
"""Rows that are read or written in one go."""
PIECE = 4 * 2**20
"""Bytes after which a new piece of a table begins."""


def tables(connection: Connection) -> list[sa.Table]:
    """Every table with rows of ours, each after those it points to."""
    metadata = sa.MetaData()
    metadata.reflect(connection)
    return [table for table in metadata.sorted_tables if table.name != "alembic_version"]


def read_rows(connection: Connection, table: sa.Table) -> Iterator[dict[str, Any]]:
    """A table's rows as JSON values, in the order of its key."""
    streamed = connection.execution_options(yield_per=AT_ONCE)
    for row in streamed.execute(sa.select(table).order_by(*table.primary_key)):
        yield {column: _plain(value) for column, value in row._mapping.items()}


def pieces(rows: Iterable[dict[str, Any]], size: int = PIECE) -> Iterator[bytes]:
    """Rows as lines of JSON, about `size` bytes at once; never more in memory than one such piece."""
    held = bytearray()
    for row in rows:
        held += json.dumps(row, separators=(",", ":")).encode() + b"\n"
        if len(held) >= size:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def write_rows(connection: Connection, table: sa.Table, rows: Iterable[dict[str, Any]]) -> int:
    """Insert rows into an empty table; returns how many. Columns the table has not are left out.

    A row that points to another one of its own table may come before it. Raises BadInput naming a row that the
    database does not take.
    """
    links = [c.name for c in table.columns if any(key.column.table is table for key in c.foreign_keys)]
    later: list[dict[str, Any]] = []
    count = 0
    stored = (_stored(table, row) for row in rows)
    while batch := list(islice(stored, AT_ONCE)):
        later += [_link(table, row, links) for row in batch if any(row[name] for name in links)]
        _insert(connection, table, [{**row, **dict.fromkeys(links)} for row in batch], count)
        count += len(batch)
    _set_links(connection, table, links, later)
    _set_sequence(connection, table)
    return count


def _insert(connection: Connection, table: sa.Table, batch: list[dict[str, Any]], before: int) -> None:
    try:
        connection.execute(sa.insert(table), batch)
    except (DBAPIError, sa.exc.StatementError) as error:
        first = str(getattr(error, "orig", error)).strip().splitlines()[0]
        where = f"rows {before + 1} to {before + len(batch)} of the table {table.name}"
        raise BadInput(f"The database does not take {where}: {first}.") from error


def _link(table: sa.Table, row: dict[str, Any], links: list[str]) -> dict[str, Any]:
    return {f"own_{c.name}": row[c.name] for c in table.primary_key} | {f"to_{name}": row[name] for name in links}


def _set_links(connection: Connection, table: sa.Table, links: list[str], later: list[dict[str, Any]]) -> None:
    if later:
        own = [column == sa.bindparam(f"own_{column.name}") for column in table.primary_key]
        values = {name: sa.bindparam(f"to_{name}") for name in links}
        connection.execute(sa.update(table).where(*own).values(values), later)


def _set_sequence(connection: Connection, table: sa.Table) -> None:
    """PostgreSQL numbers new rows by a counter of its own, which rows that bring their number do not move."""
    keys = list(table.primary_key)
    if connection.dialect.name != "postgresql" or len(keys) != 1 or not isinstance(keys[0].type, sa.Integer):
        return
    name, key = table.name, keys[0].name
    sequence = connection.scalar(sa.select(sa.func.pg_get_serial_sequence(name, key)))
    if sequence and (last := connection.scalar(sa.select(sa.func.max(keys[0])))):
        connection.execute(sa.select(sa.func.setval(sequence, last)))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value


def _stored(table: sa.Table, row: dict[str, Any]) -> dict[str, Any]:
    """A row as this database takes it."""
    return {column.name: _read(column, row.get(column.name)) for column in table.columns}


def _read(column: sa.Column[Any], value: Any) -> Any:
    if value is not None and isinstance(column.type, sa.DateTime):
        moment = datetime.fromisoformat(value)
        return moment if column.type.timezone else moment.replace(tzinfo=None)
    if value is not None and isinstance(column.type, sa.LargeBinary):
        return b64decode(value)
    return storable(value)
