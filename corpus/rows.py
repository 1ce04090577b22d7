"""Parse the records of one or several files into rows, good or bad, in order."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from corpus.fields import BadRecord
from corpus.readers import Records, UnreadableRecord, read_records
from speculoos.errors import BadInput

Good = TypeVar("Good")
Files = str | Path | Iterable[Path]
"""One file, or several that are read in order; an iterable is consumed lazily."""
DEFAULT_MAX_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class BadRow:
    """An omitted row: its line and the reason."""

    line: int
    reason: str


def row_id(line: int) -> str:
    """A row's id in its data set."""
    return f"line-{line:07d}"


def parsed_rows(
    files: Files,
    parse: Callable[[int, Any], Good],
    fields: Collection[str],
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
) -> Iterator[Good | BadRow]:
    """`parse(line, value)` of every record, or a BadRow; stops after `limit` good rows. Line numbers continue across
    files.

    `parse` raises BadRecord for an unusable record; of columnar files only `fields` are read. Raises BadInput when a
    file is unreadable, or for more than `max_rows` rows without a `limit`.
    """
    good = 0
    for count, record in enumerate(_records(files, fields), 1):
        if limit is not None and good >= limit:
            return
        if count > max_rows:
            subject = f"{Path(files).name}: has" if isinstance(files, str | Path) else "The files have"
            raise BadInput(
                f"{subject} more than {max_rows:,} rows; set a limit, or raise what may be read from one file "
                "(SPECULOOS_MAX_ROWS)."
            )
        if isinstance(record, UnreadableRecord):
            yield BadRow(record.line, record.reason)
            continue
        try:
            yield parse(record.line, record.value)
            good += 1
        except BadRecord as bad:
            yield BadRow(record.line, str(bad))


def _records(files: Files, fields: Collection[str]) -> Records:
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
