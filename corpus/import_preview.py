"""Preview of an import: the first rows and the columns of a file. Runs in a child process with limits
(speculoos.limited), since it reads untrusted files."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from corpus.answered import read_answered
from corpus.prompts import read_prompts
from corpus.readers import UnreadableRecord, read_records
from corpus.rows import BadRow

MAX_MESSAGE_CHARS = 2_000
"""Maximum characters of a message that are shown."""
COLUMNS = 60
ROWS = 5
MAX_SEARCHED_ROWS = 10_000


def preview(path: str, with_answers: bool, mapping: dict[str, str]) -> dict[str, Any]:
    """{"columns": names, "rows": [{"line", "messages"} or {"line", "reason"}]} of the first rows. Raises BadInput when
    the file cannot be read."""
    return {"columns": columns(path), "rows": [_display(row) for row in _rows(path, with_answers, mapping, ROWS)]}


def import_problem(path: str, with_answers: bool, mapping: dict[str, str]) -> str:
    """The reason why an import would drop all rows (of the first SEARCHED ones): the error of the first row; "" if any
    row is good. Raises BadInput when the file cannot be read."""
    first = None
    for row in _rows(path, with_answers, mapping, MAX_SEARCHED_ROWS):
        if not isinstance(row, BadRow):
            return ""
        first = first or row
    return f"line {first.line}: {first.reason}" if first else ""


def _rows(path: str, with_answers: bool, mapping: dict[str, str], count: int) -> Iterator[Any]:
    read = read_answered if with_answers else read_prompts
    return islice(read(Path(path), max_rows=MAX_SEARCHED_ROWS + 1, mapping=mapping), count)


def columns(path: str) -> list[str]:
    """Field names of the first records, unchanged and in order of appearance."""
    names: dict[str, None] = {}
    for record in islice(read_records(path), ROWS):
        if not isinstance(record, UnreadableRecord) and isinstance(record.value, dict):
            names |= dict.fromkeys(str(name)[:200] for name in record.value)
    return list(names)[:COLUMNS]


def _display(row: Any) -> dict[str, Any]:
    if isinstance(row, BadRow):
        return {"line": row.line, "reason": row.reason}
    references = list(row.reference)
    messages: list[dict[str, str]] = []
    for message in row.messages:
        messages.append({"role": message["role"], "content": message["content"][:MAX_MESSAGE_CHARS]})
        if message["role"] == "user" and references and (text := references.pop(0)):
            messages.append({"role": "reference", "content": text[:MAX_MESSAGE_CHARS]})
    return {"line": row.line, "messages": messages, "category": row.category}
