"""Rows of a file or of several, good and bad, in order: what a parser makes of each record."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from corpus.fields import BadRecord
from corpus.readers import read_records
from corpus.records import Broken, Record
from speculoos.errors import BadInput

Good = TypeVar("Good")
Files = str | Path | Iterable[Path]
"""One file, or several that are read one after the other; such are asked for when their turn comes."""
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
    files: Files,
    parse: Callable[[int, Any], Good],
    fields: Collection[str],
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
) -> Iterator[Good | BadRow]:
    """`parse(line, value)` of every record, or why there is none; stops after `limit` good rows. Lines of a second file
    are counted on from the first's.

    `parse` gives a dataclass with a field `part` and raises BadRecord; of a file of columns only `fields` are read.
    Raises BadInput when a file cannot be read at all, or there are more than `max_rows` rows and no `limit` was given.
    """
    good = 0
    for count, record in enumerate(_records(files, fields), 1):
        if limit is not None and good >= limit:
            return
        if count > max_rows:
            named = f"{Path(files).name}: has" if isinstance(files, str | Path) else "The files have"
            raise BadInput(
                f"{named} more than {max_rows:,} rows; set a limit, or raise what may be read from one file (on the "
                "Settings page, or SPECULOOS_MAX_ROWS)."
            )
        row = _row(record, parse)
        good += not isinstance(row, BadRow)
        yield row


def _records(files: Files, fields: Collection[str]) -> Iterator[Record | Broken]:
    if isinstance(files, str | Path):
        yield from read_records(files, fields)
        return
    before = 0
    for path in files:
        last = before
        for record in read_records(path, fields):
            last = before + record.line
            yield replace(record, line=last)
        before = last


def _row(record: Record | Broken, parse: Callable[[int, Any], Good]) -> Good | BadRow:
    if isinstance(record, Broken):
        return BadRow(record.line, record.reason)
    try:
        return replace(parse(record.line, record.value), part=record.part)  # type: ignore[type-var]
    except BadRecord as bad:
        return BadRow(record.line, str(bad))
