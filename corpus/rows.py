"""Rows of a file, good and bad, in order: what a parser makes of each record."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from corpus.fields import BadRecord
from corpus.readers import read_records
from corpus.records import Broken, Record
from speculoos.errors import BadInput

Good = TypeVar("Good")
DEFAULT_MAX_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was left out: where it stands and why."""

    line: int
    reason: str


def row_id(line: int, part: int = 0) -> str:
    """A row's id in its data set; `part` tells rows of one line apart."""
    return f"line-{line:07d}" + (f"-{part}" if part else "")


def parsed_rows(
    path: str | Path,
    parse: Callable[[int, Any], Good],
    fields: Collection[str],
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
) -> Iterator[Good | BadRow]:
    """`parse(line, value)` of every record of a file, or why there is none; stops after `limit` good rows.

    `parse` gives a dataclass with a field `part` and raises BadRecord; of a file of columns only `fields` are read.
    Raises BadInput when the file cannot be read at all, or has more than `max_rows` rows and no `limit` was given.
    """
    good = 0
    for count, record in enumerate(read_records(path, fields), 1):
        if limit is not None and good >= limit:
            return
        if count > max_rows:
            raise BadInput(
                f"{Path(path).name}: has more than {max_rows:,} rows; set a limit or raise SPECULOOS_MAX_ROWS."
            )
        row = _row(record, parse)
        good += not isinstance(row, BadRow)
        yield row


def _row(record: Record | Broken, parse: Callable[[int, Any], Good]) -> Good | BadRow:
    if isinstance(record, Broken):
        return BadRow(record.line, record.reason)
    try:
        return replace(parse(record.line, record.value), part=record.part)  # type: ignore[type-var]
    except BadRecord as bad:
        return BadRow(record.line, str(bad))
